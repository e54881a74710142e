"""A line on the terminal while a compile takes long: what it does and for how many seconds; it erases itself.

In: the stages of a compile. Out: one line on standard error, after ``AFTER_SECONDS``, if that is a terminal. Invariant:
when the compile is over, however it ends, the line and the thread that drew it are gone.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from neuron_compiler import options
from neuron_compiler.compile import Observer

AFTER_SECONDS = 5.0
EVERY_SECONDS = 0.5

STAGES = {
    "compile": "starting",
    "passes": "running passes",
    "lower": "lowering to StableHLO",
    "xla": "compiling in XLA",
}


_elsewhere = 0


@contextmanager
def elsewhere() -> Iterator[None]:
    """No line for the compiles inside the block: who compiles draws on the terminal too."""
    global _elsewhere
    _elsewhere += 1
    try:
        yield
    finally:
        _elsewhere -= 1


def wanted(stream: TextIO | None = None) -> bool:
    """Whether somebody watches: standard error is a terminal that can erase a line, and no CI log."""
    stream = sys.stderr if stream is None else stream
    return not _elsewhere and stream is not None and stream.isatty() and options.terminal_shows_progress()


class Progress(Observer):
    """The observer that draws the line.

    Args:
        name: of the graph.
        after: seconds of one compile before anything is shown.
        every: seconds between two drawings.
        stream: the terminal; None is standard error.
    """

    def __init__(
        self, name: str, after: float = AFTER_SECONDS, every: float = EVERY_SECONDS, stream: TextIO | None = None
    ) -> None:
        self.name, self.after, self.every, self.stream = name, after, every, stream
        self._stages: list[str] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self._stages.append(name)
        try:
            if len(self._stages) > 1:
                yield
            else:
                with self._drawn():
                    yield
        finally:
            self._stages.pop()

    @contextmanager
    def _drawn(self) -> Iterator[None]:
        """A thread of its own draws: it has to go on while the compile keeps this one busy."""
        over = threading.Event()
        thread = threading.Thread(target=self._draw, args=(over, time.monotonic()), name="neuron-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _draw(self, over: threading.Event, started: float) -> None:
        if not over.wait(self.after):
            # Of a terminal that is gone (its window was closed) nobody watches: the compile goes on.
            with suppress(OSError, ValueError):
                self._show(over, started)

    def _show(self, over: threading.Event, started: float) -> None:
        # Not imported for compiles that are quick.
        from rich.console import Console
        from rich.control import Control
        from rich.segment import ControlType

        console = Console(file=self.stream or sys.stderr, highlight=False)
        erase = Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2))
        try:
            while True:
                line = f"neuron: {self.name}: {self._doing()}, {time.monotonic() - started:.0f} s"
                console.control(erase)
                # One short of the width: a full line would wrap on some terminals, and could not be erased.
                console.print(line[: console.width - 1], end="", markup=False, no_wrap=True, overflow="crop")
                if over.wait(self.every):
                    return
        finally:
            console.control(erase)

    def _doing(self) -> str:
        # The compile may end between two lines of this thread.
        stage = next(reversed(self._stages), "compile")
        return STAGES.get(stage, stage)
