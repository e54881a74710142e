"""A kernel gone through statement by statement, its loops in order: what running it and checking its flow share.

Each statement is made into a function once, so that an iteration costs little more than what it does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np

from neuron_compiler.ir.kernel import Access, Buffer, Instruction, Kernel, Loop, Statement, all_buffers

Step = Callable[[], None]


class Walk(ABC):
    """One way through a kernel.

    Attributes:
        kernel: what is gone through.
        buffers: all of them by name.
        env: the loop variables where the walk is.
        arrays: what stands for each buffer, one element for each of its own in the first dimensions.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.buffers = all_buffers(kernel)
        self.env: dict[str, int] = {}
        self.arrays: dict[str, np.ndarray] = {}

    @abstractmethod
    def declaration(self, buffer: Buffer) -> Step:
        """What a declaration does in each iteration; puts the buffer's array into ``arrays``."""

    @abstractmethod
    def instruction(self, instruction: Instruction) -> Step:
        """What an instruction does in each iteration."""

    def run(self) -> None:
        """All of it."""
        for step in self._steps(self.kernel.body):
            step()

    def _steps(self, body: tuple[Statement, ...]) -> list[Step]:
        return [self._step(statement) for statement in body]

    def _step(self, statement: Statement) -> Step:
        if isinstance(statement, Buffer):
            return self.declaration(statement)
        if isinstance(statement, Loop):
            return self._loop(statement)
        return self.instruction(statement)

    def _loop(self, loop: Loop) -> Step:
        steps, env = self._steps(loop.body), self.env

        def run() -> None:
            for i in range(loop.count.at(env)):
                env[loop.variable] = i
                for step in steps:
                    step()
            env.pop(loop.variable, None)

        return run

    def place(self, access: Access) -> Callable[[], np.ndarray]:
        """The part of a buffer's array, to be taken in each iteration."""
        array, env = self.arrays[access.buffer], self.env
        cuts = [(s.start, (s.size - 1) * s.step + 1, s.step) for s in access.slices]

        def place() -> np.ndarray:
            starts = [start.at(env) for start, _, _ in cuts]
            pairs = zip(starts, cuts, strict=True)
            return array[tuple(slice(first, first + span, step) for first, (_, span, step) in pairs)]

        if any(start.terms for start, _, _ in cuts):
            return place
        fixed = place()
        return lambda: fixed
