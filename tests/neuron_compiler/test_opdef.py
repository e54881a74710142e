"""The op record: one registration a name, support decided by call, and work in closed form."""

from __future__ import annotations

import inspect

import pytest
import torch

from neuron_compiler.ir.graph import GETITEM, DType, Graph, Input, Op, TensorType, TupleType, Type, Value
from neuron_compiler.opdef import (
    DEFAULT_WORK,
    Call,
    Kind,
    Registry,
    Work,
    kind_of,
    no_work,
    op,
    per_element,
    per_input_element,
    why_unsupported,
    work_of,
    work_of_graph,
)

aten = torch.ops.aten
X = TensorType((4, 8), DType.F32)
W = TensorType((8, 16), DType.BF16)
Y = TensorType((4, 16), DType.F32)


def matmul_work(call: Call) -> Work:
    (m, k), (_, n) = call.type(0).shape, call.type(1).shape
    return Work(flops=2 * m * k * n)


@pytest.fixture
def registry() -> Registry:
    """A few ops of each sort, in a registry of their own."""
    made = Registry()

    def float_only(call: Call) -> str | None:
        return None if call.type(0).dtype.is_floating else "integer operand"

    @op(
        aten.exp.default,
        aten.tanh.default,
        kind=Kind.ELEMENTWISE,
        work=per_element(flops=2, transcendental=1),
        when=float_only,
        registry=made,
    )
    def unary(x: object) -> object:
        return x

    @op(aten.sum.dim_IntList, kind=Kind.REDUCTION, registry=made)
    def total(x: object, dim: object = None, keepdim: bool = False, *, dtype: object = None, out: object) -> object:
        return x

    @op(aten.mm.default, kind=Kind.CONTRACTION, work=matmul_work, registry=made)
    def mm(a: object, b: object) -> object:
        return a

    @op(aten.t.default, kind=Kind.VIEW, registry=made)
    def t(x: object) -> object:
        return x

    return made


def call(kind: str, result: Type, *operands: TensorType) -> Call:
    names = [f"v{i}" for i in range(len(operands))]
    return Call(Op("r", kind, tuple(map(Value, names)), result), dict(zip(names, operands, strict=True)))


def test_record_holds_what_was_declared(registry: Registry) -> None:
    record = registry["aten.exp.default"]
    assert record.name == "aten.exp.default"
    assert record.kind is Kind.ELEMENTWISE
    assert record.lower is registry["aten.tanh.default"].lower
    assert record.lower("x") == "x"
    assert not record.wants_out
    assert registry["aten.sum.dim_IntList"].wants_out
    line = inspect.getsourcelines(record.lower)[1]
    assert record.source == f"{__file__}:{line}"


def test_lookup(registry: Registry) -> None:
    assert registry.names() == (
        "aten.exp.default",
        "aten.mm.default",
        "aten.sum.dim_IntList",
        "aten.t.default",
        "aten.tanh.default",
    )
    assert "aten.mm.default" in registry
    assert "aten.mm.out" not in registry
    assert registry.get("aten.mm.out") is None
    with pytest.raises(KeyError):
        registry["aten.mm.out"]


def test_second_registration_names_both_places(registry: Registry) -> None:
    first = registry["aten.mm.default"].source

    def again(a: object, b: object) -> object:
        return a

    with pytest.raises(ValueError, match="registered twice") as raised:
        op(aten.mm.default, kind=Kind.CONTRACTION, work=no_work, registry=registry)(again)
    second = f"{__file__}:{again.__code__.co_firstlineno}"
    assert str(raised.value) == f"aten.mm.default is registered twice: at {first} and at {second}"
    assert registry["aten.mm.default"].source == first


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind not in DEFAULT_WORK])
def test_kind_without_default_must_state_its_work(kind: Kind) -> None:
    with pytest.raises(ValueError, match=f"aten.mm.default: {kind} has no default work; pass work="):
        op(aten.mm.default, kind=kind, registry=Registry())


def test_kind_of(registry: Registry) -> None:
    assert kind_of(call("aten.mm.default", Y, X, W).op, registry) is Kind.CONTRACTION
    assert kind_of(call("aten.unknown.default", Y, X).op, registry) is Kind.OTHER
    assert kind_of(Op("r", GETITEM, (Value("t"), 0), X), registry) is Kind.VIEW


def test_support_is_decided_by_call(registry: Registry) -> None:
    integers = TensorType((4, 8), DType.I64)
    assert why_unsupported(call("aten.exp.default", X, X), registry) is None
    assert why_unsupported(call("aten.exp.default", integers, integers), registry) == "integer operand"
    assert why_unsupported(call("aten.t.default", integers, integers), registry) is None
    assert why_unsupported(call("aten.unknown.default", X, X), registry) == "no lowering rule"
    assert why_unsupported(Call(Op("r", GETITEM, (Value("t"), 0), X), {}), registry) is None


def test_work_of_a_matmul_is_exactly_2mkn(registry: Registry) -> None:
    one = call("aten.mm.default", Y, X, W)
    moved = 4 * 8 * 4 + 8 * 16 * 2 + 4 * 16 * 4
    assert work_of(one.op, one.types, registry) == Work(flops=2 * 4 * 8 * 16, bytes=moved)


def test_work_of_an_elementwise_op_counts_results(registry: Registry) -> None:
    row = TensorType((8,), DType.F32)
    one = call("aten.exp.default", X, row)
    assert work_of(one.op, one.types, registry) == Work(flops=64, transcendentals=32, bytes=8 * 4 + 32 * 4)


def test_work_of_a_reduction_counts_operands(registry: Registry) -> None:
    one = call("aten.sum.dim_IntList", TensorType((4,), DType.F32), X)
    assert work_of(one.op, one.types, registry) == Work(flops=32, bytes=32 * 4 + 4 * 4)


def test_a_view_and_a_getitem_move_nothing(registry: Registry) -> None:
    one = call("aten.t.default", TensorType((8, 4), DType.F32), X)
    assert work_of(one.op, one.types, registry) == Work()
    assert work_of(Op("r", GETITEM, (Value("t"), 0), X), {}, registry) == Work()


def test_an_operand_read_twice_is_moved_once(registry: Registry) -> None:
    square = TensorType((8, 8), DType.F32)
    one = Op("r", "aten.mm.default", (Value("x"), Value("x")), square)
    assert work_of(one, {"x": square}, registry).bytes == 2 * 8 * 8 * 4


def test_work_of_a_graph_is_the_sum_of_its_ops() -> None:
    one = Op("r0", GETITEM, (Value("x"), 0), X)
    graph = Graph("g", (Input("x", X),), (one,), ("r0",))
    assert work_of_graph(graph) == Work()
    assert Work(1, 2, 3) + Work(10, 20, 30) == Work(11, 22, 33)


def test_per_input_element_without_operands_counts_the_result() -> None:
    made = Call(Op("r", "aten.arange.default", (5,), TensorType((5,), DType.I64)), {})
    assert per_input_element(flops=3)(made) == Work(flops=15)


def test_call_gives_types_of_operands_and_results() -> None:
    split = Op("r", "aten.topk.default", (Value("x"), 2), TupleType((X, None, Y)))
    one = Call(split, {"x": X})
    assert one.type(0) == X
    assert one.operand_types == (X,)
    assert one.result_types == (X, Y)
    with pytest.raises(TypeError, match=r"operand 1 of aten\.topk\.default is 2, not a tensor"):
        one.type(1)


def test_type_of_a_tuple_is_an_error() -> None:
    one = Call(Op("r", "aten.exp.default", (Value("t"),), X), {"t": TupleType((X, Y))})
    with pytest.raises(TypeError, match=r"operand 0 of aten\.exp\.default is a tuple"):
        one.type(0)
