"""The reference that repro scripts compare with: ATen op by op, arguments in range, and differences that are told."""

from dataclasses import replace

import pytest
import torch

from neuron_compiler.errors import CaptureError
from neuron_compiler.ir import text
from neuron_compiler.opdef import REGISTRY
from neuron_compiler.replay import compare, evaluate, from_command_line, random_arguments
from neuron_compiler.replay.arguments import index_limits


def graph(source):
    return text.parse(source).graph


# --- ATen op by op ------------------------------------------------------------------------------------------------


def test_ops_are_looked_up_by_their_own_name():
    g = graph("""
    graph g(%x: f32[2,3]) {
      const %half: f32[] = [0.5]
      %t = aten.permute.default(%x, [1, 0]) : f32[3,2]
      %v = aten.view.default(%t, [6]) : f32[6]
      %m = aten.mul.Tensor(%v, %half) : f32[6]
      %s = aten.topk.default(%m, 2) : (f32[2], i64[2])
      %i = getitem(%s, 1) : i64[2]
      %c = aten.cat.default([%v, %v]) : f32[12]
      %d = aten._to_copy.default(%c, dtype=bf16) : bf16[12]
      return %i, %d
    }""")
    x = torch.tensor([[1.0, 9.0, 3.0], [4.0, 5.0, 6.0]])
    values = evaluate(g, [x])
    assert values["m"].tolist() == [0.5, 2.0, 4.5, 2.5, 1.5, 3.0]
    assert values["i"].tolist() == [2, 5]
    assert values["d"].dtype is torch.bfloat16
    assert values["d"].tolist() == [1.0, 4.0, 9.0, 5.0, 3.0, 6.0] * 2


def test_as_strided_addresses_memory_as_it_lay():
    g = graph("""
    graph g(%x: f32[2,3]) {
      %s = aten.as_strided.default(%x, [2], [1], 1, input_stride=[1, 2]) : f32[2]
      return %s
    }""")
    # Column-major memory is 0 3 1 4 2 5.
    assert evaluate(g, [torch.arange(6.0).reshape(2, 3)])["s"].tolist() == [3.0, 1.0]


def test_an_op_that_pytorch_does_not_have_is_an_error():
    g = graph("graph g(%x: f32[2]) { %y = aten.no_such_op.default(%x) : f32[2]  # model.py:3\n return %y }")
    with pytest.raises(CaptureError, match=r"PyTorch has no op aten\.no_such_op\.default\n.*\n  at: model.py:3"):
        evaluate(g, [torch.zeros(2)])


# --- arguments ----------------------------------------------------------------------------------------------------


def test_arguments_have_the_recorded_types_and_strides():
    g = graph(
        "graph g(%a: f32[4,3], %b: bf16[2,2], %c: bool[64], %d: i64[64], %e: f8e4m3fn[4], %f: c64[2], %g: f32[0,3]) "
        "{ return %a }"
    )
    made = random_arguments(g, {"a": (1, 5), "b": (0, 1)})
    assert [t.dtype for t in made] == [
        torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.float8_e4m3fn, torch.complex64, torch.float32,
    ]  # fmt: skip
    assert made[0].stride() == (1, 5)
    assert made[1].stride() == (0, 1)
    assert made[6].shape == (0, 3)
    assert set(made[2].tolist()) == {False, True}
    assert set(made[3].tolist()) == set(range(1, 8))


def test_the_same_seed_gives_the_same_arguments():
    g = graph("graph g(%a: f32[8]) { return %a }")
    first, again, other = (random_arguments(g, {}, seed)[0] for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(random_arguments(g, {}, 3, positive=True)[0], first.abs())


def test_indices_stay_in_range():
    g = graph("""
    graph g(%rows: i64[4], %at: i64[2], %by: i64[2], %free: i64[4], %w: f32[6,2]) {
      %moved = aten.add.Tensor(%rows, 1) : i64[4]
      %e = aten.embedding.default(%w, %moved) : f32[4,2]
      %i = aten.index.Tensor(%w, [none, %at]) : f32[6,2]
      %s = aten.index_select.default(%w, -2, %by) : f32[2,2]
      %f = aten.mul.Tensor(%free, %free) : i64[4]
      return %e, %i, %s, %f
    }""")
    assert index_limits(g) == {"rows": 3, "at": 1, "by": 3}
    evaluate(g, random_arguments(g, {}))  # raises IndexError where one is out of range


# --- comparison ---------------------------------------------------------------------------------------------------

SCALED = """
graph scaled(%x: f32[4,4], %y: f32[4,4]) {
  %m = aten.mm.default(%x, %y) : f32[4,4]  # model.py:1
  %s = aten.mul.Tensor(%m, 3.0) : f32[4,4]  # model.py:2
  return %s
}
"""


@pytest.fixture
def wrong_mul(monkeypatch):
    """The rule of mul gives twice what it should."""
    record = REGISTRY["aten.mul.Tensor"]
    monkeypatch.setitem(
        REGISTRY._records, record.name, replace(record, lower=lambda *args, **kw: 2 * record.lower(*args, **kw))
    )


def test_what_agrees():
    g = graph(SCALED)
    found = compare(g, random_arguments(g, {"y": (1, 4)}))
    assert found.agrees
    assert found.differences[0].name == "s"
    assert found.differences[0].relative < 1e-5
    assert str(found).endswith("agrees")


@pytest.mark.usefixtures("wrong_mul")
def test_what_differs_is_named(tmp_path):
    ir = tmp_path / "02_input.ir"
    ir.write_text(SCALED)
    found = from_command_line(ir, {"x": (4, 1), "y": (1, 4)}, [(4, 1)], {}, ["--values", "--seed", "1"])
    assert not found.agrees
    assert [(d.name, d.fault) for d in found.differences] == [("m", ""), ("s", "beyond rounding")]
    assert found.differences[1].relative == pytest.approx(1.0)
    lines = str(found).splitlines()
    assert lines[:2] == ["scaled: compiled against ATen op by op", "seed 1"]
    assert lines[4].split()[-3:] == ["beyond", "rounding", "model.py:2"]
    assert lines[-1] == "DIFFERS: 1 of 2, the first is %s"
    assert from_command_line(ir, {}, [(1, 4)], {}, ["--tolerance", "2"]).agrees


def test_floats_without_a_sign_where_a_result_would_be_nan(tmp_path):
    ir = tmp_path / "g.ir"
    ir.write_text("graph g(%x: f32[64]) { %y = aten.pow.Tensor_Scalar(%x, 0.5) : f32[64] return %y }")
    found = from_command_line(ir, {}, [(1,)], {}, [])
    assert found.notes == ("seed 0; positive floats",)
    assert found.agrees


def test_integers_are_compared_exactly():
    g = graph("graph g(%x: i64[4]) { %y = aten.mul.Tensor(%x, 3) : i64[4] return %y }")
    x = torch.tensor([1, 2**62, -5, 0])
    assert compare(g, [x]).differences[0].fault == ""


@pytest.mark.usefixtures("wrong_mul")
def test_integers_that_differ_are_counted():
    g = graph("graph g(%x: i64[4]) { %y = aten.mul.Tensor(%x, 3) : i64[4] return %y }")
    difference = compare(g, [torch.tensor([1, 2, -5, 0])]).differences[0]
    assert (difference.largest, difference.relative, difference.fault) == (3, 0.75, "3 elements")


def test_an_error_on_one_side_is_a_difference():
    g = graph("graph g(%x: f32[2,3]) { %y = aten.view.default(%x, [5]) : f32[5] return %y }")
    x = torch.zeros(2, 3)
    with pytest.raises(Exception, match="view"):
        compare(g, [x])  # the compiler itself refuses: that is raised, not compared
