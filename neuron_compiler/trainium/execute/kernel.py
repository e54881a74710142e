"""A kernel run instruction by instruction: loops stay loops, tiles are numpy arrays, stores round.

In: a kernel and the arrays of its inputs. Out: those of its outputs. What is not yet written holds NaN, or a pattern of
bits in whole numbers, so that a kernel that reads it gives something else. Uses nothing of the lowering rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from neuron_compiler import dtypes
from neuron_compiler.errors import RuntimeFault
from neuron_compiler.ir import kernel_text
from neuron_compiler.ir.kernel import Access, Affine, Buffer, Instruction, Kernel
from neuron_compiler.trainium import isa, kernel_checks
from neuron_compiler.trainium.execute.instructions import COMPUTE, Work
from neuron_compiler.trainium.execute.storing import Rounding
from neuron_compiler.trainium.kernel_walk import Step, Walk

Array = np.ndarray
NOT_WRITTEN = 0xA5
"""Each byte of a whole number that nothing wrote."""


def run(
    kernel: Kernel, inputs: Sequence[Array], rounding: Rounding | None = None, *, verify: bool = True
) -> list[Array]:
    """Execute a kernel.

    Args:
        kernel: what to run.
        inputs: one array an input, of its shape and of the numpy type of its element type.
        rounding: how stores round; to nearest by default.
        verify: check the kernel before.

    Raises:
        VerifyError, CapacityError: the kernel cannot run on its target.
        RuntimeFault: the arrays are not those of the inputs, or an index is out of range.
    """
    if verify:
        kernel_checks.verify(kernel)
    machine = _Machine(kernel, inputs, rounding or Rounding())
    machine.run()
    return [machine.arrays[name] for name in kernel.outputs]


class _Machine(Walk):
    """Memory, and what each statement does to it."""

    def __init__(self, kernel: Kernel, inputs: Sequence[Array], rounding: Rounding) -> None:
        super().__init__(kernel)
        self.rounding = rounding
        if len(inputs) != len(kernel.inputs):
            raise RuntimeFault(f"kernel {kernel.name} takes {len(kernel.inputs)} inputs, and {len(inputs)} are given")
        given = dict(zip(kernel.inputs, inputs, strict=True))
        for buffer in kernel.buffers:
            if buffer.of is not None:
                self.arrays[buffer.name] = _view(self.arrays[buffer.of], buffer)
            elif buffer.name in given:
                self.arrays[buffer.name] = _input(buffer, given[buffer.name])
            else:
                self.arrays[buffer.name] = _unwritten(buffer)

    def declaration(self, buffer: Buffer) -> Step:
        array = self.arrays[buffer.name] = _unwritten(buffer)
        return lambda: _forget(array)

    def instruction(self, instruction: Instruction) -> Step:
        call = isa.call_of(instruction, self.buffers)
        spec, compute = isa.SPECS[instruction.opcode], COMPUTE[instruction.opcode]
        attrs = {**spec.defaults, **dict(instruction.attrs)}
        moving = {name: found for name, found in attrs.items() if isinstance(found, Affine)}
        src: list[Any] = [self.place(o) if isinstance(o, Access) else o for o in instruction.src]
        dst = [(self.place(part.access), part.dtype) for part in call.dst]
        tables = [part is not None and instruction.opcode == "dma_gather" and i == 0 for i, part in enumerate(call.src)]
        updates, whole = spec.updates(call), instruction.opcode == "dma_scatter"
        env, rounding = self.env, self.rounding

        def run() -> None:
            read = [
                (place() if table else _tile(place())) if callable(place) else place
                for place, table in zip(src, tables, strict=True)
            ]
            places = [(place(), dtype) for place, dtype in dst]
            prior = [place if whole else _tile(place) for place, _ in places] if updates else []
            now = {**attrs, **{name: index.at(env) for name, index in moving.items()}} if moving else attrs
            for (place, dtype), found in zip(places, compute(Work(call, now, read, prior)), strict=True):
                place[...] = rounding(found, dtype).reshape(place.shape)

        return run


def _tile(array: Array) -> Array:
    """[partition, free]; what has one dimension has one element a partition."""
    return array.reshape(array.shape[0], -1) if array.ndim else array.reshape(1, 1)


def _input(buffer: Buffer, given: Array) -> Array:
    wanted = dtypes.to_numpy(buffer.dtype)
    if given.shape != buffer.shape or given.dtype != wanted:
        raise RuntimeFault(
            f"input %{buffer.name} is {buffer.type}, and an array of {given.dtype}{list(given.shape)} is given",
            op=kernel_text.format_buffer(buffer),
        )
    return np.ascontiguousarray(given)


def _view(base: Array, buffer: Buffer) -> Array:
    dtype = dtypes.to_numpy(buffer.dtype)
    if 0 in buffer.shape:
        return np.empty(buffer.shape, dtype)
    # By its bits: numpy's strides do not know ml_dtypes' types.
    flat = base.reshape(-1).view(f"u{dtype.itemsize}")
    strides = [stride * dtype.itemsize for stride in buffer.strides or ()]
    return np.lib.stride_tricks.as_strided(flat[buffer.start :], buffer.shape, strides).view(dtype)


def _unwritten(buffer: Buffer) -> Array:
    array = np.empty(buffer.shape, dtypes.to_numpy(buffer.dtype))
    _forget(array)
    return array


def _forget(array: Array) -> None:
    if array.dtype.kind in "iub":
        array.view(np.uint8)[...] = 1 if array.dtype == np.bool_ else NOT_WRITTEN
    else:
        array[...] = np.nan
