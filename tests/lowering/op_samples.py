"""Real calls of ATen overloads, with ATen's answers, taken from PyTorch's own op database.

Each ``OpInfo`` is run on the CPU, forward and backward, under a dispatch mode that decomposes what the capture
decomposes and keeps a copy of every other call. In-place calls are kept as calls of their functional overload.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import op_reach
import option_calls
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from neuron_compiler.dtypes import TORCH
from neuron_compiler.lowering.decompositions import table
from neuron_compiler.opdef import REGISTRY

DTYPES = (torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.float64, torch.complex64)
MORE_DTYPES = (*DTYPES, torch.float16, torch.int32, torch.uint8, torch.int8, torch.complex128)
COUNT = 8  # calls of an overload, before those that set an option
FEWEST, TELLING = 5, 30  # elements of a call that can, and that do show what an option does
LARGEST = 20_000  # elements of a tensor in a kept call: the rest only costs time


@dataclass(frozen=True)
class Sample:
    """One call of ``overload`` and what ATen answered; tensors are copies of their own."""

    overload: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    origin: str = ""

    @property
    def key(self) -> str:
        """What makes two calls equal for a test: everything but the elements of tensors."""
        return f"{self.overload}{_described((self.args, sorted(self.kwargs.items())))}"

    def __str__(self) -> str:
        return f"{self.key} from {self.origin}"


def _described(x: Any) -> str:
    if isinstance(x, torch.Tensor):
        return f"{str(x.dtype)[6:]}{list(x.shape)}"
    if isinstance(x, list | tuple):
        return "(" + ", ".join(map(_described, x)) + ")"
    return repr(x)


def _supported(x: Any) -> bool:
    if not isinstance(x, torch.Tensor):
        return not isinstance(x, torch.Generator)
    return x.layout is torch.strided and not x.is_quantized and x.dtype in TORCH and x.numel() <= LARGEST


def _copy(x: Any) -> Any:
    return x.detach().clone() if isinstance(x, torch.Tensor) else x


@cache
def functional(overload: Any) -> Any:
    """The overload that returns what this one writes in place; itself where it writes nothing; else None."""
    if not overload._schema.is_mutable:
        return overload
    namespace, name = overload._schema.name.split("::")
    if namespace != "aten" or not name.endswith("_") or name.endswith("__"):
        return None
    packet = getattr(torch.ops.aten, name[:-1], None)
    return None if packet is None else getattr(packet, overload._overloadname, None)


class Recorder(TorchDispatchMode):
    """Keeps the calls of registered overloads that happen while it is active."""

    def __init__(self, origin: str, per_overload: int) -> None:
        super().__init__()
        self.origin, self.per_overload = origin, per_overload
        self.samples: dict[str, dict[str, Sample]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = str(func)
        if name not in REGISTRY:
            if (decomposition := table().get(func)) is not None:
                with self:
                    result = decomposition(*args, **kwargs)
                if result is not NotImplemented:
                    return result
            elif func._can_decompose() and torch._C._dispatch_has_kernel_for_dispatch_key(
                func.name(), "CompositeImplicitAutograd"
            ):
                with self:
                    return func.decompose(*args, **kwargs)
        target = functional(func)
        if target is None or str(target) not in REGISTRY or not all(map(_supported, tree_leaves((args, kwargs)))):
            return func(*args, **kwargs)
        kept = self.samples.setdefault(str(target), {})
        extra = {"input_stride": tuple(args[0].stride())} if str(target) in STRIDED else {}
        if extra and not _is_whole_storage(args[0]):
            return func(*args, **kwargs)
        copied_args, copied_kwargs = tree_map(_copy, (tuple(args), kwargs))
        result = func(*args, **kwargs)
        if len(kept) < self.per_overload and all(map(_supported, tree_leaves(result))):
            sample = Sample(target, copied_args, {**copied_kwargs, **extra}, tree_map(_copy, result), self.origin)
            kept.setdefault(sample.key, sample)
        return result


STRIDED = ("aten.as_strided.default", "aten.as_strided_copy.default", "aten.as_strided_scatter.default")
"""Ops that read memory by position: capture hands their rules the strides of the operand."""


def _is_whole_storage(x: torch.Tensor) -> bool:
    """Whether a row-major copy of the elements holds all that the storage does."""
    return x.storage_offset() == 0 and x.untyped_storage().nbytes() == x.numel() * x.element_size()


@dataclass(frozen=True)
class Source:
    """How much of the op database is run."""

    dtypes: tuple[torch.dtype, ...] = DTYPES
    samples: int = 4
    look_at: int = 24
    per_overload: int = 24
    reference: bool = False
    _memo: dict[str, dict[str, list[Sample]]] = field(default_factory=dict, compare=False, repr=False)

    def of(self, overload: str) -> list[Sample]:
        """Calls of an overload: from the OpInfos named like it, or else from the first few that reach it."""
        base = overload.split(".")[1]
        related = [info for info in op_db if _is_related(info, base)]
        if not any(overload in self.recorded(info) for info in related):
            names = op_reach.known().get(overload)
            reached = [i for i in op_db if i.full_name in names] if names is not None else op_db
            related = [info for info in reached if overload in GLANCE.recorded(info)][: op_reach.AT_MOST]
        found: dict[str, Sample] = {}
        for info in related:
            found.update((s.key, s) for source in (self, GLANCE) for s in source.recorded(info).get(overload, ()))
        return list(found.values())

    def recorded(self, info: Any) -> dict[str, list[Sample]]:
        """Samples by overload that a record of the database leads to."""
        name = info.full_name
        if name not in self._memo:
            recorder = Recorder(name, self.per_overload)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for dtype in self.dtypes:
                    if dtype in info.dtypes:
                        self._run(info, dtype, recorder)
            self._memo[name] = {overload: list(calls.values()) for overload, calls in recorder.samples.items()}
        return self._memo[name]

    def _run(self, info: Any, dtype: torch.dtype, recorder: Recorder) -> None:
        gradient = (
            info.supports_autograd and dtype in info.backward_dtypes and (dtype.is_floating_point or dtype.is_complex)
        )
        torch.manual_seed(0)
        make = info.reference_inputs if self.reference and hasattr(info, "reference_inputs") else info.sample_inputs
        try:
            inputs = _spread(
                list(itertools.islice(make("cpu", dtype, requires_grad=gradient), self.look_at)), self.samples
            )
        except (RuntimeError, ValueError, TypeError, AssertionError):
            return  # the database itself has no samples of this dtype
        for sample in inputs:
            # A sample may be meant to raise or need another device: what was recorded until then counts.
            try:
                with recorder:
                    _forward_and_backward(info, sample)
            except (RuntimeError, ValueError, TypeError, AssertionError, NotImplementedError, IndexError):
                continue


def _is_related(info: Any, base: str) -> bool:
    stem = base.removeprefix("_").removesuffix("_backward").removesuffix("_copy")
    names = {info.name.split(".")[-1], info.aten_name, *(alias.name.split(".")[-1] for alias in info.aliases)}
    return bool({base, stem, base.removeprefix("special_")} & names)


def _spread(items: Sequence[Any], count: int) -> list[Any]:
    """``count`` of the items, evenly from the first to the last."""
    if len(items) <= count:
        return list(items)
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def _forward_and_backward(info: Any, sample: Any) -> None:
    result = info(sample.input, *sample.args, **sample.kwargs)
    roots = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor) and x.requires_grad]
    if roots:
        torch.autograd.backward(roots, [torch.ones_like(x) for x in roots])


GLANCE = Source(dtypes=(torch.float32, torch.int64), samples=2, look_at=4)
"""Enough to find which OpInfos reach an overload."""
FAST = Source()
THOROUGH = Source(dtypes=MORE_DTYPES, samples=24, look_at=64, per_overload=64, reference=True)


def of_hand(overload: str) -> Iterator[Sample]:
    """Samples written by hand, of overloads that no OpInfo reaches."""
    from hand_samples import CALLS

    for make in CALLS.get(overload, ()):
        yield made(overload, *make)


def made(overload: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sample:
    """A sample from arguments: ATen is asked for the answer."""
    target = resolve(overload)
    result = tree_map(_copy, target(*args, **kwargs))
    extra = {"input_stride": tuple(args[0].stride())} if overload in STRIDED else {}
    return Sample(target, args, {**kwargs, **extra}, result, "hand")


def resolve(name: str) -> Callable[..., Any]:
    """``aten.add.Tensor`` as the object in ``torch.ops``."""
    namespace, packet, overload = name.split(".")
    found: Callable[..., Any] = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    return found


def samples(overload: str, source: Source, count: int) -> list[Sample]:
    """About ``count`` calls of an overload, spread over element types and arguments."""
    hand = list(of_hand(overload))
    by_dtype: dict[str, list[Sample]] = {}
    for sample in source.of(overload):
        leaves = [x for x in tree_leaves((sample.args, sample.kwargs)) if isinstance(x, torch.Tensor)]
        by_dtype.setdefault(str(leaves[0].dtype) if leaves else "", []).append(sample)
    share = -(-count // max(1, len(by_dtype)))
    chosen = []
    for group in by_dtype.values():
        spread = _spread(group, share)
        chosen += spread if any(map(_tells, spread)) else [*spread, *_by_telling(group)[:1]]
    return hand + chosen


def _elements(sample: Sample) -> int:
    leaves = tree_leaves((sample.args, sample.kwargs, sample.result))
    return sum(x.numel() for x in leaves if isinstance(x, torch.Tensor))


def _tells(sample: Sample) -> bool:
    """Whether a call has elements enough for what it computes, and for its options, to show."""
    operands = [x for x in tree_leaves((sample.args, sample.kwargs)) if isinstance(x, torch.Tensor)]
    return _elements(sample) >= FEWEST and all(x.numel() for x in operands)


def _by_telling(calls: Sequence[Sample]) -> list[Sample]:
    return sorted(filter(_tells, calls), key=lambda sample: abs(_elements(sample) - TELLING))


def setting_options(overload: str, calls: Sequence[Sample]) -> Iterator[Sample]:
    """A call for each option that none of these sets, made from one of them, where ATen takes it."""
    bases = _by_telling(calls)
    if overload in STRIDED or not bases:
        return
    for tries in option_calls.calls(resolve(overload), [(base.args, base.kwargs) for base in bases]):
        for args, kwargs in tries:
            try:
                sample = made(overload, args, kwargs)
            except option_calls.REFUSALS:
                continue
            if all(map(_supported, tree_leaves(sample.result))):
                yield sample
                break


_EDGES_FLOAT = (0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1.0, -1.0, 0.5, -0.5, 2.5, -2.5, 3.7, -3.7, 1e-3)
_EDGES_INTEGER = (0, 1, -1, 2, -2, 3, -3, 5, 7, -7, 8, 40)


def edges(dtype: torch.dtype) -> torch.Tensor:
    """Values at which functions have their corners, in one dimension."""
    if dtype is torch.bool:
        return torch.tensor([False, True])
    if dtype.is_complex:
        parts = torch.tensor([0.0, 1.0, -2.5, 0.3], dtype=dtype.to_real())
        return torch.complex(*(p.flatten() for p in torch.meshgrid(parts, parts, indexing="ij")))
    if dtype.is_floating_point:
        info = torch.finfo(dtype)
        return torch.tensor([*_EDGES_FLOAT, info.max, info.min, 4 * info.tiny], dtype=torch.float64).to(dtype)
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    return torch.tensor([v for v in _EDGES_INTEGER if v >= low] + [low, high, high - 1], dtype=dtype)


def at_edges(sample: Sample) -> Sample | None:
    """The call with every combination of edge values in its tensors; None where ATen does not take it."""
    tensors = [x for x in tree_leaves((sample.args, sample.kwargs)) if isinstance(x, torch.Tensor)]
    if not tensors or len(tensors) > 3:
        return None
    values = [edges(t.dtype) for t in tensors]
    places = torch.meshgrid([torch.arange(len(v)) for v in values], indexing="ij")
    grids = iter([v[place.flatten()] for v, place in zip(values, places, strict=True)])
    args, kwargs = tree_map(lambda x: next(grids) if isinstance(x, torch.Tensor) else x, (sample.args, sample.kwargs))
    try:
        return Sample(sample.overload, args, kwargs, tree_map(_copy, sample.overload(*args, **kwargs)), "edge values")
    except RuntimeError:
        return None
