"""The texts of a summary: whole, on small programs."""

import pytest

from neuron_compiler.compile import Compilation
from neuron_compiler.ir import text
from neuron_compiler.ledger import Entry
from neuron_compiler.lowering.emit import Module
from neuron_compiler.passes.base import PassRecord
from neuron_compiler.report.eager import fallbacks
from neuron_compiler.report.hlo import Origin, hlo_map, origins
from neuron_compiler.report.summary import size, summary, timings
from neuron_compiler.report.table import table, tsv
from neuron_compiler.runtime import Executable, Layout

PROGRAM = text.parse("""\
graph mlp(%x: f32[128,512], %w: f32[512,512], %i: i64[128]) target=trn3 {
  %mm = aten.mm.default(%x, %w) : f32[128,512]  # model.py:14
  %relu = aten.relu.default(%mm) : f32[128,512]  # model.py:15
  %neg = aten.neg.default(%i) : i64[128]  # model.py:16
  %add = aten.add.Tensor(%relu, %relu) : f32[128,512]  # model.py:17
  %mul = aten.add.Tensor(%add, %relu) : f32[128,512]  # model.py:18
  return %mul, %neg
}
plan {
  group g0_mm_relu matmul (%mm, %relu)
  group g1_neg elementwise (%neg)
  group g2_add elementwise (%add, %mul)
  barrier g0_mm_relu -> g2_add %relu "is read by two"
  tile g0_mm_relu partition=128 free=512 contraction=128 space=[128,512,512] batch=1 sbuf_bytes=589824 psum_bytes=262144
  tile g1_neg partition=128 free=1 contraction=0 space=[128,1,0] batch=1 sbuf_bytes=2048 psum_bytes=0
}
""")


def compilation(**changes):
    layout = Layout.of((128, 512), (512, 1))
    gapped = Layout.of((128,), (2,))
    faults = (("index out of range", IndexError), ("index out of range", IndexError))
    given = {
        "program": PROGRAM,
        "captured": PROGRAM,
        "passes": (
            PassRecord("canonicalize", False, 5, 5, 0, 0.25),
            PassRecord("fuse", True, 5, 5, 3, 0.001),
        ),
        "module": Module("mlp", b"", None, faults),
        "executable": Executable("mlp", None, (layout, layout, gapped), (layout, Layout.of((128,), (1,)))),
        "seconds": {"passes": 0.5, "xla": 12.0},
    }
    return Compilation(**(given | changes))


def test_summary():
    assert summary(compilation()) == (
        """\
mlp for trn3
  5 ops captured, 5 ops after the passes, in 3 groups
  3 arguments of 1.3 MiB, 2 results of 257.0 KiB, 0 constants

Passes
  pass                   ops before  after  groups
  canonicalize  same              5      5       0
  fuse          changed           5      5       3

Groups
  group       kind         tile         tiles  SBUF KiB  PSUM KiB  ops  of
  g0_mm_relu  matmul       128x512x128      4     576.0     256.0    2  mm relu
  g1_neg      elementwise  128x1            1       2.0       0.0    1  neg
  g2_add      elementwise  -                -         -         -    2  add.Tensor*2

Barriers: edges that were not fused
  from        to      value  reason
  g0_mm_relu  g2_add  %relu  is read by two

Notes
  int64 is computed in 64 bits on this host; Trainium does so only where its compiler is asked to (1 op)
  checked in each run, IndexError: index out of range (2 places)
  copied in each call, for their strides have gaps or repeats: argument 2
"""
    )


def test_summary_says_which_groups_run_tile_by_tile():
    found = summary(compilation(emulated=("g0_mm_relu",), not_emulated={"g1_neg": "no tile"}))
    assert "  run tile by tile: g0_mm_relu\n  not run tile by tile: g1_neg: no tile\n" in found


def test_summary_of_a_program_without_groups():
    plain = text.parse("graph one(%x: f32[2]) { return %x }")
    layout = Layout.of((2,), (1,))
    found = summary(
        compilation(
            program=plain,
            captured=plain,
            passes=(),
            module=Module("one", b"", None, ()),
            executable=Executable("one", None, (layout,), (layout,)),
        )
    )
    assert found.startswith("one for trn2\n  0 ops captured, 0 ops after the passes, in 0 groups\n")
    assert found.endswith("Barriers: edges that were not fused\n  none\n\nNotes\n  none\n")


def test_times_are_apart():
    assert timings(compilation()) == (
        "what\tname\tseconds\n"
        "pass\tcanonicalize\t0.250000\npass\tfuse\t0.001000\n"
        "stage\tpasses\t0.500000\nstage\txla\t12.000000\n"
    )


def test_fallbacks_are_counted_and_random_draws_stand_apart():
    sort = Entry("fallback", "aten.sort.default", "no lowering rule", "model.py:3")
    draw = Entry("random", "aten.bernoulli.p", "drawn by ATen", "model.py:9")
    assert fallbacks("graph0_forward", (sort, draw, sort)) == (
        """\
graph0_forward: 2 ops eager, 1 random draw in each call

Not compiled: these run one by one through ATen, between the executables.
  calls  op                 cause             site
      2  aten.sort.default  no lowering rule  model.py:3

Random draws: made by ATen in program order from the user's generator, so that they equal eager's.
  calls  op                cause          site
      1  aten.bernoulli.p  drawn by ATen  model.py:9
"""
    )


def test_fallbacks_of_a_graph_that_is_compiled_whole():
    assert fallbacks("graph0_forward", ()) == "graph0_forward: 0 ops eager, 0 random draws in each call\n"


HLO = """\
HloModule jit_mlp, is_scheduled=true, entry_computation_layout={(f32[128,512]{1,0})->(f32[128,512]{1,0}, s64[128]{0})}

%fused_computation (param_0.1: f32[128,512]) -> f32[128,512] {
  %param_0.1 = f32[128,512]{1,0} parameter(0)
  %constant.2 = f32[] constant(0), metadata={op_name="jit(mlp)/jit(g0_mm_relu)"}
  ROOT %max.1 = f32[128,512]{1,0} maximum(%param_0.1, %b), metadata={op_name="jit(mlp)/jit(g0_mm_relu)/relu/jit(f)/max"}
}

ENTRY %main.2 (arrays_0_.1: f32[128,512]) -> (f32[128,512], s64[128]) {
  %arrays_0_.1 = f32[128,512]{1,0} parameter(0), metadata={op_name="arrays[0]"}
  %dot.0 = f32[128,512]{1,0} dot(%arrays_0_.1, %w), metadata={op_name="jit(mlp)/jit(g0_mm_relu)/mm/dot_general"}
  %neg = s64[128]{0} negate(%arrays_0_.1), metadata={op_name="neg/neg"}
  %fusion = (f32[128,512]{1,0}, s64[128]{0}) fusion(%dot.0), kind=kLoop, calls=%fused_computation
  ROOT %tuple.1 = (f32[128,512]{1,0}, s64[128]{0}) tuple(%fusion, %neg)
}
"""


def test_instructions_lead_back_to_the_users_line():
    assert list(origins(HLO, PROGRAM)) == [
        Origin("fused_computation", "constant.2", "constant", "g0_mm_relu"),
        Origin("fused_computation", "max.1", "maximum", "g0_mm_relu", "relu", "aten.relu.default", "model.py:15"),
        Origin("main.2", "dot.0", "dot", "g0_mm_relu", "mm", "aten.mm.default", "model.py:14"),
        Origin("main.2", "neg", "negate", "g1_neg", "neg", "aten.neg.default", "model.py:16"),
        Origin("main.2", "fusion", "fusion"),
        Origin("main.2", "tuple.1", "tuple"),
    ]


def test_hlo_map_is_a_table():
    lines = hlo_map(HLO, PROGRAM).splitlines()
    assert lines[0].split() == ["computation", "instruction", "opcode", "group", "op", "kind", "line"]
    assert lines[3].split() == ["main.2", "dot.0", "dot", "g0_mm_relu", "mm", "aten.mm.default", "model.py:14"]
    assert lines[6].split() == ["main.2", "tuple.1", "tuple", "-", "-", "-", "-"]


def test_table_lines_up_and_ends_no_line_in_spaces():
    found = table(("name", "n", "note"), [("a", 1, None), ("long", 1000, "x")], numbers=("n",))
    assert found == "name     n  note\na        1  -\nlong  1000  x"


def test_tsv():
    assert tsv(("a", "b"), [(1, "x")]) == "a\tb\n1\tx\n"


@pytest.mark.parametrize(
    ("nbytes", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536 * 1024, "1.5 MiB"), (3 << 40, "3.0 TiB")],
)
def test_size(nbytes, shown):
    assert size(nbytes) == shown
