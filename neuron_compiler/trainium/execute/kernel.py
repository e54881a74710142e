"""A kernel run instruction by instruction: loops stay loops, tiles are numpy arrays, stores round.

In: a kernel and the arrays of its inputs. Out: those of its outputs. What is not yet written holds NaN, or a pattern of
bits in whole numbers, so that a kernel that reads it gives something else. Uses nothing of the lowering rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from neuron_compiler import dtypes
from neuron_compiler.errors import RuntimeFault
from neuron_compiler.ir import kernel_text
from neuron_compiler.ir.kernel import Access, Affine, Buffer, Instruction, Kernel, Loop, Statement, all_buffers
from neuron_compiler.trainium import isa, kernel_checks
from neuron_compiler.trainium.execute.instructions import COMPUTE, Work
from neuron_compiler.trainium.execute.storing import Rounding

Array = np.ndarray
Step = Callable[[], None]
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
    for step in machine.steps(kernel.body):
        step()
    return [machine.arrays[name] for name in kernel.outputs]


class _Machine:
    """Memory, loop variables, and statements made into functions."""

    def __init__(self, kernel: Kernel, inputs: Sequence[Array], rounding: Rounding) -> None:
        self.kernel, self.rounding = kernel, rounding
        self.buffers = all_buffers(kernel)
        self.env: dict[str, int] = {}
        self.arrays: dict[str, Array] = {}
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

    def steps(self, body: tuple[Statement, ...]) -> list[Step]:
        return [self._step(statement) for statement in body]

    def _step(self, statement: Statement) -> Step:
        if isinstance(statement, Buffer):
            array = self.arrays[statement.name] = _unwritten(statement)
            return lambda: _forget(array)
        if isinstance(statement, Loop):
            return self._loop(statement)
        return self._instruction(statement)

    def _loop(self, loop: Loop) -> Step:
        steps, env = self.steps(loop.body), self.env

        def run() -> None:
            for i in range(loop.count.at(env)):
                env[loop.variable] = i
                for step in steps:
                    step()

        return run

    def _instruction(self, instruction: Instruction) -> Step:
        call = isa.call_of(instruction, self.buffers)
        spec, compute = isa.SPECS[instruction.opcode], COMPUTE[instruction.opcode]
        attrs = {**spec.defaults, **dict(instruction.attrs)}
        moving = {name: found for name, found in attrs.items() if isinstance(found, Affine)}
        src: list[Any] = [self._place(o) if isinstance(o, Access) else o for o in instruction.src]
        dst = [(self._place(part.access), part.dtype) for part in call.dst]
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

    def _place(self, access: Access) -> Callable[[], Array]:
        """The part of an array, to be taken in each iteration."""
        array, env = self.arrays[access.buffer], self.env
        cuts = [(s.start, (s.size - 1) * s.step + 1, s.step) for s in access.slices]
        if all(not start.terms for start, _, _ in cuts):
            fixed = array[tuple(slice(start.constant, start.constant + span, step) for start, span, step in cuts)]
            return lambda: fixed

        def place() -> Array:
            starts = [start.at(env) for start, _, _ in cuts]
            pairs = zip(starts, cuts, strict=True)
            return array[tuple(slice(first, first + span, step) for first, (_, span, step) in pairs)]

        return place


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
