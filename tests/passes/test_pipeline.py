"""The default pipeline as a whole: its order, and that programs mean after it what they meant before."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
import torch.nn.functional as F
from aten_interpreter import capture, evaluate, run, run_op, same_bits
from hypothesis import HealthCheck, given, settings

from neuron_compiler import dtypes
from neuron_compiler.ir import text
from neuron_compiler.ir.graph import GETITEM, DType, Graph, Input, Op, Operand, TupleType, Value
from neuron_compiler.ir.plan import Program
from neuron_compiler.passes.base import parse_pipeline, run_pipeline
from neuron_compiler.passes.constant_fold import ConstantFold
from neuron_compiler.passes.pipeline import DEFAULT, REGISTERED, with_evaluation


def optimised(program: Program) -> Program:
    """After the default passes, each of which was verified and reads back from its text."""

    def reads_back(*step: object) -> None:
        after = step[3]
        assert isinstance(after, Program)
        assert text.parse(str(after)) == after

    after, _ = run_pipeline(program, with_evaluation(evaluate), verify_level="every", observer=reads_back)
    return after


def test_the_order_and_the_names() -> None:
    names = [p.name for p in DEFAULT]
    assert names[:4] == ["canonicalize", "constant_fold", "cse", "dce"]
    assert names[4:] in ([], ["fuse", "tile"])
    assert {p.name: type(p) for p in DEFAULT}.items() <= REGISTERED.items()
    assert all(cls.name == name for name, cls in REGISTERED.items())


@pytest.mark.parametrize("name", REGISTERED)
def test_a_pass_is_a_frozen_dataclass_that_its_name_builds(name: str) -> None:
    (pass_,) = parse_pipeline(name)
    assert is_dataclass(pass_)
    assert pass_.__dataclass_params__.frozen
    assert all(hasattr(type(pass_), f.name) for f in fields(pass_)), "every option has a default"
    assert hash(pass_) == hash(parse_pipeline(name)[0])


def test_evaluation_is_given_to_constant_folding_alone() -> None:
    assert [p.evaluate for p in with_evaluation(evaluate) if isinstance(p, ConstantFold)] == [evaluate]
    assert [p.name for p in with_evaluation(evaluate)] == [p.name for p in DEFAULT]


class Block(torch.nn.Module):
    """A transformer block with a mask made on the way, biases on and off, and an unneeded result."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm2 = torch.nn.LayerNorm(16), torch.nn.LayerNorm(16)
        self.q, self.k, self.v = (torch.nn.Linear(16, 16, bias=b) for b in (True, False, True))
        self.out, self.up, self.down = torch.nn.Linear(16, 16), torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        y = self.norm(x)
        q, k, v = (p(y).view(batch, length, 4, -1).transpose(1, 2) for p in (self.q, self.k, self.v))
        mask = torch.full((length, length), -math.inf).triu(1)
        scores = torch.softmax(q @ k.transpose(-1, -2) / 2.0 + mask, -1)
        x = x + self.out((scores @ v).transpose(1, 2).reshape(batch, length, width))
        x = x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return x * 1 + torch.zeros(1) + torch.arange(width)


MODELS = {
    "transformer block": (Block, (2, 8, 16)),
    "mlp": (lambda: torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)), (4, 8)),
    "convolutions": (
        lambda: torch.nn.Sequential(
            torch.nn.Conv2d(2, 4, 3),
            torch.nn.BatchNorm2d(4),
            torch.nn.ReLU(),
            torch.nn.Flatten(),
            torch.nn.Linear(64, 3),
        ),
        (2, 2, 6, 6),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_forward_and_backward_means_the_same(name: str) -> None:
    make, shape = MODELS[name]
    torch.manual_seed(0)
    programs = capture(make(), torch.randn(shape, requires_grad=True))
    assert len(programs) == 2
    for program, inputs in programs:
        after = optimised(program)
        assert len(after.graph.ops) < len(program.graph.ops)
        torch.testing.assert_close(run(after, *inputs), run(program, *inputs))


def test_no_product_of_a_model_is_handed_a_transposed_weight() -> None:
    with torch.no_grad():
        ((program, _),) = capture(Block(), torch.randn(2, 8, 16))
    after = optimised(program).graph
    assert sum(op.kind == "aten.linear.default" for op in after.ops) == 6
    assert all(after.types[op.uses[0]].rank == 3 for op in after.ops if op.kind == "aten.linear.default")
    assert not [op for op in after.ops if op.kind in ("aten.mm.default", "aten.addmm.default")]
    weights = {i.name for i in after.inputs if i.type.rank == 2}
    assert not [op for op in after.ops if op.kind == "aten.permute.default" and set(op.uses) & weights]


# Random programs: each op is drawn, run by PyTorch to learn its type, and kept if PyTorch takes it.

NUMBERS = (0, 1, 2, 0.0, -0.0, 1.0, -1.5, True)
CASTS = (DType.F32, DType.BF16, DType.F64, DType.I64, DType.I32, DType.BOOL)
DTYPES = (torch.float32, torch.float32, torch.bfloat16, torch.int64, torch.bool)
SPECIAL = (0.0, -0.0, 1.0, -2.0, 3.0)

# What stands at each place of a call: x is one of the values so far, the rest is drawn to fit it.
CALLS = (
    *(
        f"{name}.default x"
        for name in ["clone", "alias", "detach", "neg", "abs", "t", "squeeze", "exp", "zeros_like", "ones_like"]
    ),
    *(f"{name}.Tensor x {other}" for name in ("add", "sub", "mul") for other in ("number", "value")),
    *("add.Tensor number x", "mul.Tensor number x", "div.Tensor x one", "add.Tensor x value alpha=alpha"),
    *("_to_copy.default x dtype=cast", "full_like.default x number", "full.default shape number"),
    *("view.default x reshape", "_unsafe_view.default x reshape", "unsqueeze.default x dim"),
    *("expand.default x widen", "expand.default x repeat", "permute.default x order", "transpose.int x dim dim"),
    *("slice.Tensor x dim zero end", "split.Tensor x one dim", "cat.default values dim", "copy.default x value"),
    *("where.self value x value", "mm.default x value", "mm.default x transposed", "addmm.default value x transposed"),
)


@st.composite
def programs(draw: st.DrawFn) -> tuple[Program, list[torch.Tensor]]:
    """A legal program over inputs with NaNs, infinities and both zeros."""
    choose = lambda options: options[draw(st.integers(0, len(options) - 1))]  # noqa: E731
    env: dict[str, torch.Tensor] = {}
    for index in range(choose((1, 2, 3))):
        shape = [choose((1, 2, 3)) for _ in range(choose((0, 1, 2, 2, 3)))]
        dtype = choose(DTYPES)
        special = (*SPECIAL, math.inf, math.nan) if dtype.is_floating_point else SPECIAL
        cycle = [choose(special) for _ in range(5)]
        values = [cycle[i % 5] for i in range(math.prod(shape))]
        env[f"x{index}"] = torch.tensor(values).reshape(shape).to(dtype)
    inputs = tuple(Input(name, dtypes.type_of(t)) for name, t in env.items())
    tensors = list(env.values())
    ops: list[Op] = []
    for index in range(choose(range(1, 13))):
        kind, *places = choose(CALLS).split()
        x = choose(list(env))
        operands = tuple(fitting(place, x, env, choose) for place in places if "=" not in place)
        keywords = (place.split("=") for place in places if "=" in place)
        attrs = tuple((name, fitting(place, x, env, choose)) for name, place in keywords)
        ops += new_ops(Op(f"v{index}", f"aten.{kind}", operands, TupleType(()), attrs), env)
    outputs = tuple(choose(list(env)) for _ in range(choose((1, 2, 3))))
    return Program(Graph("drawn", inputs, tuple(ops), outputs)), tensors


def fitting(place: str, x: str, env: dict[str, torch.Tensor], choose: Callable[[Sequence[Any]], Any]) -> Operand:
    """Something that may stand at a place of a call on x."""
    shape, rank, numel = tuple(env[x].shape), env[x].dim(), env[x].numel()
    match place:
        case "x":
            return Value(x)
        case "value":
            return Value(choose(list(env)))
        case "values":
            return tuple(Value(choose([x, *env])) for _ in range(choose((1, 1, 2))))
        case "transposed":
            return Value(choose([n for n, t in env.items() if t.dim() == 2 and n.startswith("v")] or list(env)))
        case "number":
            return choose(NUMBERS)
        case "cast":
            return choose(CASTS)
        case "alpha":
            return choose((0, 1, -2))
        case "dim":
            return choose(range(-rank, max(rank, 1)))
        case "end":
            return choose((1, 2, 2**63 - 1))
        case "shape":
            return shape
        case "reshape":
            n = choose([n for n in range(1, numel + 1) if numel % n == 0])
            return choose(((n, -1), (numel // n, n), (-1,), (1, numel), shape))
        case "widen":
            return tuple(3 if extent == 1 else -1 for extent in shape)
        case "repeat":
            return (2, *shape)
        case "order":
            left = list(range(rank))
            return tuple(left.pop(choose(range(len(left)))) for _ in range(rank))
    return {"zero": 0, "one": 1}[place]


def new_ops(draft: Op, env: dict[str, torch.Tensor]) -> list[Op]:
    """The op with its type, and a getitem of the last part if it gives several; nothing where PyTorch refuses it."""
    try:
        result = run_op(draft, env)
    except (RuntimeError, IndexError):
        return []
    name = draft.result
    if isinstance(result, torch.Tensor):
        env[name] = result
        return [replace(draft, type=dtypes.type_of(result))]
    env[f"{name}_last"] = result[-1]
    part = Op(f"{name}_last", GETITEM, (Value(name), len(result) - 1), dtypes.type_of(result[-1]))
    return [replace(draft, type=TupleType(tuple(map(dtypes.type_of, result)))), part]


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(programs())
def test_any_program_means_the_same(drawn: tuple[Program, list[torch.Tensor]]) -> None:
    program, inputs = drawn
    after = optimised(program)
    assert optimised(after).graph == after.graph
    assert same_bits(run(program, *inputs), run(after, *inputs))
