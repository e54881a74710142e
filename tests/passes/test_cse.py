"""Cse: equal ops become one, and what only looks equal stays two."""

from __future__ import annotations

import pytest
import torch
from expecttest import assert_expected_inline

from neuron_compiler.ir import text, verify
from neuron_compiler.ir.graph import DType, Op, TensorType
from neuron_compiler.passes.cse import Cse
from neuron_compiler.passes.random_ops import RANDOM, is_random


def test_equal_ops_become_one_and_their_readers_follow() -> None:
    program = text.parse("""
        graph g(%x: f32[8], %q: f32[8]) {
          const %c: f32[1] = [0.5]
          const %d: f32[1] = [0.5]
          %0 = aten.exp.default(%x) : f32[8]  # model.py:3
          %1 = aten.exp.default(%x) : f32[8]  # model.py:4
          %2 = aten.mul.Tensor(%0, %c) : f32[8]
          %3 = aten.mul.Tensor(%1, %d) : f32[8]
          %4 = aten.index.Tensor(%q, [%3]) : f32[8]
          %5 = aten.index.Tensor(%q, [%2]) : f32[8]
          return %4, %5, %3
        }
        """)
    after = Cse()(program)
    verify.program(after)
    assert Cse()(after) is after
    assert_expected_inline(
        str(after),
        """\
graph g(%x: f32[8], %q: f32[8]) target=trn2 {
  const %c: f32[1] = [0.5]
  %0 = aten.exp.default(%x) : f32[8]  # model.py:3
  %2 = aten.mul.Tensor(%0, %c) : f32[8]
  %4 = aten.index.Tensor(%q, [%2]) : f32[8]
  return %4, %4, %2
}
""",
    )


PAIRS = {
    "kind": ("aten.exp.default(%x) : f32[8]", "aten.log.default(%x) : f32[8]"),
    "operand": ("aten.exp.default(%x) : f32[8]", "aten.exp.default(%y) : f32[8]"),
    "order": ("aten.sub.Tensor(%x, %y) : f32[8]", "aten.sub.Tensor(%y, %x) : f32[8]"),
    "attribute": ("aten.add.Tensor(%x, %y) : f32[8]", "aten.add.Tensor(%x, %y, alpha=2) : f32[8]"),
    "type": ("aten.sum.default(%x) : f32[]", "aten.sum.default(%x) : f64[]"),
    "whole and real": ("aten.full.default([2], 1) : f32[2]", "aten.full.default([2], 1.0) : f32[2]"),
    "one and true": ("aten.full.default([2], 1) : f32[2]", "aten.full.default([2], true) : f32[2]"),
    "signs of zero": ("aten.full.default([2], 0.0) : f32[2]", "aten.full.default([2], -0.0) : f32[2]"),
    "random": ("aten.rand.default([8]) : f32[8]", "aten.rand.default([8]) : f32[8]"),
}


@pytest.mark.parametrize(("a", "b"), PAIRS.values(), ids=PAIRS)
def test_ops_that_differ_stay_two(a: str, b: str) -> None:
    program = text.parse(f"graph g(%x: f32[8], %y: f32[8]) {{ %0 = {a} %1 = {b} return %0, %1 }}")
    assert Cse()(program) is program


def test_constants_of_other_types_stay_two() -> None:
    program = text.parse("graph g() { const %a: f32[1] = [0.0] const %b: i32[1] = [0] return %a, %b }")
    assert Cse()(program) is program


def test_nan_is_equal_to_itself() -> None:
    program = text.parse("graph g() { %0 = a.b.c(nan) : f32[] %1 = a.b.c(nan) : f32[] return %0, %1 }")
    assert Cse()(program).graph.outputs == ("0", "0")


def test_every_functional_op_that_aten_says_draws_is_known() -> None:
    tagged = set()
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        base, _, suffix = rest.partition(".")
        if namespace not in ("aten", "prims") or base.endswith("_") or suffix.endswith("out") or "inductor" in base:
            continue
        overload = getattr(getattr(getattr(torch.ops, namespace), base, None), suffix or "default", None)
        if overload is not None and torch.Tag.nondeterministic_seeded in overload.tags:
            tagged.add(f"{namespace}.{base}")
    assert len(tagged) > 40
    assert tagged - RANDOM == set()


def test_a_random_op_is_known_by_any_overload() -> None:
    type_ = TensorType((), DType.F32)
    assert is_random(Op("0", "aten.normal.Tensor_Tensor", (), type_))
    assert not is_random(Op("0", "aten.exp.default", (), type_))
