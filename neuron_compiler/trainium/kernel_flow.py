"""The order of a kernel's reads and writes: nothing is read before it is written, every output is written whole.

The loops are run through with one bit an element in place of numbers, so that what a loop leaves out, a bound that is
one short or a buffer that was meant for another is found wherever it happens, and named with the iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from math import prod

import numpy as np

from neuron_compiler.errors import VerifyError
from neuron_compiler.ir import kernel_text
from neuron_compiler.ir.kernel import Access, Affine, Buffer, Instruction, Kernel, Loop, Statement, all_buffers
from neuron_compiler.trainium import isa

Mask = np.ndarray
Env = dict[str, int]
Step = Callable[[], None]


class State(IntEnum):
    """What an element holds."""

    NOTHING = 0
    WRITTEN = 1
    PRODUCT = 2


def check(kernel: Kernel) -> None:
    """Run through the kernel.

    Raises:
        VerifyError: an instruction reads what nothing wrote, adds to what no product was written to, or an element of
            an output is never written.
    """
    flow = _Flow(kernel)
    for step in flow.steps(kernel.body):
        step()
    for name in kernel.outputs:
        flow.is_whole(name)


class _Flow:
    """The state of every element while the loops run."""

    def __init__(self, kernel: Kernel) -> None:
        self.buffers = all_buffers(kernel)
        self.inputs = frozenset(kernel.inputs)
        self.env: Env = {}
        self.masks: dict[str, Mask] = {}
        for buffer in kernel.buffers:
            base = self.buffers[buffer.of or buffer.name]
            if base.name not in self.inputs:
                self.masks[buffer.name] = self._in_hbm(kernel, buffer, base)

    def _in_hbm(self, kernel: Kernel, buffer: Buffer, base: Buffer) -> Mask:
        """The mask of a buffer or view, with one bit for each part of an element that some view of the base has."""
        unit = min(b.dtype.itemsize for b in kernel.buffers if base.name in (b.name, b.of))
        parts = buffer.dtype.itemsize // unit
        if buffer is base or 0 in buffer.shape:
            return np.zeros((*buffer.shape, parts), np.uint8)
        flat = self.masks[base.name].reshape(-1)
        strides = [stride * parts for stride in buffer.strides or ()]
        return np.lib.stride_tricks.as_strided(flat[buffer.start * parts :], (*buffer.shape, parts), (*strides, 1))

    def steps(self, body: tuple[Statement, ...]) -> list[Step]:
        return [self._step(statement) for statement in body]

    def _step(self, statement: Statement) -> Step:
        if isinstance(statement, Buffer):
            return self._declaration(statement)
        if isinstance(statement, Loop):
            return self._loop(statement)
        return self._instruction(statement)

    def _declaration(self, buffer: Buffer) -> Step:
        mask = self.masks[buffer.name] = np.zeros(buffer.shape, np.uint8)
        return lambda: mask.fill(State.NOTHING)

    def _loop(self, loop: Loop) -> Step:
        steps, env = self.steps(loop.body), self.env

        def run() -> None:
            for i in range(loop.count.at(env)):
                env[loop.variable] = i
                for step in steps:
                    step()
            env.pop(loop.variable, None)

        return run

    def _instruction(self, instruction: Instruction) -> Step:
        call = isa.call_of(instruction, self.buffers)
        spec = isa.SPECS[instruction.opcode]
        reads = [self._place(part.access) for part in call.src if part is not None]
        if spec.updates(call) and instruction.opcode != "nc_matmul":
            # What accumulates reads its last result; a masked write leaves what it does not write.
            reads.append(self._place(instruction.dst[-1]))
        writes = [self._place(access) for access in instruction.dst]
        is_product, env = instruction.opcode == "nc_matmul", self.env
        adds = call.attr("accumulate") if is_product else False
        left = State.PRODUCT if is_product else State.WRITTEN

        def run() -> None:
            for name, read in reads:
                if read is not None and not read().all():
                    self._fault(instruction, f"%{name} is read before it is written")
            for name, write in writes:
                if write is None:
                    self._fault(instruction, f"%{name} is an input, and written")
                found = write()
                if (adds.at(env) if isinstance(adds, Affine) else adds) and not (found == State.PRODUCT).all():
                    self._fault(instruction, f"a product is added to what no product was written to in %{name}")
                found[...] = left

        return run

    def _place(self, access: Access) -> tuple[str, Callable[[], Mask] | None]:
        """The part of the mask, to be taken in each iteration; None for inputs, which are always there."""
        if (mask := self.masks.get(access.buffer)) is None:
            return access.buffer, None
        fixed = [(s.start, (s.size - 1) * s.step + 1, s.step) for s in access.slices]
        env = self.env
        if all(not start.terms for start, _, _ in fixed):
            part = mask[tuple(slice(b.constant, b.constant + span, step) for b, span, step in fixed)]
            return access.buffer, lambda: part

        def place() -> Mask:
            starts = [start.at(env) for start, _, _ in fixed]
            cut = zip(starts, fixed, strict=True)
            return mask[tuple(slice(first, first + span, step) for first, (_, span, step) in cut)]

        return access.buffer, place

    def _fault(self, instruction: Instruction, what: str) -> None:
        shapes: Mapping[str, tuple[int, ...]] = {name: b.shape for name, b in self.buffers.items()}
        where = ", ".join(f"{name}={number}" for name, number in self.env.items())
        raise VerifyError(
            what + (f" (where {where})" if where else ""), op=kernel_text.format_instruction(instruction, shapes)
        )

    def is_whole(self, name: str) -> None:
        """Every element of an output was written."""
        mask = self.masks[name]
        if mask.all():
            return
        missing = (mask == 0).any(axis=-1)
        first = tuple(int(i) for i in np.argwhere(missing)[0])
        raise VerifyError(
            f"{int(missing.sum())} of {prod(missing.shape)} elements of output %{name} are never written, "
            f"the first at {list(first)}",
            op=kernel_text.format_buffer(self.buffers[name]),
        )
