"""The rewriting walk: what it counts, what it releases, and the rules that it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neuron_compiler.ir import text
from neuron_compiler.ir.graph import Constant, DType, Op, TensorType, Value
from neuron_compiler.passes.rewrite import Replacement, Rule, Scope, rewrite, rules_by_kind

PROGRAM = text.parse("""
    graph g(%x: f32[4]) {
      %0 = a.exp.default(%x) : f32[4]
      %1 = a.id.default(%0) : f32[4]
      %2 = a.add.default(%0, %1) : f32[4]
      return %2, %1
    }
    """)


def with_rule(kind: str, rule: Rule) -> object:
    table = rules_by_kind(([kind], rule))
    return rewrite(PROGRAM, lambda op: table.get(op.kind, ()))


def test_readers_are_counted_through_replaced_names() -> None:
    counts: list[int] = []

    def forward(op: Op, scope: Scope) -> Replacement:
        return op.operands[0] if isinstance(op.operands[0], Value) else None

    def look(op: Op, scope: Scope) -> Replacement:
        counts.append(scope.readers["0"])
        return None

    table = rules_by_kind((["a.id.default"], forward), (["a.add.default"], look))
    after = rewrite(PROGRAM, lambda op: table.get(op.kind, ()))
    assert after.graph.outputs == ("2", "0")
    assert str(after.graph.defs["2"]) == "%2 = a.add.default(%0, %0) : f32[4]"
    assert counts == [2]  # one op, which reads it twice, and one output


def test_what_loses_its_last_reader_goes() -> None:
    after = with_rule("a.add.default", lambda op, scope: replace(op, kind="a.neg.default", operands=(Value("x"),)))
    assert [op.result for op in after.graph.ops] == ["0", "1", "2"]  # 1 is returned and reads 0
    single = replace(PROGRAM, graph=replace(PROGRAM.graph, outputs=("2",)))
    table = rules_by_kind(
        (["a.add.default"], lambda op, scope: replace(op, kind="a.neg.default", operands=(Value("x"),)))
    )
    assert [op.result for op in rewrite(single, lambda op: table.get(op.kind, ())).graph.ops] == ["2"]


def test_a_constant_takes_the_place_of_an_op() -> None:
    data = b"\0" * 16
    after = with_rule("a.id.default", lambda op, scope: Constant(op.result, TensorType((4,), DType.F32), data))
    assert after.graph.constants == (Constant("1", TensorType((4,), DType.F32), data),)
    assert [op.result for op in after.graph.ops] == ["0", "2"]


def test_a_rule_cannot_change_a_type() -> None:
    other = TensorType((5,), DType.F32)
    with pytest.raises(ValueError, match=r"replaced %1 = .* by a value of type f32\[5\]"):
        with_rule("a.id.default", lambda op, scope: replace(op, type=other))


def test_a_rule_cannot_rename_a_result() -> None:
    with pytest.raises(ValueError, match="under another name: %other = "):
        with_rule("a.id.default", lambda op, scope: replace(op, result="other"))


def test_rules_that_never_rest_are_an_error() -> None:
    with pytest.raises(ValueError, match="100 rewrites of %1 did not come to rest"):
        with_rule("a.id.default", lambda op, scope: replace(op))


def test_no_rule_no_change() -> None:
    assert with_rule("a.other.default", lambda op, scope: None) is PROGRAM
