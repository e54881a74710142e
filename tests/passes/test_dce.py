"""Dce: what no output depends on goes, the signature stays."""

from __future__ import annotations

from expecttest import assert_expected_inline

from neuron_compiler.ir import text, verify
from neuron_compiler.passes.dce import Dce


def test_what_nobody_reads_goes_with_what_only_it_reads() -> None:
    program = text.parse("""
        graph g(%x: f32[8], %unused: f32[8]) {
          const %c: f32[1] = [0.5]
          const %dead: f32[1] = [2.0]
          %0 = aten.exp.default(%x) : f32[8]
          %1 = aten.mul.Tensor(%0, %dead) : f32[8]
          %2 = aten.log.default(%1) : f32[8]
          %3 = aten.mul.Tensor(%0, %c) : f32[8]
          %4 = aten.split.Tensor(%1, 4) : (f32[4], f32[4])
          %5 = getitem(%4, 0) : f32[4]
          return %3
        }
        """)
    after = Dce()(program)
    verify.program(after)
    assert Dce()(after) is after
    assert_expected_inline(
        str(after),
        """\
graph g(%x: f32[8], %unused: f32[8]) target=trn2 {
  const %c: f32[1] = [0.5]
  %0 = aten.exp.default(%x) : f32[8]
  %3 = aten.mul.Tensor(%0, %c) : f32[8]
  return %3
}
""",
    )


def test_a_graph_without_dead_ops_is_the_same_object() -> None:
    program = text.parse("graph g(%x: f32[8]) { %0 = aten.exp.default(%x) : f32[8] return %x, %0 }")
    assert Dce()(program) is program


def test_a_dead_constant_alone_goes() -> None:
    program = text.parse("graph g(%x: f32[8]) { const %c: f32[1] = [0.5] return %x }")
    assert Dce()(program).graph.constants == ()
