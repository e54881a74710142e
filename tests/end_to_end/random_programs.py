"""Programs at random, from the rules that there are: elementwise operators of every signature, reductions, products,
indexing, views, casts, and writes through views.

In: numbers that Hypothesis draws and shrinks. Out: a ``Program``, which runs on tensors of any device and of which
eager PyTorch has accepted every step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

import neuron_compiler.lowering.ops  # noqa: F401
from neuron_compiler.opdef import REGISTRY, Kind

SHAPES = ((4, 6), (6, 4), (4, 1), (6,), (2, 4, 6), ())
DTYPES = (*3 * (torch.float32,), torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.bool)
NUMBERS = (2, -1, 0.5, 3, 1e-3, -2.5, 0)
MOST_ELEMENTS = 4096

Pool = list[torch.Tensor]


class Step(NamedTuple):
    """One step: its family, which of the family, which tensors of the pool, and further choices."""

    family: str
    which: int
    first: int
    second: int
    choices: tuple[int, int, int]


@cache
def overloads(kind: Kind, *types: str) -> list[Any]:
    """Overloads of ATen that have a rule of this kind and need just these arguments; none that users cannot call."""
    found = []
    for name in REGISTRY.names():
        namespace, _, rest = name.partition(".")
        operator, _, overload = rest.partition(".")
        if namespace != "aten" or operator.startswith("_") or REGISTRY[name].kind is not kind:
            continue
        if "polynomial" in operator:
            continue  # of NaN, PyTorch's kernels give what happened to be in memory
        candidate = getattr(getattr(torch.ops.aten, operator), overload)
        needed = [str(a.type) for a in candidate._schema.arguments if not a.has_default_value()]
        if needed == list(types) and len(candidate._schema.returns) == 1:
            found.append(candidate)
    return found


def _dim(x: torch.Tensor, choice: int) -> int:
    return choice % max(x.dim(), 1)


VIEWS: tuple[Callable[[torch.Tensor, int, int, int], torch.Tensor], ...] = (
    lambda x, a, b, c: x.transpose(_dim(x, a), _dim(x, b)),
    lambda x, a, b, c: x.select(_dim(x, a), b % x.shape[_dim(x, a)]),
    lambda x, a, b, c: x.narrow(_dim(x, a), b % x.shape[_dim(x, a)], 1),
    lambda x, a, b, c: x.narrow(_dim(x, a), 1, 1 + b % (x.shape[_dim(x, a)] - 1)),
    lambda x, a, b, c: x[:: 1 + a % 3],
    lambda x, a, b, c: x.unsqueeze(a % (x.dim() + 1)),
    lambda x, a, b, c: x.unsqueeze(0).expand(2, *x.shape),
    lambda x, a, b, c: x.reshape(-1),
    lambda x, a, b, c: x.view(-1, 2),
    lambda x, a, b, c: x.diagonal(),
    lambda x, a, b, c: x.unfold(_dim(x, a), 2, 1 + b % 2),
    lambda x, a, b, c: x.squeeze(),
    lambda x, a, b, c: x.permute(*reversed(range(x.dim()))),
    lambda x, a, b, c: x.chunk(2, _dim(x, a))[0],
    lambda x, a, b, c: x.flatten(),
    lambda x, a, b, c: x.detach(),
    lambda x, a, b, c: x.movedim(0, -1),
)
WRITES: tuple[Callable[[torch.Tensor, torch.Tensor, float], Any], ...] = (
    lambda x, y, n: x.mul_(n),
    lambda x, y, n: x.add_(y),
    lambda x, y, n: x.copy_(y),
    lambda x, y, n: x.fill_(n),
    lambda x, y, n: x.zero_(),
    lambda x, y, n: x.relu_(),
    lambda x, y, n: x.masked_fill_(y > 0, n),
    lambda x, y, n: x.clamp_(min=n),
    lambda x, y, n: x.index_fill_(0, torch.zeros(1, dtype=torch.long, device=x.device), n),
    lambda x, y, n: x.index_put_((torch.zeros(2, dtype=torch.long, device=x.device),), y, accumulate=True),
    lambda x, y, n: x.sub_(y, alpha=2),
    lambda x, y, n: x.t_() if x.dim() == 2 else x.neg_(),
)
REDUCTIONS: tuple[Callable[[torch.Tensor, int, bool], torch.Tensor], ...] = (
    lambda x, d, keep: x.sum(d, keepdim=keep),
    lambda x, d, keep: x.mean(d, keepdim=keep),
    lambda x, d, keep: x.amax(d, keepdim=keep),
    lambda x, d, keep: x.amin(d, keepdim=keep),
    lambda x, d, keep: x.prod(d, keepdim=keep),
    lambda x, d, keep: x.logsumexp(d, keepdim=keep),
    lambda x, d, keep: x.var(d, keepdim=keep),
    lambda x, d, keep: x.argmax(d, keepdim=keep),
    lambda x, d, keep: x.all(d, keepdim=keep),
    lambda x, d, keep: x.max(d, keepdim=keep).values,
    lambda x, d, keep: x.softmax(d),
    lambda x, d, keep: x.log_softmax(d),
    lambda x, d, keep: x.cumsum(d),
    lambda x, d, keep: x.cumprod(d),
    lambda x, d, keep: x.sum(),
    lambda x, d, keep: torch.linalg.vector_norm(x, dim=d, keepdim=keep),
    lambda x, d, keep: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    lambda x, d, keep: x.sort(d, stable=True).values,
    lambda x, d, keep: x.flip(d),
    lambda x, d, keep: x.roll(1, d),
)
PAIRS: tuple[Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor], ...] = (
    lambda x, y, d: x @ y,
    lambda x, y, d: x @ y.mT,
    lambda x, y, d: torch.nn.functional.linear(x, y),
    lambda x, y, d: torch.cat([x, y], _dim(x, d)),
    lambda x, y, d: torch.stack([x, y], _dim(x, d)),
    lambda x, y, d: torch.where(x > y, x, y),
    lambda x, y, d: x.index_select(_dim(x, d), torch.arange(x.shape[_dim(x, d)], device=x.device).flip(0)),
    lambda x, y, d: x.gather(_dim(x, d), y.long().abs() % x.shape[_dim(x, d)]),
    lambda x, y, d: x.scatter_add(_dim(x, d), x.long().abs() % x.shape[_dim(x, d)], x),
    lambda x, y, d: torch.take(x, y.long().abs() % x.numel()),
    lambda x, y, d: torch.addcmul(x, y, y, value=0.5),
    lambda x, y, d: torch.lerp(x, y, 0.25),
    lambda x, y, d: torch.outer(x, y),
)
CASTS = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool)
FAMILIES = ("unary", "binary", "scalar", "view", "write", "write view", "reduction", "pair", "cast")


def overlaps(x: torch.Tensor) -> bool:
    """Whether two elements share a place of the memory."""
    places = {0}
    for size, stride in zip(x.shape, x.stride(), strict=True):
        places = {place + n * stride for place in places for n in range(size)}
    return len(places) < x.numel()


def take(step: Step, pool: Pool) -> None:
    """Run one step: a result joins the pool, a write changes one of it. Raises what PyTorch raises."""
    x, y = pool[step.first % len(pool)], pool[step.second % len(pool)]
    a, b, c = step.choices
    number = NUMBERS[a % len(NUMBERS)]

    def pick(several: Sequence[Any]) -> Any:
        return several[step.which % len(several)]

    if step.family == "unary":
        made = pick(overloads(Kind.ELEMENTWISE, "Tensor"))(x)
    elif step.family == "binary":
        made = pick(overloads(Kind.ELEMENTWISE, "Tensor", "Tensor"))(x, y)
    elif step.family == "scalar":
        made = pick(overloads(Kind.ELEMENTWISE, "Tensor", "number"))(x, number)
    elif step.family == "view":
        made = pick(VIEWS)(x, a, b, c)
    elif step.family in ("write", "write view"):
        target = VIEWS[b % len(VIEWS)](x, a, b, c) if step.family == "write view" else x
        if overlaps(target):
            raise ValueError("functionalization refuses this, or gets it wrong")
        pick(WRITES)(target, y, number)
        return
    elif step.family == "reduction":
        made = pick(REDUCTIONS)(x, _dim(x, a), bool(b % 2))
    elif step.family == "pair":
        made = pick(PAIRS)(x, y, a)
    else:
        made = x.to(pick(CASTS))
    if made.numel() > MOST_ELEMENTS:
        raise ValueError("larger than the programs are meant to be")
    pool.append(made)


@dataclass(frozen=True)
class Program:
    """Steps that eager PyTorch accepts on inputs of these shapes and types, and the seed of the inputs."""

    inputs: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    seed: int
    steps: tuple[Step, ...]

    def arguments(self) -> Pool:
        """The inputs, the same each time."""
        generator = torch.Generator().manual_seed(self.seed)
        found = []
        for shape, dtype in self.inputs:
            x = torch.randn(shape, generator=generator, dtype=torch.float64)
            found.append((x * 3 if not dtype.is_floating_point else x).to(dtype))
        return found

    def __call__(self, *arguments: torch.Tensor) -> Pool:
        pool = list(arguments)
        for step in self.steps:
            take(step, pool)
        return pool[len(arguments) :]


def accepted(inputs: Sequence[tuple[tuple[int, ...], torch.dtype]], seed: int, steps: Sequence[Step]) -> Program:
    """The program of those steps that PyTorch accepts, eagerly and while tracing; one that raises changes no tensor."""
    program = Program(tuple(inputs), seed, ())
    pool, kept = program.arguments(), []
    mode = FakeTensorMode()
    traced = [mode.from_tensor(x) for x in pool]
    for step in steps:
        try:
            take(step, pool)
        except REFUSED:
            continue
        try:
            with mode:
                take(step, traced)
        except REFUSED:
            # Eager takes what no backend can trace: the program ends before it, as its tensors are changed now.
            break
        kept.append(step)
    return Program(tuple(inputs), seed, tuple(kept))


REFUSED = (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError, ZeroDivisionError)

INDEX = st.integers(0, 63)
STEPS = st.builds(Step, st.sampled_from(FAMILIES), INDEX, INDEX, INDEX, st.tuples(INDEX, INDEX, INDEX))
INPUTS = st.lists(st.tuples(st.sampled_from(SHAPES), st.sampled_from(DTYPES)), min_size=2, max_size=4)


def programs(least: int = 5, most: int = 40) -> st.SearchStrategy[Program]:
    """Programs of so many steps, before those are left out that PyTorch refuses."""
    return st.builds(accepted, INPUTS, st.integers(0, 1000), st.lists(STEPS, min_size=least, max_size=most))
