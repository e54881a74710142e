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
from neuron_compiler.ir.kernel import Access, Affine, Buffer, Instruction, Kernel
from neuron_compiler.trainium import isa
from neuron_compiler.trainium.kernel_walk import Step, Walk

Mask = np.ndarray


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
    flow.run()
    for name in kernel.outputs:
        flow.is_whole(name)


class _Flow(Walk):
    """The state of every element while the loops run; inputs, which are always there, have none."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        for buffer in kernel.buffers:
            base = self.buffers[buffer.of or buffer.name]
            if base.name not in kernel.inputs:
                self.arrays[buffer.name] = self._in_hbm(buffer, base)

    def _in_hbm(self, buffer: Buffer, base: Buffer) -> Mask:
        """The mask of a buffer or view, with one bit for each part of an element that some view of the base has."""
        unit = min(b.dtype.itemsize for b in self.kernel.buffers if base.name in (b.name, b.of))
        parts = buffer.dtype.itemsize // unit
        if buffer is base or 0 in buffer.shape:
            return np.zeros((*buffer.shape, parts), np.uint8)
        flat = self.arrays[base.name].reshape(-1)
        strides = [stride * parts for stride in buffer.strides or ()]
        return np.lib.stride_tricks.as_strided(flat[buffer.start * parts :], (*buffer.shape, parts), (*strides, 1))

    def declaration(self, buffer: Buffer) -> Step:
        mask = self.arrays[buffer.name] = np.zeros(buffer.shape, np.uint8)
        return lambda: mask.fill(State.NOTHING)

    def instruction(self, instruction: Instruction) -> Step:
        call = isa.call_of(instruction, self.buffers)
        spec = isa.SPECS[instruction.opcode]
        reads = [self._state(part.access) for part in call.src if part is not None]
        if spec.updates(call) and instruction.opcode != "nc_matmul":
            # What accumulates reads its last result; a masked write leaves what it does not write.
            reads.append(self._state(instruction.dst[-1]))
        writes = [self._state(access) for access in instruction.dst]
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

    def _state(self, access: Access) -> tuple[str, Callable[[], Mask] | None]:
        """The name of a buffer and where its state is; None for inputs."""
        return access.buffer, self.place(access) if access.buffer in self.arrays else None

    def _fault(self, instruction: Instruction, what: str) -> None:
        shapes: Mapping[str, tuple[int, ...]] = {name: b.shape for name, b in self.buffers.items()}
        where = ", ".join(f"{name}={number}" for name, number in self.env.items())
        raise VerifyError(
            what + (f" (where {where})" if where else ""), op=kernel_text.format_instruction(instruction, shapes)
        )

    def is_whole(self, name: str) -> None:
        """Every element of an output was written."""
        mask = self.arrays[name]
        if mask.all():
            return
        missing = (mask == 0).any(axis=-1)
        first = tuple(int(i) for i in np.argwhere(missing)[0])
        raise VerifyError(
            f"{int(missing.sum())} of {prod(missing.shape)} elements of output %{name} are never written, "
            f"the first at {list(first)}",
            op=kernel_text.format_buffer(self.buffers[name]),
        )
