"""ConstantFold: what folds without arithmetic, what folds with it, and what never does."""

from __future__ import annotations

import pytest
import torch
from aten_interpreter import evaluate, run, same_bits
from expecttest import assert_expected_inline

from neuron_compiler.ir import text, verify
from neuron_compiler.ir.graph import Constant, Op
from neuron_compiler.ir.plan import Program
from neuron_compiler.passes.constant_fold import ConstantFold
from neuron_compiler.passes.dce import Dce


def graph(signature: str, *lines: str, returns: str = "%out") -> Program:
    program = text.parse(f"graph g({signature}) {{\n" + "\n".join(lines) + f"\nreturn {returns}\n}}")
    verify.program(program)
    return program


def folded(program: Program, fold: ConstantFold = ConstantFold()) -> str:  # noqa: B008
    """Constants, ops and return line after folding, which is then at rest, and after removing what is dead."""
    after = fold(program)
    verify.program(after, when="constant_fold")
    assert fold(after) is after
    return "\n".join(line.strip() for line in str(Dce()(after)).splitlines()[1:-1])


CREATIONS = {
    "zeros": ("aten.zeros.default([2, 3]) : f32[2,3]", "aten.full.default([2, 3], 0.0, dtype=f32)"),
    "zeros of bool": ("aten.zeros.default([2], dtype=bool) : bool[2]", "aten.full.default([2], false, dtype=bool)"),
    "ones of int": ("aten.ones.default([2], dtype=i64) : i64[2]", "aten.full.default([2], 1, dtype=i64)"),
    "zeros_like": ("aten.zeros_like.default(%x) : f32[4,8]", "aten.full.default([4, 8], 0.0, dtype=f32)"),
    "ones_like": ("aten.ones_like.default(%x) : f32[4,8]", "aten.full.default([4, 8], 1.0, dtype=f32)"),
    "full_like": ("aten.full_like.default(%x, 7) : f32[4,8]", "aten.full.default([4, 8], 7, dtype=f32)"),
    "new_zeros": ("aten.new_zeros.default(%x, [3]) : f32[3]", "aten.full.default([3], 0.0, dtype=f32)"),
    "new_ones": ("aten.new_ones.default(%x, [3]) : f32[3]", "aten.full.default([3], 1.0, dtype=f32)"),
    "new_full": ("aten.new_full.default(%x, [3], 2.5) : f32[3]", "aten.full.default([3], 2.5, dtype=f32)"),
    "scalar_tensor": ("aten.scalar_tensor.default(-inf) : f32[]", "aten.full.default([], -inf, dtype=f32)"),
    "full": ("aten.full.default([3], 1) : i64[3]", "aten.full.default([3], 1, dtype=i64)"),
}


@pytest.mark.parametrize(("call", "full"), CREATIONS.values(), ids=CREATIONS)
def test_creations_are_written_as_full(call: str, full: str) -> None:
    program = graph("%x: f32[4,8]", f"%out = {call}")
    assert folded(program) == f"%out = {full} : {call.rpartition(' : ')[2]}\nreturn %out"
    x = torch.randn(4, 8)
    assert same_bits(run(program, x), run(ConstantFold()(program), x))


MOVES = {
    "view": "aten.view.default(%0, [6]) : f32[6]",
    "expand": "aten.expand.default(%0, [4, 2, 3]) : f32[4,2,3]",
    "permute": "aten.permute.default(%0, [1, 0]) : f32[3,2]",
    "slice": "aten.slice.Tensor(%0, 1, 0, 2) : f32[2,2]",
    "select": "aten.select.int(%0, 0, 1) : f32[3]",
    "clone": "aten.clone.default(%0) : f32[2,3]",
    "flip": "aten.flip.default(%0, [0]) : f32[2,3]",
    "repeat": "aten.repeat.default(%0, [2, 1]) : f32[4,3]",
    "transpose": "aten.transpose.int(%0, 0, 1) : f32[3,2]",
    "cast": "aten._to_copy.default(%0, dtype=i32) : i32[2,3]",
    "cast to bool": "prims.convert_element_type.default(%0, bool) : bool[2,3]",
    "cast to bf16": "prims.convert_element_type.default(%0, bf16) : bf16[2,3]",
}


@pytest.mark.parametrize("call", MOVES.values(), ids=MOVES)
def test_a_full_that_is_moved_or_cast_is_a_full(call: str) -> None:
    program = graph("", "%0 = aten.full.default([2, 3], 3.0, dtype=f32) : f32[2,3]", f"%out = {call}")
    after = Dce()(ConstantFold()(program))
    assert [op.kind for op in after.graph.ops] == ["aten.full.default"]
    assert same_bits(run(program), run(after))


@pytest.mark.parametrize("fill", ["0.1", "-0.0", "16.0", "-1.0", "nan", "inf", "1e10"])
@pytest.mark.parametrize("dtype", ["i32", "u8", "bf16", "f8e4m3fn", "bool"])
def test_a_cast_that_may_round_or_wrap_is_left_to_the_lowering(fill: str, dtype: str) -> None:
    program = graph(
        "",
        f"%0 = aten.full.default([2], {fill}, dtype=f32) : f32[2]",
        f"%out = prims.convert_element_type.default(%0, {dtype}) : {dtype}[2]",
    )
    assert ConstantFold()(program) is program


def test_parts_of_a_full_are_fulls() -> None:
    program = graph(
        "",
        "%0 = aten.full.default([5], 1.0, dtype=f32) : f32[5]",
        "%1 = aten.split.Tensor(%0, 3) : (f32[3], f32[2])",
        "%2 = getitem(%1, 0) : f32[3]",
        "%3 = getitem(%1, 1) : f32[2]",
        returns="%2, %3",
    )
    assert_expected_inline(
        folded(program),
        """\
%2 = aten.full.default([3], 1.0, dtype=f32) : f32[3]
%3 = aten.full.default([2], 1.0, dtype=f32) : f32[2]
return %2, %3""",
    )


def test_a_known_condition_chooses() -> None:
    program = graph(
        "%x: f32[4], %y: f32[4], %s: f32[]",
        "%0 = aten.full.default([4], true, dtype=bool) : bool[4]",
        "%1 = aten.full.default([], false, dtype=bool) : bool[]",
        "%2 = aten.where.self(%0, %x, %y) : f32[4]",
        "%3 = aten.where.self(%1, %x, %y) : f32[4]",
        "%4 = aten.where.self(%0, %s, %y) : f32[4]",
        returns="%2, %3, %4",
    )
    assert_expected_inline(
        folded(program),
        """\
%0 = aten.full.default([4], true, dtype=bool) : bool[4]
%4 = aten.where.self(%0, %s, %y) : f32[4]
return %x, %y, %4""",
    )


def test_a_reshaped_constant_keeps_its_bytes() -> None:
    program = graph("", "const %c: i32[4] = [1, 2, 3, 4]", "%out = aten.view.default(%c, [2, 2]) : i32[2,2]")
    assert folded(program) == "const %out: i32[2,2] = [1, 2, 3, 4]\nreturn %out"


COMPUTED = (
    "const %c: i64[3] = [1, 2, 3]",
    "%a = aten.arange.default(3) : i64[3]",
    "%1 = aten.add.Tensor(%c, %a) : i64[3]",
    "%2 = aten.mul.Tensor(%1, %1) : i64[3]",
    "%3 = aten.sub.Tensor(%2, %2) : i64[3]",
    "%4 = aten.add.Tensor(%x, %2) : i64[3]",
)


def test_ops_on_constants_are_computed_by_the_lowering() -> None:
    program = graph("%x: i64[3]", *COMPUTED, returns="%4, %3, %a")
    assert_expected_inline(
        folded(program, ConstantFold(evaluate=evaluate)),
        """\
const %2: i64[3] = [1, 9, 25]
%a = aten.arange.default(3) : i64[3]
%3 = aten.full.default([3], 0, dtype=i64) : i64[3]
%4 = aten.add.Tensor(%x, %2) : i64[3]
return %4, %3, %a""",
    )
    x = torch.tensor([5, 6, 7])
    assert same_bits(run(program, x), run(ConstantFold(evaluate=evaluate)(program), x))


def test_without_evaluation_nothing_is_computed() -> None:
    program = graph("%x: i64[3]", *COMPUTED, returns="%4, %3, %a")
    assert ConstantFold()(program) is program


def test_nothing_large_is_read_or_made() -> None:
    fold = ConstantFold(max_elements=4, evaluate=evaluate)
    large_result = graph("", "%a = aten.arange.default(5) : i64[5]", "%out = aten.neg.default(%a) : i64[5]")
    assert fold(large_result) is large_result
    large_operand = graph("", "%a = aten.arange.default(5) : i64[5]", "%out = aten.sum.default(%a) : i64[]")
    assert fold(large_operand) is large_operand
    small = graph("", "%a = aten.arange.default(4) : i64[4]", "%out = aten.sum.default(%a) : i64[]")
    assert folded(small, fold) == "%out = aten.full.default([], 6, dtype=i64) : i64[]\nreturn %out"


def test_nothing_random_is_drawn() -> None:
    program = graph(
        "",
        "%0 = aten.full.default([2], 0.5, dtype=f32) : f32[2]",
        "%1 = aten.bernoulli.default(%0) : f32[2]",
        "%2 = aten.rand.default([2]) : f32[2]",
        "%3 = aten.neg.default(%2) : f32[2]",
        returns="%1, %3",
    )
    assert ConstantFold(evaluate=evaluate)(program) is program


def test_what_cannot_be_evaluated_stays() -> None:
    def refuse(op: Op, operands: tuple[Constant, ...]) -> bytes | None:
        return None

    program = graph("", "const %c: f32[1] = [0.5]", "%out = aten.exp.default(%c) : f32[1]")
    assert ConstantFold(evaluate=refuse)(program) is program


def test_an_evaluation_of_the_wrong_size_is_an_error() -> None:
    program = graph("", "const %c: f32[1] = [0.5]", "%out = aten.exp.default(%c) : f32[1]")
    with pytest.raises(ValueError, match="was evaluated to 3 bytes, not 4"):
        ConstantFold(evaluate=lambda op, operands: b"abc")(program)


def test_a_nan_of_an_odd_kind_stays_as_bytes() -> None:
    odd = bytes.fromhex("010080ff")
    program = graph("", "const %c: f32[2] = [0.0, 1.0]", "%out = aten.exp.default(%c) : f32[2]")
    after = ConstantFold(evaluate=lambda op, operands: odd * 2)(program)
    assert [c.data for c in after.graph.constants] == [b"\0\0\0\0\0\0\x80?", odd * 2]


@pytest.mark.parametrize("value", ["0.1", "-0.0", "inf", "1e-40"])
def test_equal_elements_become_a_full_of_the_same_bits(value: str) -> None:
    program = graph("", f"const %c: f32[2] = [{value}, {value}]", "%out = aten.neg.default(%c) : f32[2]")
    after = Dce()(ConstantFold(evaluate=evaluate)(program))
    assert [op.kind for op in after.graph.ops] == ["aten.full.default"]
    assert same_bits(run(program), run(after))
