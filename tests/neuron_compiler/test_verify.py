"""The verifier: each invariant is broken once, and the whole message is pinned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
from expecttest import assert_expected_inline

from neuron_compiler.errors import VerifyError
from neuron_compiler.ir import text, verify
from neuron_compiler.ir.graph import Constant, DType, Input, TensorType, Value
from neuron_compiler.ir.plan import Barrier, Group, GroupKind, Program, Tile

GOOD = text.parse("""
    graph g(%x: f32[4,8], %w: f32[16,8]) target=trn2 {
      const %half: f32[2] = [0.5, 0.5]
      %0 = aten.exp.default(%x) : f32[4,8]  # model.py:3
      %1 = aten.max.dim(%0, 1) : (f32[4], i64[4])  # model.py:4
      %2 = getitem(%1, 0) : f32[4]
      %3 = aten.linear.default(%0, %w) : f32[4,16]  # model.py:5
      %4 = aten.view.default(%3, [64]) : f32[64]  # model.py:6
      return %2, %4, %half, %x
    }
    plan {
      group g0 elementwise (%0)
      group g1 reduction (%1, %2)
      group g2 matmul (%3, %4)
      barrier g0 -> g1 %0 "read by two"
      tile g0 partition=4 free=8 contraction=0 space=[4, 8, 0] batch=1 sbuf_bytes=256 psum_bytes=0
      tile g2 partition=4 free=16 contraction=8 space=[4, 16, 8] batch=1 sbuf_bytes=896 psum_bytes=256
    }
    """)


BRANCHES = """
    graph g(%p: bool[], %x: f32[4]) {
      %0 = higher_order.cond(%p, graph then(%a: f32[4]) {
        %0 = aten.exp.default(%a) : f32[4]
        return %0
      }, graph otherwise(%a: f32[4]) {
        return %a
      }, [%x]) : (f32[4])
      %1 = getitem(%0, 0) : f32[4]
      return %1
    }
    """


def test_a_subgraph_is_closed_and_holds_every_invariant() -> None:
    verify.program(text.parse(BRANCHES))
    with pytest.raises(VerifyError, match="in then of %0: %x is used and never defined"):
        verify.program(text.parse(BRANCHES.replace("aten.exp.default(%a)", "aten.exp.default(%x)")))
    with pytest.raises(VerifyError, match="in otherwise of %0: %b is returned and never defined"):
        verify.program(text.parse(BRANCHES.replace("return %a", "return %b")))


def test_kinds_of_a_subgraph_are_known_too() -> None:
    graph = text.parse(BRANCHES).graph
    verify.kinds_are_known(graph, {"higher_order.cond", "aten.exp.default"}.__contains__)
    with pytest.raises(VerifyError, match=r"aten\.exp\.default is no known op"):
        verify.kinds_are_known(graph, {"higher_order.cond"}.__contains__)


def test_a_good_program_passes() -> None:
    verify.program(GOOD)
    verify.program(GOOD.with_graph(GOOD.graph))
    verify.program(text.parse("graph empty() { return }"))


def message(program: Program, when: str = "") -> str:
    with pytest.raises(VerifyError) as raised:
        verify.program(program, when=when)
    return str(raised.value)


def with_op(index: int, **changes: object) -> Program:
    """GOOD without its plan and with one op changed."""
    ops = list(GOOD.graph.ops)
    ops[index] = replace(ops[index], **changes)  # type: ignore[arg-type]
    return GOOD.with_graph(replace(GOOD.graph, ops=tuple(ops)))


def with_graph(**changes: object) -> Program:
    return GOOD.with_graph(replace(GOOD.graph, **changes))  # type: ignore[arg-type]


def test_the_whole_error(tmp_path: Path) -> None:
    source = tmp_path / "model.py"
    source.write_text("def forward(x):\n    y = x.exp()\n    return y + x\n")
    lines = [f"%{i} = aten.exp.default(%x) : f32[4]" for i in range(20)]
    lines[9] = f"%9 = aten.add.Tensor(%12, %x, alpha=2) : f32[4]  # {source}:3"
    program = text.parse("graph deep(%x: f32[4]) {\n" + "\n".join(lines) + "\nreturn %19 }")
    with pytest.raises(VerifyError) as raised:
        verify.program(program, when="pass 2 'cse'")
    assert_expected_inline(
        str(raised.value).replace(str(tmp_path), "."),
        """\
%12 is used before it is defined
  op: %9 = aten.add.Tensor(%12, %x, alpha=2) : f32[4]
  at: ./model.py:3
  in: pass 2 'cse'
  try: a pass that moves or removes ops must keep their users in step""",
    )
    assert_expected_inline(
        "\n".join(raised.value.__notes__).replace(str(tmp_path), "."),
        """\
op 9 of 20 of graph deep:
  ... 4 more
  %4 = aten.exp.default(%x) : f32[4]
  %5 = aten.exp.default(%x) : f32[4]
  %6 = aten.exp.default(%x) : f32[4]
  %7 = aten.exp.default(%x) : f32[4]
  %8 = aten.exp.default(%x) : f32[4]
> %9 = aten.add.Tensor(%12, %x, alpha=2) : f32[4]  # ./model.py:3
  %10 = aten.exp.default(%x) : f32[4]
  %11 = aten.exp.default(%x) : f32[4]
  %12 = aten.exp.default(%x) : f32[4]
  %13 = aten.exp.default(%x) : f32[4]
  %14 = aten.exp.default(%x) : f32[4]
  ... 6 more
./model.py:3
    return y + x""",
    )


def test_a_fault_in_the_plan_shows_the_plan() -> None:
    program = GOOD.with_plan(groups=GOOD.plan.groups[::-1], barriers=(), tiles={})
    with pytest.raises(VerifyError) as raised:
        verify.program(program)
    assert_expected_inline(
        str(raised.value) + "\n" + "\n".join(raised.value.__notes__),
        """\
group g2 stands before group g0, which it reads
  at: model.py:5
the plan:
plan {
> group g2 matmul (%3, %4)
  group g1 reduction (%1, %2)
  group g0 elementwise (%0)
}""",
    )


GETITEM_OP = "\n  op: %2 = getitem"
GRAPH_FAULTS: dict[str, tuple[Callable[[], Program], str]] = {
    "an input twice": (
        lambda: with_graph(inputs=GOOD.graph.inputs * 2),
        "%x is defined twice, as an input and as an input",
    ),
    "a constant like an input": (
        lambda: with_graph(constants=(Constant("x", TensorType((), DType.U8), b"\0"),)),
        "%x is defined twice, as an input and as a constant",
    ),
    "a result twice": (
        lambda: with_op(3, result="0"),
        "%0 is defined twice; it is already a result\n"
        "  op: %0 = aten.linear.default(%0, %w) : f32[4,16]\n  at: model.py:5",
    ),
    "a result like an input": (
        lambda: with_op(4, result="w"),
        "%w is defined twice; it is already an input\n"
        "  op: %w = aten.view.default(%3, [64]) : f32[64]\n  at: model.py:6",
    ),
    "a negative extent": (
        lambda: with_op(0, type=TensorType((4, -1), DType.F32)),
        "the type of %0 has the extent -1\n  op: %0 = aten.exp.default(%x) : f32[4,-1]\n  at: model.py:3",
    ),
    "an input's type": (
        lambda: with_graph(inputs=(Input("x", TensorType((True,), DType.F32)),)),
        "the type of input %x has the extent True",
    ),
    "a foreign operand": (
        lambda: with_op(4, operands=(Value("3"), [64])),
        "%4 has an operand of type list\n  op: "
        "Op(result='4', kind='aten.view.default', operands=(Value(name='3'), [64]), "
        "type=TensorType(shape=(64,), dtype=DType.F32), attrs=(), loc='model.py:6')\n  at: model.py:6",
    ),
    "attributes out of order": (
        lambda: with_op(0, attrs=(("b", 1), ("a", 2))),
        "%0 has attributes ['b', 'a'], which are not sorted or not distinct\n"
        "  op: %0 = aten.exp.default(%x, b=1, a=2) : f32[4,8]\n  at: model.py:3",
    ),
    "an undefined value": (
        lambda: with_op(0, operands=((None, Value("nowhere")),)),
        "%nowhere is used and never defined\n"
        "  op: %0 = aten.exp.default([none, %nowhere]) : f32[4,8]\n  at: model.py:3\n"
        "  try: a pass that moves or removes ops must keep their users in step",
    ),
    "a value that uses itself": (
        lambda: with_op(0, attrs=(("like", Value("0")),)),
        "%0 is used before it is defined\n  op: %0 = aten.exp.default(%x, like=%0) : f32[4,8]\n  at: model.py:3\n"
        "  try: a pass that moves or removes ops must keep their users in step",
    ),
    "a tuple read whole": (
        lambda: with_op(2, kind="aten.neg.default", operands=(Value("1"),)),
        "%1 is a tuple (f32[4], i64[4])\n  op: %2 = aten.neg.default(%1) : f32[4]\n  try: take it apart with getitem",
    ),
    "getitem of a tensor": (
        lambda: with_op(2, operands=(Value("0"), 0)),
        f"getitem reads %0, which is one tensor f32[4,8]{GETITEM_OP}(%0, 0) : f32[4]",
    ),
    "getitem out of range": (
        lambda: with_op(2, operands=(Value("1"), 2)),
        f"getitem reads element 2 of %1, which has 2{GETITEM_OP}(%1, 2) : f32[4]",
    ),
    "getitem by no index": (
        lambda: with_op(2, operands=(Value("1"), True)),
        f"getitem takes a tuple and a whole number from 0{GETITEM_OP}(%1, true) : f32[4]",
    ),
    "getitem of nothing": (
        lambda: text.parse(
            "graph g(%x: f32[4]) { %0 = a.b.c(%x) : (none, f32[4]) %2 = getitem(%0, 0) : f32[4] return %2 }"
        ),
        f"getitem reads element 0 of %0, where the op returns no tensor{GETITEM_OP}(%0, 0) : f32[4]",
    ),
    "getitem of another type": (
        lambda: with_op(2, operands=(Value("1"), 1)),
        f"element 1 of %1 is i64[4], not f32[4]{GETITEM_OP}(%1, 1) : f32[4]",
    ),
    "an undefined output": (lambda: with_graph(outputs=("nowhere",)), "%nowhere is returned and never defined"),
    "a tuple returned": (
        lambda: with_graph(outputs=("1",)),
        "%1 is returned and is a tuple (f32[4], i64[4])\n  try: return what getitem takes from it",
    ),
    "missing bytes": (
        lambda: with_graph(constants=(Constant("half", TensorType((2,), DType.F32), b"\0" * 7),)),
        "constant %half of type f32[2] holds 7 bytes, not 8",
    ),
    "a reshape to another size": (
        lambda: with_op(4, type=TensorType((63,), DType.F32)),
        "%4 reshapes f32[4,16] into f32[63]\n  op: %4 = aten.view.default(%3, [64]) : f32[63]\n  at: model.py:6",
    ),
    "a product of another shape": (
        lambda: with_op(3, type=TensorType((16, 4), DType.F32)),
        "%3 multiplies f32[4,8] by a weight f32[16,8] into f32[16,4], not f32[4,16]\n"
        "  op: %3 = aten.linear.default(%0, %w) : f32[16,4]\n  at: model.py:5",
    ),
}


@pytest.mark.parametrize(("broken", "expected"), GRAPH_FAULTS.values(), ids=GRAPH_FAULTS)
def test_a_broken_graph_is_refused(broken: Callable[[], Program], expected: str) -> None:
    assert message(broken()) == expected


SHAPES = {
    "aten.view.default(%x, [2, 16]) : f64[2,16]": "reshapes f32[4,8] into f64[2,16]",
    "aten.unsqueeze.default(%x, 0) : f32[1,8,5]": "reshapes f32[4,8] into f32[1,8,5]",
    "aten.permute.default(%x, [1, 0]) : f32[4,8]": "permutes f32[4,8] into f32[4,8], not f32[8,4]",
    "aten.permute.default(%x, [1, 1]) : f32[8,8]": "permutes f32[4,8] by what is no order of its dimensions",
    "aten.permute.default(%x, [0]) : f32[4]": "permutes f32[4,8] by what is no order of its dimensions",
    "aten.expand.default(%x, [4, 9]) : f32[4,9]": "expands f32[4,8] into f32[4,9]",
    "aten.expand.default(%x, [8]) : f32[8]": "expands f32[4,8] into f32[8]",
    "aten.full.default([3], 0) : f32[4]": "fills a shape that is not that of f32[4]",
    "aten.full.default([4], 0, dtype=f64) : f32[4]": "has an element type that is not that of f32[4]",
    "aten.linear.default(%x, %x) : f32[4,8]": "multiplies f32[4,8] by a weight f32[4,8] into f32[4,8], not f32[4,4]",
    "aten.linear.default(%x, %w, %b) : f32[4,16]": "adds a bias f32[3] to f32[4,16]",
    "aten.linear.default(%x, %b) : f32[4]": "multiplies f32[4,8] by a weight f32[3]",
    "aten.view.default(3, [2]) : f32[2]": "does not read one tensor and give one",
}


@pytest.mark.parametrize(("call", "why"), SHAPES.items())
def test_shapes_that_do_not_agree_are_refused(call: str, why: str) -> None:
    program = text.parse(f"graph g(%x: f32[4,8], %w: f32[16,8], %b: f32[3]) {{ %0 = {call} return %0 }}")
    assert message(program).splitlines()[0] == f"%0 {why}"


def grouped(*groups: Group, **fields: object) -> Program:
    return GOOD.with_plan(**{"groups": groups, "barriers": (), "tiles": {}, **fields})


G0, G1, G2 = GOOD.plan.groups
TILE = GOOD.plan.tiles["g0"]
MATMUL = GOOD.plan.tiles["g2"]


def tiled(name: str = "g0", tile: Tile = TILE, **changes: object) -> Program:
    return GOOD.with_plan(tiles=MappingProxyType({name: replace(tile, **changes)}))  # type: ignore[arg-type]


PLAN_FAULTS: dict[str, tuple[Callable[[], Program], str]] = {
    "two groups of a name": (lambda: grouped(G0, replace(G1, name="g0"), G2), "two groups are called g0"),
    "an empty group": (lambda: grouped(G0, G1, G2, Group("g3", GroupKind.OTHER, ())), "group g3 has no op"),
    "an unknown op": (
        lambda: grouped(replace(G0, ops=("0", "x")), G1, G2),
        "group g0 holds %x, which is the result of no op",
    ),
    "an op in two groups": (lambda: grouped(G0, G1, replace(G2, ops=("2", "3", "4"))), "%2 is in groups g1 and g2"),
    "an op twice in a group": (lambda: grouped(G0, replace(G1, ops=("1", "1", "2")), G2), "%1 is in g1 twice"),
    "an op in no group": (lambda: grouped(G0, replace(G1, ops=("1",)), G2), "%2 is in no group"),
    "ops out of order": (
        lambda: grouped(G0, replace(G1, ops=("2", "1")), G2),
        "group g1 does not hold %1 in program order",
    ),
    "groups out of order": (lambda: grouped(G1, G0, G2), "group g1 stands before group g0, which it reads"),
    "a barrier of no group": (
        lambda: GOOD.with_plan(barriers=(Barrier("g0", "g9", "0", "why"),)),
        "barrier g0 -> g9 names g9, which is no group",
    ),
    "a barrier on another's value": (
        lambda: GOOD.with_plan(barriers=(Barrier("g0", "g1", "1", "why"),)),
        "barrier g0 -> g1: its producer does not compute %1",
    ),
    "a barrier on a value nobody reads": (
        lambda: GOOD.with_plan(barriers=(Barrier("g1", "g2", "2", "why"),)),
        "barrier g1 -> g2: its consumer does not read %2",
    ),
    "a barrier without a reason": (
        lambda: GOOD.with_plan(barriers=(Barrier("g0", "g1", "0", ""),)),
        "barrier g0 -> g1 gives no reason",
    ),
    "a tile of no group": (lambda: tiled("g9"), "a tile is given for g9, which is no group"),
    "a tile larger than its space": (
        lambda: tiled(partition=5),
        "tile of g0: partition 5 does not cut an extent of 4",
    ),
    "a tile of nothing": (lambda: tiled(free=0), "tile of g0: free 0 does not cut an extent of 8"),
    "a contraction of nothing": (
        lambda: tiled(contraction=1),
        "tile of g0: contraction 1 does not cut an extent of 0",
    ),
    "a missing contraction": (
        lambda: tiled("g2", MATMUL, contraction=0),
        "tile of g2: contraction 0 does not cut an extent of 8",
    ),
    "no batch": (lambda: tiled(batch=0), "tile of g0: batch is 0, not 1 or more"),
    "too many partitions": (
        lambda: tiled(partition=129, space=(256, 8, 0)),
        "tile of g0: partition is 129, trn2 has 128",
    ),
    "too long a contraction": (
        lambda: tiled("g2", MATMUL, contraction=129, space=(4, 16, 256)),
        "tile of g2: contraction is 129, trn2 has 128",
    ),
    "too long a moving tile": (
        lambda: tiled("g2", MATMUL, free=513, space=(4, 1024, 8)),
        "tile of g2: free is 513, trn2 has 512",
    ),
    "too much SBUF": (
        lambda: tiled(sbuf_bytes=128 * 224 * 1024 + 1),
        "tile of g0: sbuf_bytes is 29360129, trn2 has 29360128",
    ),
    "too much PSUM": (
        lambda: tiled(psum_bytes=2 * 1024 * 1024 + 1),
        "tile of g0: psum_bytes is 2097153, trn2 has 2097152",
    ),
}


@pytest.mark.parametrize(("broken", "expected"), PLAN_FAULTS.values(), ids=PLAN_FAULTS)
def test_a_broken_plan_is_refused(broken: Callable[[], Program], expected: str) -> None:
    assert message(broken()).splitlines()[0] == expected


#     0 ── 1 ── 2      a = {0, 2}, b = {1}: each needs the other
def test_groups_that_wait_for_each_other_are_refused() -> None:
    program = text.parse("""
        graph g(%x: f32[4]) {
          %0 = aten.exp.default(%x) : f32[4]
          %1 = aten.neg.default(%0) : f32[4]
          %2 = aten.add.Tensor(%0, %1) : f32[4]
          %3 = aten.exp.default(%2) : f32[4]
          return %3
        }
        plan { group a elementwise (%0, %2) group b elementwise (%1) group c elementwise (%3) }
        """)
    assert message(program, "pass 4 'fuse'") == "groups wait for each other: a needs b needs a\n  in: pass 4 'fuse'"


def test_a_matmul_may_be_as_large_as_the_machine() -> None:
    verify.program(tiled("g2", MATMUL, partition=128, free=512, contraction=128, space=(128, 512, 128)))
    with pytest.raises(VerifyError, match="free is 513, trn2 has 512"):
        verify.program(tiled("g2", MATMUL, free=513, space=(4, 1024, 8)))
    larger = replace(tiled("g2", MATMUL, free=513, space=(4, 1024, 8)), target="trn3")
    verify.program(larger)


def test_known_kinds_are_the_registrys_matter() -> None:
    verify.kinds_are_known(GOOD.graph, lambda kind: True)
    with pytest.raises(VerifyError) as raised:
        verify.kinds_are_known(GOOD.graph, lambda kind: kind != "aten.linear.default")
    assert_expected_inline(
        str(raised.value),
        """\
aten.linear.default is no known op
  op: %3 = aten.linear.default(%0, %w) : f32[4,16]
  at: model.py:5""",
    )


def test_each_check_stands_in_one_list() -> None:
    checks = [*verify.GRAPH_CHECKS, *verify.PLAN_CHECKS]
    assert len(set(checks)) == len(checks) == 15
    assert all(check.__doc__ for check in checks)
