"""Canonicalize: each rewrite, what it refuses, and real graphs before and after."""

from __future__ import annotations

import pytest
import torch
from aten_interpreter import run, same_bits
from expecttest import assert_expected_inline

from neuron_compiler.ir import text, verify
from neuron_compiler.ir.plan import Group, GroupKind, Program
from neuron_compiler.passes.canonicalize import Canonicalize


def graph(signature: str, *lines: str, returns: str = "%out") -> Program:
    program = text.parse(f"graph g({signature}) {{\n" + "\n".join(lines) + f"\nreturn {returns}\n}}")
    verify.program(program)
    return program


def canonical(program: Program) -> str:
    """The ops and the return line after the pass, which is then at rest."""
    after = Canonicalize()(program)
    verify.program(after, when="canonicalize")
    assert Canonicalize()(after) is after
    assert text.parse(str(after)) == after
    return "\n".join(line.strip() for line in str(after).splitlines()[1:-1])


def refuses(program: Program) -> bool:
    return Canonicalize()(program) is program


SAME = {
    "clone": "aten.clone.default(%x)",
    "alias": "aten.alias.default(%x)",
    "detach": "aten.detach.default(%x)",
    "lift_fresh_copy": "aten.lift_fresh_copy.default(%x)",
    "view": "aten.view.default(%x, [4, -1])",
    "unsafe_view": "aten._unsafe_view.default(%x, [4, 8])",
    "reshape": "aten.reshape.default(%x, [4, 8])",
    "squeeze": "aten.squeeze.default(%x)",
    "expand": "aten.expand.default(%x, [-1, 8])",
    "permute": "aten.permute.default(%x, [0, -1])",
    "whole slice": "aten.slice.Tensor(%x, 1, 0, 9223372036854775807)",
    "cast": "aten._to_copy.default(%x, dtype=f32)",
    "prims cast": "prims.convert_element_type.default(%x, f32)",
    "repeat once": "aten.repeat.default(%x, [1, 1])",
    "cat of one": "aten.cat.default([%x], 1)",
    "overwritten": "aten.copy.default(%y, %x)",
    "times one": "aten.mul.Tensor(%x, 1)",
    "one times": "aten.mul.Tensor(1.0, %x)",
    "over one": "aten.div.Tensor(%x, 1)",
    "less zero": "aten.sub.Tensor(%x, 0)",
    "plus minus zero": "aten.add.Tensor(%x, -0.0)",
    "minus zero plus": "aten.add.Tensor(-0.0, %x)",
}


@pytest.mark.parametrize("call", SAME.values(), ids=SAME)
def test_an_op_that_changes_nothing_goes(call: str) -> None:
    program = graph(
        "%x: f32[4,8], %y: f32[4,8]",
        f"%0 = {call} : f32[4,8]",
        "%out = aten.neg.default(%0) : f32[4,8]",
    )
    assert canonical(program) == "%out = aten.neg.default(%x) : f32[4,8]\nreturn %out"
    x = torch.tensor([0.0, -0.0, 1.0, -1.5, float("inf"), -float("inf"), float("nan"), 1e-40]).repeat(4, 1)
    assert same_bits(run(program, x, x + 1), run(Canonicalize()(program), x, x + 1))


OTHER = {
    "plus zero turns -0.0 into 0.0": ("f32", "aten.add.Tensor(%x, 0) : f32[4,8]"),
    "0 * inf in a complex product": ("c64", "aten.mul.Tensor(%x, 1) : c64[4,8]"),
    "less minus zero": ("f32", "aten.sub.Tensor(%x, -0.0) : f32[4,8]"),
    "one over": ("f32", "aten.div.Tensor(1, %x) : f32[4,8]"),
    "zero less": ("f32", "aten.sub.Tensor(0, %x) : f32[4,8]"),
    "times true": ("f32", "aten.mul.Tensor(%x, true) : f32[4,8]"),
    "alpha": ("f32", "aten.sub.Tensor(%x, 0, alpha=-1) : f32[4,8]"),
    "promotion": ("i64", "aten.mul.Tensor(%x, 1.0) : f32[4,8]"),
    "division of integers": ("i64", "aten.div.Tensor(%x, 1) : f32[4,8]"),
    "floor": ("f32", 'aten.div.Tensor_mode(%x, 1, rounding_mode="floor") : f32[4,8]'),
    "a rounding cast": ("f32", "aten._to_copy.default(%x, dtype=bf16) : bf16[4,8]"),
    "a moving permute": ("f32", "aten.permute.default(%x, [1, 0]) : f32[8,4]"),
    "a part": ("f32", "aten.slice.Tensor(%x, 1, 0, 4) : f32[4,4]"),
    "a flip": ("f32", "aten.flip.default(%x, [1]) : f32[4,8]"),
    "overwritten with another type": ("f64", "aten.copy.default(%y, %x) : f32[4,8]"),
}


@pytest.mark.parametrize(("dtype", "call"), OTHER.values(), ids=OTHER)
def test_an_op_that_changes_a_bit_stays(dtype: str, call: str) -> None:
    assert refuses(graph(f"%x: {dtype}[4,8], %y: f32[4,8]", f"%out = {call}"))


def test_adding_zero_to_integers_changes_nothing() -> None:
    program = graph(
        "%x: i64[3]",
        "%0 = aten.add.Tensor(%x, 0) : i64[3]",
        "%1 = aten.add.Tensor(0, %0) : i64[3]",
        "%2 = aten.sub.Tensor(%1, 0) : i64[3]",
        returns="%2",
    )
    assert canonical(program) == "return %x"


def test_reshapes_merge_and_spell_out_their_extents() -> None:
    program = graph(
        "%x: f32[2,3,4]",
        "%0 = aten.view.default(%x, [6, -1]) : f32[6,4]",
        "%1 = aten.unsqueeze.default(%0, 0) : f32[1,6,4]",
        "%2 = aten._unsafe_view.default(%1, [-1]) : f32[24]",
        "%3 = aten.view.default(%2, [2, 3, 4]) : f32[2,3,4]",
        "%4 = aten.exp.default(%2) : f32[24]",
        returns="%3, %4",
    )
    assert_expected_inline(
        canonical(program),
        """\
%2 = aten.view.default(%x, [24]) : f32[24]
%4 = aten.exp.default(%2) : f32[24]
return %x, %4""",
    )


def test_expands_merge() -> None:
    program = graph(
        "%x: f32[1,4]",
        "%0 = aten.expand.default(%x, [3, -1]) : f32[3,4]",
        "%out = aten.expand.default(%0, [2, -1, 4]) : f32[2,3,4]",
    )
    assert canonical(program) == "%out = aten.expand.default(%x, [2, 3, 4]) : f32[2,3,4]\nreturn %out"


def test_permutes_merge_to_one_or_none() -> None:
    program = graph(
        "%x: f32[2,3,4]",
        "%0 = aten.permute.default(%x, [2, 0, 1]) : f32[4,2,3]",
        "%1 = aten.permute.default(%0, [0, -1, 1]) : f32[4,3,2]",
        "%2 = aten.permute.default(%1, [2, 1, 0]) : f32[2,3,4]",
        "%3 = aten.exp.default(%1) : f32[4,3,2]",
        returns="%2, %3",
    )
    x = torch.randn(2, 3, 4)
    assert same_bits(run(program, x), run(Canonicalize()(program), x))
    assert_expected_inline(
        canonical(program),
        """\
%1 = aten.permute.default(%x, [2, 1, 0]) : f32[4,3,2]
%3 = aten.exp.default(%1) : f32[4,3,2]
return %x, %3""",
    )


def test_transposes_are_permutes() -> None:
    program = graph(
        "%x: f32[2,3,4], %w: f32[5,6], %v: f32[7]",
        "%0 = aten.transpose.int(%x, 1, -1) : f32[2,4,3]",
        "%1 = aten.t.default(%w) : f32[6,5]",
        "%2 = aten.t.default(%v) : f32[7]",
        returns="%0, %1, %2",
    )
    assert_expected_inline(
        canonical(program),
        """\
%0 = aten.permute.default(%x, [0, 2, 1]) : f32[2,4,3]
%1 = aten.permute.default(%w, [1, 0]) : f32[6,5]
return %0, %1, %v""",
    )


ROUND_TRIPS = [
    ("bf16", "f32"),
    ("f16", "f32"),
    ("f16", "f64"),
    ("f32", "f64"),
    ("i32", "i64"),
    ("u8", "i32"),
    ("bool", "f32"),
]


@pytest.mark.parametrize(("narrow", "wide"), ROUND_TRIPS)
def test_a_cast_that_loses_nothing_and_its_way_back_go(narrow: str, wide: str) -> None:
    program = graph(
        f"%x: {narrow}[4]",
        f"%0 = aten._to_copy.default(%x, dtype={wide}) : {wide}[4]",
        f"%1 = prims.convert_element_type.default(%0, {narrow}) : {narrow}[4]",
        returns="%1",
    )
    assert canonical(program) == "return %x"


@pytest.mark.parametrize(
    ("first", "between"),
    [
        ("f32", "bf16"),
        ("f16", "bf16"),
        ("bf16", "f16"),
        ("i64", "f32"),
        ("i64", "i32"),
        ("i8", "u16"),
        ("u8", "i8"),
        ("i32", "bool"),
    ],
)
def test_a_cast_that_may_lose_something_stays(first: str, between: str) -> None:
    program = graph(
        f"%x: {first}[4]",
        f"%0 = aten._to_copy.default(%x, dtype={between}) : {between}[4]",
        f"%1 = aten._to_copy.default(%0, dtype={first}) : {first}[4]",
        returns="%1",
    )
    assert refuses(program)


# x ── view ── addmm ── view          x ── linear
#              │                 →          │
#        w ── permute                  w ───┘
def test_a_product_with_a_transposed_weight_becomes_linear_over_all_leading_dimensions() -> None:
    program = graph(
        "%x: f32[2,4,16], %w: f32[32,16], %b: f32[32]",
        "%0 = aten.view.default(%x, [8, 16]) : f32[8,16]",
        "%1 = aten.permute.default(%w, [1, 0]) : f32[16,32]",
        "%2 = aten.addmm.default(%b, %0, %1) : f32[8,32]  # model.py:7",
        "%out = aten.view.default(%2, [2, 4, 32]) : f32[2,4,32]",
    )
    assert_expected_inline(
        canonical(program),
        """\
%out = aten.linear.default(%x, %w, %b) : f32[2,4,32]  # model.py:7
return %out""",
    )
    inputs = torch.randn(2, 4, 16), torch.randn(32, 16), torch.randn(32)
    torch.testing.assert_close(run(Canonicalize()(program), *inputs), run(program, *inputs))


def test_mm_with_a_transposed_weight_becomes_linear() -> None:
    program = graph(
        "%x: f32[8,16], %w: f32[32,16]",
        "%1 = aten.t.default(%w) : f32[16,32]",
        "%2 = aten.mm.default(%x, %1) : f32[8,32]",
        returns="%2, %1",
    )
    assert_expected_inline(
        canonical(program),
        """\
%1 = aten.permute.default(%w, [1, 0]) : f32[16,32]
%2 = aten.linear.default(%x, %w) : f32[8,32]
return %2, %1""",
    )


PRODUCTS = {
    "the weight is not transposed": "aten.mm.default(%x, %k) : f32[8,32]",
    "the first operand is transposed": "aten.mm.default(%xt, %k2) : f32[16,32]",
    "alpha": "aten.addmm.default(%b, %x, %wt, alpha=2) : f32[8,32]",
    "beta": "aten.addmm.default(%b, %x, %wt, beta=0) : f32[8,32]",
    "a bias of two dimensions": "aten.addmm.default(%b2, %x, %wt) : f32[8,32]",
    "a bias of one element": "aten.addmm.default(%b1, %x, %wt) : f32[8,32]",
}


@pytest.mark.parametrize("call", PRODUCTS.values(), ids=PRODUCTS)
def test_other_products_stay(call: str) -> None:
    program = graph(
        "%x: f32[8,16], %w: f32[32,16], %k: f32[16,32], %k2: f32[8,32], %b: f32[32], %b1: f32[1], %b2: f32[8,32]",
        "%wt = aten.permute.default(%w, [1, 0]) : f32[16,32]",
        "%xt = aten.permute.default(%x, [1, 0]) : f32[16,8]",
        f"%out = {call}",
    )
    assert refuses(program)


def test_integers_are_multiplied_as_they_are() -> None:
    program = graph(
        "%x: i64[8,16], %w: i64[32,16]",
        "%0 = aten.permute.default(%w, [1, 0]) : i64[16,32]",
        "%out = aten.mm.default(%x, %0) : i64[8,32]",
    )
    assert refuses(program)


def test_a_flat_product_that_is_read_elsewhere_is_not_computed_twice() -> None:
    program = graph(
        "%x: f32[2,4,16], %w: f32[32,16]",
        "%0 = aten.view.default(%x, [8, 16]) : f32[8,16]",
        "%1 = aten.linear.default(%0, %w) : f32[8,32]",
        "%2 = aten.view.default(%1, [2, 4, 32]) : f32[2,4,32]",
        returns="%2, %1",
    )
    assert refuses(program)


def test_views_that_split_the_product_itself_stay() -> None:
    program = graph(
        "%x: f32[2,4,2,8], %w: f32[32,16]",
        "%0 = aten.view.default(%x, [8, 16]) : f32[8,16]",
        "%1 = aten.linear.default(%0, %w) : f32[8,32]",
        "%out = aten.view.default(%1, [2, 4, 2, 16]) : f32[2,4,2,16]",
    )
    assert refuses(program)


def test_outputs_follow_what_replaced_them() -> None:
    program = graph(
        "%x: f32[4]",
        "%0 = aten.clone.default(%x) : f32[4]",
        "%1 = aten.alias.default(%0) : f32[4]",
        returns="%0, %1, %0",
    )
    assert canonical(program) == "return %x, %x, %x"


def test_a_getitem_is_left_alone() -> None:
    program = graph(
        "%x: f32[4,8]",
        "%0 = aten.split.Tensor(%x, 4, 1) : (f32[4,4], f32[4,4])",
        "%1 = getitem(%0, 1) : f32[4,4]",
        "%2 = aten.clone.default(%1) : f32[4,4]",
        returns="%2",
    )
    assert_expected_inline(
        canonical(program),
        """\
%0 = aten.split.Tensor(%x, 4, 1) : (f32[4,4], f32[4,4])
%1 = getitem(%0, 1) : f32[4,4]
return %1""",
    )


def test_a_changed_graph_drops_its_plan_and_an_unchanged_one_keeps_it() -> None:
    unchanged = graph("%x: f32[4]", "%out = aten.exp.default(%x) : f32[4]")
    planned = unchanged.with_plan(groups=(Group("g", GroupKind.ELEMENTWISE, ("out",)),))
    assert Canonicalize()(planned) is planned
    changed = graph("%x: f32[4]", "%0 = aten.clone.default(%x) : f32[4]", "%out = aten.exp.default(%0) : f32[4]")
    planned = changed.with_plan(groups=(Group("g", GroupKind.ELEMENTWISE, ("0", "out")),))
    assert Canonicalize()(planned).plan.groups == ()


def test_operands_inside_lists_and_attributes_follow() -> None:
    program = graph(
        "%x: f32[4,8], %i: i64[2]",
        "%0 = aten.clone.default(%i) : i64[2]",
        "%1 = aten.clone.default(%x) : f32[4,8]",
        "%out = aten.index.Tensor(%1, [none, %0], hint=%0) : f32[4,2]",
    )
    assert canonical(program) == "%out = aten.index.Tensor(%x, [none, %i], hint=%i) : f32[4,2]\nreturn %out"


def test_a_long_chain_takes_one_walk() -> None:
    lines = [
        f"%v{i + 1} = aten.view.default(%v{i}, [{8 if i % 2 else 2}, -1]) : f32[{'8,1' if i % 2 else '2,4'}]"
        for i in range(2000)
    ]
    program = graph("%v0: f32[8]", *lines, returns="%v2000")
    assert canonical(program) == "%v2000 = aten.view.default(%v0, [8, 1]) : f32[8,1]\nreturn %v2000"
