"""Fusion of random graphs: every op in one group, no cycle, and a reason for every edge between two groups."""

from __future__ import annotations

import networkx as nx
from families import registry
from fused import FUSE
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_compiler.ir import text, verify
from neuron_compiler.ir.graph import DType, Graph, Input, Op, TensorType, TupleType, Value
from neuron_compiler.ir.plan import Program
from neuron_compiler.passes.fuse import Fuse

N = 6
MATRIX, ROW, FLAT = (N, N), (N, 1), (N * N,)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Straight-line programs over [6,6] matrices, their rows, transposes, reshapes, products and tuples."""
    shapes: dict[str, tuple[int, ...]] = {"x": MATRIX, "y": MATRIX, "r": ROW}
    ops: list[Op] = []

    def add(kind: str, operands: tuple[object, ...], shape: tuple[int, ...], **attrs: object) -> str:
        name = f"v{len(ops)}"
        ops.append(Op(name, kind, operands, TensorType(shape, DType.F32), tuple(sorted(attrs.items()))))  # type: ignore[arg-type]
        shapes[name] = shape
        return name

    def some(shape: tuple[int, ...]) -> Value:
        return Value(draw(st.sampled_from([n for n, s in shapes.items() if s == shape])))

    for _ in range(draw(st.integers(1, 24))):
        step = draw(st.sampled_from(STEPS))
        if step == "unary":
            add("aten.exp.default", (some(MATRIX),), MATRIX)
        elif step == "binary":
            add("aten.add.Tensor", (some(MATRIX), some(MATRIX)), MATRIX)
        elif step == "scale":
            add("aten.mul.Tensor", (some(MATRIX), some(ROW)), MATRIX)
        elif step == "row":
            add("aten.rsqrt.default", (some(ROW),), ROW)
        elif step in ("sum", "mean"):
            axis = draw(st.sampled_from((-1, 0)))
            kind = "aten.sum.dim_IntList" if step == "sum" else "aten.mean.dim"
            name = add(kind, (some(MATRIX), (axis,), True), ROW if axis == -1 else (1, N))
            if axis == 0:
                add("aten.permute.default", (Value(name), (1, 0)), ROW)
        elif step == "softmax":
            add("aten._softmax.default", (some(MATRIX), -1, False), MATRIX)
        elif step == "transpose":
            add("aten.permute.default", (some(MATRIX), (1, 0)), MATRIX)
        elif step == "flat":
            name = add("aten.view.default", (some(MATRIX), FLAT), FLAT)
            name = add("aten.neg.default", (Value(name),), FLAT)
            add("aten.view.default", (Value(name), MATRIX), MATRIX)
        elif step == "mm":
            add("aten.mm.default", (some(MATRIX), some(MATRIX)), MATRIX)
        elif step == "sort":
            name = f"v{len(ops)}"
            both = TupleType((TensorType(MATRIX, DType.F32), TensorType(MATRIX, DType.I64)))
            ops.append(Op(name, "aten.sort.default", (some(MATRIX),), both))
            add("getitem", (Value(name), 0), MATRIX)
        elif step == "full":
            add("aten.full.default", (MATRIX, 1.0), MATRIX)
        elif step == "alone":
            add("aten.cumsum.default", (some(MATRIX), 0), MATRIX)
    results = [op.result for op in ops if isinstance(op.type, TensorType)]
    outputs = draw(st.lists(st.sampled_from(results), min_size=1, max_size=3))
    inputs = tuple(Input(n, TensorType(shapes[n], DType.F32)) for n in ("x", "y", "r"))
    return Graph("random", inputs, tuple(ops), tuple(outputs))


STEPS = (
    "unary", "binary", "scale", "row", "sum", "mean", "softmax", "transpose", "flat", "mm", "sort", "full", "alone",
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(graphs(), st.sampled_from((2, 5, 64)))
def test_any_graph_is_partitioned_without_cycles(graph: Graph, max_ops: int):
    fuse = Fuse(max_ops=max_ops, registry=registry())
    program = fuse(Program(graph))
    verify.program(program, when="fuse")
    # A tuple and its elements are together whatever the limit.
    assert all(len(g.ops) <= max(max_ops, 2) for g in program.plan.groups)
    assert text.format(fuse(Program(graph))) == text.format(program)
    assert fuse(program) is program


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_every_edge_between_groups_has_one_barrier_with_a_reason(graph: Graph):
    program = FUSE(Program(graph))
    home = {name: g.name for g in program.plan.groups for name in g.ops}
    edges = {
        (home[use], g.name, use)
        for g in program.plan.groups
        for name in g.ops
        for use in graph.defs[name].uses
        if use in home and home[use] != g.name
    }
    told = [(b.producer, b.consumer, b.value) for b in program.plan.barriers]
    assert sorted(told) == sorted(edges)
    assert all(b.reason for b in program.plan.barriers)


@settings(max_examples=40, deadline=None)
@given(graphs())
def test_a_reported_cycle_is_one(graph: Graph):
    program = FUSE(Program(graph))
    between = nx.DiGraph((b.producer, b.consumer) for b in program.plan.barriers)
    for b in program.plan.barriers:
        if b.reason.startswith("would form a cycle through "):
            through = b.reason.rsplit(" ", 1)[1]
            assert nx.has_path(between, b.producer, through)
            assert nx.has_path(between, through, b.consumer)
