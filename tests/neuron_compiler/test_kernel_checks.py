"""What the checks of kernels refuse, and that no change of a kernel goes by: it fails, or gives something else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from published_kernels import causal_attention, layer_norm, matmul, softmax

from neuron_compiler import dtypes
from neuron_compiler.errors import CapacityError, NeuronCompilerError, VerifyError
from neuron_compiler.ir import kernel_text
from neuron_compiler.ir.kernel import Access, Affine, Buffer, Instruction, Kernel, Loop, Slice, Statement, all_buffers
from neuron_compiler.ir.plan import Space
from neuron_compiler.trainium import kernel_checks, kernel_memory
from neuron_compiler.trainium.execute.kernel import run
from neuron_compiler.trainium.target import TARGETS, TRN2


def refused(body: str, *, target: str = "trn2", hbm: str = "") -> str:
    """The message for a kernel of these lines."""
    with pytest.raises(NeuronCompilerError) as error:
        kernel_checks.verify(kernel_text.parse(f"kernel k target={target} {{\n{hbm}\n{body}\n}}"), when="test")
    assert isinstance(error.value, VerifyError | CapacityError)
    return str(error.value)


SQUARE = "sbuf %s: f32[128,128]\nsbuf %t: f32[128,128]\n%s[:, :] = vector.memset(0.0)\n%t[:, :] = vector.memset(0.0)\n"
PSUM = SQUARE + "psum %p: f32[128,128]\n"
LONG = "sbuf %s: bf16[128,128]\nsbuf %t: bf16[128,1024]\n%s[:, :] = vector.memset(0.0)\n%t[:, :] = vector.memset(0.0)\n"

REFUSED = {
    "twice": (SQUARE + "sbuf %s: f32[1,1]", "%s is declared twice"),
    "hbm with copies": ("", "%x in HBM has a place or copies", "hbm %x: f32[2] copies=2"),
    "no free extent": ("sbuf %s: f32[128]", "%s has the extents [128]"),
    "empty": ("sbuf %s: f32[0,2]", "%s has the extents [0, 2]"),
    "view of nothing": ("", "%v is a view of %x, which is not declared", "hbm %v: f32[2] of %x strides=[1]"),
    "view outside": (
        "",
        "%v reaches from element 1 to 4 of %x, which has 4",
        "hbm %x: f32[4] input\nhbm %v: f32[4] of %x strides=[1] start=1",
    ),
    "variable twice": ("for i in 2 {\nfor i in 2 {\n}\n}", "i is the variable of an outer loop already"),
    "unknown count": ("for i in j {\n}", "j is no variable of a loop around it"),
    "negative count": ("for i in 3 {\nfor j in i - 1 {\n}\n}", "the count of the loop over j can be -1"),
    "scope": ("for i in 1 {\nsbuf %s: f32[1,1]\n}\n%s[0:+1, 0:+1] = vector.memset(0.0)", "%s is not declared before"),
    "opcode": (SQUARE + "%s[:, :] = vector.tensor_multiply(%t[:, :])", "tensor_multiply is no instruction"),
    "engine": (SQUARE + "%s[:, :] = tensor.tensor_copy(%t[:, :])", "tensor does not execute tensor_copy"),
    "operands": (SQUARE + "%s[:, :] = vector.tensor_copy()", "tensor_copy has 0 operands and takes 1"),
    "number": (SQUARE + "%s[:, :] = vector.tensor_copy(1.0)", "src of tensor_copy cannot be the number 1.0"),
    "tile": (SQUARE + "%s[:, :] = vector.memset(%t[:, :])", "value of memset cannot be %t"),
    "no attribute": (SQUARE + '%s[:, :] = vector.tensor_copy(%t[:, :], op="add")', "tensor_copy has no attribute op"),
    "choice": (
        SQUARE + '%s[:, :] = vector.tensor_tensor(%s[:, :], %t[:, :], op="plus")',
        "attribute op of tensor_tensor cannot be 'plus'",
    ),
    "missing": (SQUARE + "%s[:, :] = vector.tensor_tensor(%s[:, :], %t[:, :])", "tensor_tensor needs op"),
    "outside": (
        SQUARE + "for i in 3 {\n%s[:, 64*i:+64] = vector.memset(0.0)\n}",
        "dimension 1 of %s has 128 places, and 0 to 191 are taken",
    ),
    "rank": (SQUARE + "%s[0:+1] = vector.memset(0.0)", "%s has 2 dimensions and 1 slices"),
    "space": (SQUARE + "%s[:, :] = tensor.nc_matmul(%s[:, :], %t[:, :])", "dst of nc_matmul lies in psum, not sbuf"),
    "hbm operand": ("%x[:, :] = vector.memset(0.0)", "dst of memset lies in psum or sbuf, not hbm", "hbm %x: f32[2,2]"),
    "gpsimd and psum": (PSUM + "%p[:, :] = gpsimd.tensor_copy(%s[:, :])", "gpsimd does not reach PSUM"),
    "wide": ("sbuf %s: f64[1,1]\n%s[:, :] = vector.memset(0.0)", "no engine has f64"),
    "column": (
        SQUARE + '%s[:, :] = vector.tensor_scalar(%t[:, :], %t[:, 0:+2], op0="add")',
        "operand0 of tensor_scalar has one element in each partition",
    ),
    "reach": (
        "sbuf %s: bf16[1,100000]\n%s[:, :] = vector.memset(0.0)",
        "has more than 65536 elements in a partition",
    ),
    "start": (
        SQUARE + "%s[16:+32, :] = vector.memset(0.0)",
        "begins at partition 16; 32 of them may begin at 0, 32, 64, 96",
    ),
    "start of many": (SQUARE + "%s[32:+96, :] = vector.memset(0.0)", "96 of them may begin at 0"),
    "every second partition": (SQUARE + "%s[0:+32:2, :] = vector.memset(0.0)", "takes every 2th partition"),
    "partitions": (
        SQUARE + "%s[0:+64, :] = vector.tensor_copy(%t[:, :])",
        "%t of [128, 128] and %s of [64, 128] span other partitions",
    ),
    "free": (
        SQUARE + "%s[:, 0:+64] = vector.tensor_copy(%t[:, :])",
        "have other numbers of elements in a partition",
    ),
    "contraction": (
        PSUM + "%p[:, :] = tensor.nc_matmul(%s[0:+64, :], %t[:, :])",
        "are contracted over other partitions",
    ),
    "product": (
        PSUM + "%p[:, :] = tensor.nc_matmul(%s[:, 0:+64], %t[:, :])",
        "%p of [128, 128] is not the 64 rows by 128 columns",
    ),
    "moving": (
        LONG + "psum %p: f32[128,1024]\n%p[:, :] = tensor.nc_matmul(%s[:, :], %t[:, :])",
        "has 1024 columns; at most 512 are streamed at once",
    ),
    "stationary": (
        "sbuf %s: bf16[2,130]\n%s[:, :] = vector.memset(0.0)\npsum %p: f32[130,130]\n"
        "%p[:, :] = tensor.nc_matmul(%s[:, :], %s[:, :])",
        "has 130 columns; the array has 128",
    ),
    "whole numbers": (
        "sbuf %s: i32[8,8]\npsum %p: f32[8,8]\n%s[:, :] = vector.memset(0)\n"
        "%p[:, :] = tensor.nc_matmul(%s[:, :], %s[:, :])",
        "tensor multiplies floats",
    ),
    "mixed": (
        LONG + "sbuf %f: f32[128,128]\npsum %p: f32[128,128]\n%f[:, :] = vector.memset(0.0)\n"
        "%p[:, :] = tensor.nc_matmul(%s[:, :], %f[:, :])",
        "fp32 goes with fp32",
    ),
    "product in bf16": (
        LONG + "psum %p: bf16[128,128]\n%p[:, :] = tensor.nc_matmul(%s[:, :], %s[:, :])",
        "products are written as f32 on trn2",
    ),
    "bank": (
        LONG + "psum %p: f32[128,768]\n%p[:, 384:+384] = tensor.nc_matmul(%s[:, :], %t[:, 0:+384])",
        "1536 bytes of %p from byte 1536 of a bank of 2048 reach into the next",
    ),
    "transpose": (PSUM + "%p[:, 0:+64] = tensor.nc_transpose(%s[:, :])", "is not %s of [128, 128] transposed"),
    "large transpose": (SQUARE + "%t[:, :] = vector.nc_transpose(%s[:, :])", "is larger than 32 by 32"),
    "transpose in sbuf": (SQUARE + "%t[:, :] = tensor.nc_transpose(%s[:, :])", "tensor transposes from SBUF to PSUM"),
    "reduce": (
        SQUARE + '%t[:, 0:+3] = vector.tensor_reduce(%s[:, :], op="add")',
        "the elements of %s of [128, 128] cannot be folded",
    ),
    "statistics": (
        "sbuf %s: f32[1,600]\nsbuf %t: f32[1,6]\n%s[:, :] = vector.memset(0.0)\n%t[:, :] = vector.bn_stats(%s[:, :])",
        "has more than 512 elements",
    ),
    "top of few": (
        "sbuf %s: f32[1,4]\nsbuf %t: f32[1,8]\n%s[:, :] = vector.memset(0.0)\n%t[:, :] = vector.max8(%s[:, :])",
        "has not 8 to 16384 elements",
    ),
    "capacity": ("sbuf %s: f32[128,60000]\n%s[0:+1, 0:+1] = vector.memset(0.0)", "needs 240000 bytes of sbuf"),
    "copies": ("sbuf %s: f32[128,30000] copies=2\n%s[0:+1, 0:+1] = vector.memset(0.0)", "needs 240000 bytes of sbuf"),
    "overlap": (
        "sbuf %s: f32[128,4] address=0\nsbuf %t: f32[128,4] address=12\n%s[:, :] = vector.memset(0.0)\n"
        "%t[:, :] = vector.tensor_copy(%s[:, :])",
        "%s and %t are needed at once and share bytes of sbuf",
    ),
    "place": ("psum %s: f32[128,512] address=15000", "%s lies in bytes 15000 to 17048 of 16384"),
    "too many partitions": ("sbuf %s: f32[64,4] partition=96", "spans more partitions than the 128"),
    "read first": (
        "sbuf %s: f32[8,8]\nsbuf %t: f32[8,8]\n%t[:, :] = vector.tensor_copy(%s[:, :])",
        "%s is read before it is written",
    ),
    "read in a later iteration": (
        "sbuf %t: f32[8,8]\nfor i in 2 {\nsbuf %s: f32[8,8]\nfor j in 1 - i {\n%s[:, :] = vector.memset(0.0)\n}\n"
        "%t[:, :] = vector.tensor_copy(%s[:, :])\n}",
        "%s is read before it is written (where i=1)",
    ),
    "accumulate first": (
        PSUM + "for i in 2 {\n%p[:, :] = tensor.nc_matmul(%s[:, :], %t[:, :], accumulate=i + 1)\n}",
        "a product is added to what no product was written to in %p (where i=0)",
    ),
    "accumulate on another": (
        PSUM + "%p[:, :] = vector.memset(0.0)\n%p[:, :] = tensor.nc_matmul(%s[:, :], %t[:, :], accumulate=true)",
        "a product is added to what no product was written to",
    ),
    "output not whole": (
        "sbuf %s: f32[8,8]\n%s[:, :] = vector.memset(0.0)\n%y[:, 0:+7] = dma.dma_copy(%s[:, 0:+7])",
        "8 of 64 elements of output %y are never written, the first at [0, 7]",
        "hbm %y: f32[8,8] output",
    ),
    "input written": (
        "sbuf %s: f32[8,8]\n%s[:, :] = vector.memset(0.0)\n%x[:, :] = dma.dma_copy(%s[:, :])",
        "%x is an input, and written",
        "hbm %x: f32[8,8] input",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    body, wanted, *hbm = REFUSED[name]
    message = refused(body, hbm=hbm[0] if hbm else "")
    assert wanted in message, message


def test_the_message_shows_the_instruction_and_the_stage() -> None:
    message = refused(SQUARE + "%s[16:+32, :] = vector.memset(0.0)")
    assert "  op: %s[16:+32, :] = vector.memset(0.0)" in message
    assert "  in: test" in message


def test_a_machine_may_allow_what_another_does_not() -> None:
    text = (
        "kernel k target=trn3 {\n"
        + LONG
        + "psum %p: bf16[128,1024]\n%p[:, :] = tensor.nc_matmul(%s[:, :], %t[:, :])\n}"
    )
    kernel_checks.verify(kernel_text.parse(text))


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda t: t.name)
def test_where_accesses_begin(target: object) -> None:
    assert TRN2.start_partitions(128) == (0,)
    assert TRN2.start_partitions(65) == (0,)
    assert TRN2.start_partitions(64) == (0, 64)
    assert TRN2.start_partitions(32) == (0, 32, 64, 96)
    assert TRN2.start_partitions(1) == (0, 32, 64, 96)


def test_live_ranges_and_peaks() -> None:
    text = """kernel k {
      hbm %y: f32[8,8] output
      sbuf %a: f32[8,100]
      %a[:, :] = vector.memset(0.0)
      sbuf %b: f32[8,8]
      %b[:, :] = vector.tensor_copy(%a[:, 0:+8])
      sbuf %c: f32[8,200]
      %c[:, :] = vector.memset(0.0)
      for i in 2 {
        sbuf %d: f32[8,8] copies=2
        %d[:, :] = vector.tensor_tensor(%b[:, :], %c[:, 0:+8], op="add")
        sbuf %e: f32[8,8]
        %e[:, :] = vector.tensor_copy(%d[:, :])
        %y[:, :] = dma.dma_copy(%e[:, :])
      }
    }"""
    kernel = kernel_text.parse(text)
    kernel_checks.verify(kernel)
    live = {found.buffer.name: found for found in kernel_memory.live_ranges(kernel)}
    meets = {(a, b) for a in live for b in live if a < b and live[a].meets(live[b])}
    assert meets == {*(("a", "b"),), ("b", "c"), ("b", "d"), ("b", "e"), ("c", "d"), ("c", "e"), ("d", "e")}
    # b, c, two copies of d, and e.
    assert kernel_memory.peak_bytes_per_partition(kernel, Space.SBUF) == 4 * (8 + 200 + 16 + 8)
    assert kernel_memory.peak_bytes_per_partition(kernel, Space.PSUM) == 0


# No change goes by

PUBLISHED = {
    "matmul": matmul(256, 256, 256, columns=256),
    "softmax": softmax(256, 40),
    "layer_norm": layer_norm(256, 1024),
    "attention": causal_attention(256, 32),
}


def rewritten(
    body: tuple[Statement, ...], at: int, change: Callable[[Statement], Statement | None]
) -> tuple[Statement, ...]:
    """The statement at a place, in program order, changed or left out."""
    position = -1

    def inside(body: tuple[Statement, ...]) -> Iterator[Statement]:
        nonlocal position
        for statement in body:
            position += 1
            found: Statement | None = statement
            if position == at:
                found = change(statement)
            if isinstance(found, Loop):
                yield replace(found, body=tuple(inside(found.body)))
            elif found is not None:
                yield found

    return tuple(inside(body))


def shorter(access: Access, axis: int, by: int) -> Access:
    slices = list(access.slices)
    slices[axis] = replace(slices[axis], size=slices[axis].size - by)
    return replace(access, slices=tuple(slices))


def moved(access: Access, axis: int) -> Access:
    slices = list(access.slices)
    slices[axis] = Slice(slices[axis].start + 1, slices[axis].size, slices[axis].step)
    return replace(access, slices=tuple(slices))


def changes(
    statement: Statement, buffers: dict[str, Buffer]
) -> Iterator[tuple[str, Callable[[Statement], Statement | None]]]:
    if isinstance(statement, Buffer):
        return
    if isinstance(statement, Loop):
        for by in (-1, 1):
            yield f"count {by:+}", lambda s, by=by: replace(s, count=s.count + by)
        return
    yield "left out", lambda s: None
    for i, access in enumerate(statement.dst):
        for axis in range(len(access.slices)):
            yield (
                f"dst {i} axis {axis} shorter",
                lambda s, i=i, axis=axis: replace(
                    s, dst=tuple(shorter(a, axis, 1) if j == i else a for j, a in enumerate(s.dst))
                ),
            )
    for i, operand in enumerate(statement.src):
        if isinstance(operand, Access):
            yield (
                f"src {i} moved",
                lambda s, i=i: replace(s, src=tuple(moved(a, 1) if j == i else a for j, a in enumerate(s.src))),
            )
            for name, other in buffers.items():
                same = other.type == buffers[operand.buffer].type and other.space is buffers[operand.buffer].space
                if name != operand.buffer and same:
                    yield (
                        f"src {i} from {name}",
                        lambda s, i=i, name=name: replace(
                            s, src=tuple(replace(a, buffer=name) if j == i else a for j, a in enumerate(s.src))
                        ),
                    )
    for name, found in statement.attrs:
        if isinstance(found, Affine) or name == "accumulate":
            for other in (False, True):
                yield (
                    f"{name}={other}",
                    lambda s, name=name, other=other: replace(
                        s, attrs=tuple((n, other if n == name else v) for n, v in s.attrs)
                    ),
                )


@pytest.mark.parametrize("name", PUBLISHED)
def test_no_change_goes_by(name: str) -> None:
    """Each single change of a published kernel fails a check, or gives another result."""
    kernel = PUBLISHED[name]
    buffers = all_buffers(kernel)
    g = np.random.default_rng(0)
    inputs = [g.normal(size=buffers[n].shape).astype(dtypes.to_numpy(buffers[n].dtype)) for n in kernel.inputs]
    wanted = run(kernel, inputs)
    unseen, tried = [], 0
    flat = list(_flat(kernel.body))
    for at, statement in enumerate(flat):
        for what, change in changes(statement, buffers):
            tried += 1
            mutant = replace(kernel, body=rewritten(kernel.body, at, change))
            try:
                with np.errstate(all="ignore"):
                    found = run(mutant, inputs)
            except NeuronCompilerError:
                continue
            if all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True)):
                line = (
                    statement.variable if isinstance(statement, Loop) else kernel_text.format_instruction(statement, {})
                )
                unseen.append(f"{what}: {line}")
    assert tried > 20
    assert unseen == []


def _flat(body: tuple[Statement, ...]) -> Iterator[Statement]:
    for statement in body:
        yield statement
        if isinstance(statement, Loop):
            yield from _flat(statement.body)


def test_instructions_are_not_changed_by_running() -> None:
    kernel = PUBLISHED["softmax"]
    before = str(kernel)
    run(kernel, [np.ones((256, 40), np.float32)])
    assert str(kernel) == before
    assert isinstance(kernel, Kernel)
    assert any(isinstance(s, Instruction) for s in _flat(kernel.body))
