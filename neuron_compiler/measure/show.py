"""Progress while something is measured, and the tables of what was found, on a terminal or as plain lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.table import Table

from neuron_compiler.measure import clock
from neuron_compiler.measure.rows import Result, Row
from neuron_compiler.measure.systems import EAGER, INDUCTOR, NEURON
from neuron_compiler.progress import elsewhere

PLAIN_WIDTH = 120
"""Columns where the output is no terminal."""


def console(stderr: bool = False) -> Console:
    """A console on standard output or error; wide enough for the tables where it is no terminal."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, highlight=False, width=None if stream.isatty() else PLAIN_WIDTH)


class Progress:
    """Says what is being done: a line that changes on a terminal, else a line for each step."""

    def __init__(self, to: Console) -> None:
        self.console = to
        self.started = time.monotonic()
        self._status = to.status("starting") if to.is_terminal else None
        self._step = ""

    def tell(self, what: str) -> None:
        """What is being done from now on."""
        line = f"{time.monotonic() - self.started:5.0f} s  {what}"
        if self._status is not None:
            self._status.update(line)
        elif (step := what.partition("round ")[0]) != self._step:
            # Not a line for each round.
            self._step = step
            self.console.print(line, markup=False)

    @contextmanager
    def shown(self) -> Iterator[Progress]:
        """Draw inside the block; what is done is told by ``tell``."""
        if self._status is None:
            yield self
        else:
            with self._status, elsewhere():
                yield self


@contextmanager
def progress() -> Iterator[Progress]:
    """A progress display on standard error for the length of the block."""
    with Progress(console(stderr=True)).shown() as shown:
        yield shown


def tables(rows: Sequence[Row], caption: str) -> None:
    """Print latencies, then first calls and differences, then what is wrong."""
    out = console()
    out.print(latencies(rows, caption))
    out.print(first_calls(rows))
    for row in rows:
        for name, result in row.results.items():
            if result.verdict:
                out.print(f"{row.model}, {name}: {result.verdict}", markup=False)


def latencies(rows: Sequence[Row], caption: str) -> Table:
    """Milliseconds a call and ratios."""
    table = Table(title="Latency", caption=f"ms a call: median (10th to 90th percentile); {caption}")
    table.add_column("model")
    for name in (EAGER, INDUCTOR, NEURON):
        table.add_column(name, justify="right")
    table.add_column("neuron : eager", justify="right")
    table.add_column("neuron : inductor", justify="right")
    table.add_column("eager : itself", justify="right")
    for row in rows:
        times = {name: result.seconds for name, result in row.results.items() if result.seconds}
        cells = [milliseconds(times[name]) if name in times else "-" for name in (EAGER, INDUCTOR, NEURON)]
        for other in (EAGER, INDUCTOR):
            cells.append(factor(clock.ratio(times[other], times[NEURON])) if {other, NEURON} <= set(times) else "-")
        cells.append(factor(clock.noise(times[EAGER])) if EAGER in times else "-")
        table.add_row(row.model, *cells)
    return table


def milliseconds(seconds: Sequence[float]) -> str:
    """``12.3 (12.0-13.1)``."""
    spread = clock.Spread.of([1e3 * s for s in seconds])
    digits = 2 if spread.median < 10 else 1 if spread.median < 100 else 0
    return f"{spread.median:.{digits}f} ({spread.low:.{digits}f}-{spread.high:.{digits}f})"


def factor(spread: clock.Spread) -> str:
    """``1.10x (1.05-1.17)``: how many times faster."""
    return f"{spread.median:.2f}x ({spread.low:.2f}-{spread.high:.2f})"


def first_calls(rows: Sequence[Row]) -> Table:
    """Seconds until the first result, how far results are from eager's, what ran eagerly."""
    table = Table(title="First call and results", caption="RMS error relative to eager (16-bit types: to float32)")
    table.add_column("model")
    for name in (INDUCTOR, NEURON):
        table.add_column(f"first: {name}, s", justify="right")
    for name in (EAGER, INDUCTOR, NEURON):
        table.add_column(f"RMS: {name}", justify="right")
    table.add_column("largest: neuron", justify="right")
    table.add_column("fallbacks", justify="right")
    table.add_column("executables", justify="right")
    for row in rows:
        results = row.results
        own = results.get(NEURON, Result())
        table.add_row(
            row.model,
            *(_first(results.get(name)) for name in (INDUCTOR, NEURON)),
            *(_rms(results.get(name)) for name in (EAGER, INDUCTOR, NEURON)),
            "-" if own.first_call_seconds is None else f"{own.difference.largest:.1e}",
            str(own.fallbacks),
            str(own.executables),
        )
    return table


def _first(result: Result | None) -> str:
    return "-" if result is None or result.first_call_seconds is None else f"{result.first_call_seconds:.1f}"


def _rms(result: Result | None) -> str:
    if result is None or result.first_call_seconds is None:
        return "-"
    return f"{result.difference.rms:.1e}" + (" wrong" if result.verdict else "")
