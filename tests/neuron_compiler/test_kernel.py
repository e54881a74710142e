"""Kernels as data: indices, text and back, the builder."""

from __future__ import annotations

import re
from pathlib import Path

import expecttest
import pytest
from published_kernels import causal_attention, layer_norm, matmul, softmax

from neuron_compiler.errors import ParseError, VerifyError
from neuron_compiler.ir import kernel_text
from neuron_compiler.ir.graph import DType
from neuron_compiler.ir.kernel import Affine, Kernel, Loop, affine, bounds, row_major
from neuron_compiler.trainium.builder import KernelBuilder, ds

IX, JX = Affine(0, (("i", 1),)), Affine(0, (("j", 1),))
KERNELS = {
    "matmul": matmul(256, 256, 512),
    "softmax": softmax(256, 96),
    "layer_norm": layer_norm(128, 512),
    "attention": causal_attention(256, 64),
}


def test_indices_are_sums_of_multiples() -> None:
    index = 128 * IX + 4 - 2 * JX
    assert index == Affine(4, (("i", 128), ("j", -2)))
    assert index.at({"i": 3, "j": 5}) == 378
    assert index - index == affine(0)
    assert (5 - IX).at({"i": 2}) == 3
    assert [str(a) for a in (index, -IX, affine(-3), IX - 1, JX - IX)] == [
        "128*i - 2*j + 4",
        "-i",
        "-3",
        "i - 1",
        "-i + j",
    ]


def loop(name: str, count: Affine | int) -> Loop:
    return Loop(name, affine(count), ())


def test_bounds_of_an_index() -> None:
    square = (loop("i", 4), loop("j", 8))
    assert bounds(128 * IX - JX + 2, square) == (-5, 386)
    # Exact where a count depends on an outer variable: j is at most i, and at most 3 - i.
    assert bounds(IX - JX, (loop("i", 4), loop("j", IX + 1))) == (0, 3)
    assert bounds(IX + JX, (loop("i", 4), loop("j", 4 - IX))) == (0, 3)


def test_strides() -> None:
    assert row_major((2, 3, 4)) == (12, 4, 1)
    assert row_major(()) == ()


@pytest.mark.parametrize("name", KERNELS)
def test_text_reads_back(name: str) -> None:
    kernel = KERNELS[name]
    assert kernel_text.parse(str(kernel)) == kernel
    assert str(kernel_text.parse(str(kernel))) == str(kernel)


def every_form() -> Kernel:
    b = KernelBuilder('odd "name"', "trn3")
    y = b.output("y", DType.F32, (8, 2, 3))
    x = b.input("x", DType.F32, (8, 2, 6))
    more = b.input("in.2", DType.F32, (8,))
    s = b.sbuf("s", DType.F32, (8, 2, 3), copies=3)
    c = b.sbuf("c", DType.F32, (8, 1))
    b.dma_copy(c, more.viewed((8, 1), (-1, 1), 7))
    with b.loop("i", 2) as i, b.loop("j", i + 1, sequential=True) as j:
        with b.computing("mul", "add 3"):
            b.dma_copy(s[:, i], x[:, i, 0:6:2])
        b.tensor_scalar(s[:, ds(i, 1), :], s[:, i], -2.5, c, op0="multiply", op1="add", reverse1=True)
        b.affine_select(s[:, i], s[:, i], float("-inf"), steps=(0, -1), offset=3 - 2 * j, cmp_op="less")
    b.dma_copy(y, s)
    return b.build()


def test_every_form_of_the_text() -> None:
    kernel = every_form()
    assert kernel_text.parse(str(kernel)) == kernel
    expecttest.TestCase().assertExpectedInline(
        str(kernel),
        """\
kernel "odd \\"name\\"" target=trn3 {
  hbm %y: f32[8,2,3] output
  hbm %x: f32[8,2,6] input
  hbm %in.2: f32[8] input
  hbm %in.2.v: f32[8,1] of %in.2 strides=[-1,1] start=7
  sbuf %s: f32[8,2,3] copies=3
  sbuf %c: f32[8,1]
  %c[:, :] = dma.dma_copy(%in.2.v[:, :])
  for i in 2 {
    for j in i + 1 sequential {
      %s[:, i:+1, :] = dma.dma_copy(%x[:, i:+1, 0:+3:2])  # %mul, %"add 3"
      %s[:, i:+1, :] = vector.tensor_scalar(%s[:, i:+1, :], -2.5, %c[:, :], op0="multiply", op1="add", reverse1=true)
      %s[:, i:+1, :] = gpsimd.affine_select(%s[:, i:+1, :], -inf, cmp_op="less", offset=-2*j + 3, steps=[0, -1])
    }
  }
  %y[:, :, :] = dma.dma_copy(%s[:, :, :])
}
""",
    )


FAULTS = {
    "kernel k {\n  sram %x: f32[2,2]\n}": "line 2, column 3: expected an instruction, 'for', 'sbuf', 'psum' or '}'",
    "kernel k {\n  sbuf %x: f32[2,2] copy=2\n}": "'copy' is no field of a buffer; did you mean 'copies'?",
    "kernel k {\n  sbuf %x: f32[2,2]\n  %x[:, :] = vectr.memset(0.0)\n}": "did you mean 'vector'?",
    "kernel k {\n  %x[:] = vector.memset(0.0)\n}": "dimension 0 of %x is not known; it needs start:+size",
    "kernel k {\n  sbuf %x: f32[2,2]\n  %x[0:2, :] = vector.memset(0.0)\n}": "expected '+' after ':'",
    "kernel k {\n  for i in 2.5 {\n  }\n}": "2.5 is no whole number",
    "kernel k {\n  sbuf %x: f32[2,2]\n  hbm %y: f32[2]\n}": "buffers in HBM are declared before the first statement",
    "kernel k {\n": "found the end of the text",
    "kernel k {\n} x": "expected the end of the text, found 'x'",
    "graph g {}": "expected 'kernel' after the begin of the text",
    "kernel k {\n  sbuf %x: f32[2,2]\n  %x[:, :] = vector.memset(value=1.0, 0.0)\n}": "positional operand stands after",
    'kernel k {\n  sbuf %x: f32[2,2]\n  %x[:, :] = gpsimd.iota(steps=["a"])\n}': "a list holds whole numbers",
}


@pytest.mark.parametrize("text", FAULTS)
def test_faults_of_a_text_are_shown_at_their_place(text: str) -> None:
    with pytest.raises(ParseError) as error:
        kernel_text.parse(text)
    assert FAULTS[text] in str(error.value)
    assert str(error.value).splitlines()[-1].strip() == "^"


# The builder


def test_the_builder_names_and_shares() -> None:
    b = KernelBuilder("k")
    x = b.input("x", DType.F32, (4, 8))
    assert x.permuted(1, 0).buffer is x.permuted(1, 0).buffer
    assert x.permuted(1, 0).permuted(1, 0).buffer.of == "x"
    assert b.sbuf("s", DType.F32, (4, 8)).buffer.name == "s"
    assert b.sbuf("s", DType.F32, (4, 8)).buffer.name == "s.2"
    assert x[1, 2:8:2].shape == (1, 3)
    assert x[..., 3].shape == (4, 1)
    with pytest.raises(IndexError, match="%x has 2 dimensions and 3 indices"):
        x[0, 0, 0]
    with pytest.raises(AttributeError, match="nc_multiply is no instruction"):
        b.nc_multiply(x, x)


def test_an_open_loop_is_said() -> None:
    b = KernelBuilder("k")
    with b.loop("i", 2), pytest.raises(VerifyError, match="built while a loop is open"):
        b.build()


def test_an_empty_loop_is_left_out() -> None:
    b = KernelBuilder("k")
    with b.loop("i", 2):
        pass
    assert b.build().body == ()


def test_the_page_shows_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "kernels.md").read_text()
    code, printed = re.search(r"```python\n(.*?)```\n\nprints\n\n```\n(.*?)```", page, re.S).groups()
    exec(code, {})
    assert capsys.readouterr().out.rstrip("\n") == printed.rstrip("\n")
