"""What was compiled again, why, how long it took, and what would have made it unnecessary.

``recompile_report()`` is the text and the records. Input: rows that ``capture`` adds while it compiles. Invariant: one
RecompileWarning per function, with that function's part of the report.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from neuron_compiler.errors import RecompileWarning
from neuron_compiler.report.eager import count
from neuron_compiler.report.table import section, table

KEPT = 1000
"""Records that are kept of one function; the oldest are dropped, their number is not."""


@dataclass(frozen=True)
class Recompile:
    """One compile that came after the first of its function.

    Attributes:
        function: name of the user's function, or of the part of it after a graph break.
        site: its ``file:line``.
        kind: ``trace`` where PyTorch traced it again; ``size`` where a traced graph met a new size; ``evicted`` where
            ``program_cache_size`` dropped a program.
        changed: what changed, from which value to which.
        guard: the assumption that failed, as PyTorch words it; empty for other kinds.
        trace_seconds: wall seconds of PyTorch's tracing.
        compile_seconds: wall seconds from the traced graph to programs, AOTAutograd's share included.
        advice: what would have absorbed it.
    """

    function: str
    site: str
    kind: str
    changed: str
    guard: str
    trace_seconds: float
    compile_seconds: float
    advice: str

    @property
    def seconds(self) -> float:
        return self.trace_seconds + self.compile_seconds


@dataclass(frozen=True)
class RecompileReport:
    """Every recompile since the process started, or since ``clear``; ``str()`` is the text."""

    records: tuple[Recompile, ...]

    def __str__(self) -> str:
        if not self.records:
            return "no recompiles"
        groups: dict[tuple[str, str], list[Recompile]] = {}
        for record in self.records:
            groups.setdefault((record.function, record.site), []).append(record)
        return "\n\n".join(_of_function(*key, found) for key, found in groups.items())


def _of_function(name: str, site: str, records: Iterable[Recompile]) -> str:
    records = list(records)
    compiles = [r for r in records if r.kind != "evicted"]
    spent = sum(r.seconds for r in compiles)
    head = f"{name} ({site}): {count(len(compiles), 'recompile')}, {spent:.1f} s"
    rows = [
        (r.kind, r.changed, None if r.kind == "evicted" else f"{r.trace_seconds:.2f}", f"{r.compile_seconds:.2f}")
        for r in records
    ]
    blocks = [
        head,
        section("What changed", table(("kind", "changed", "trace s", "compile s"), rows, ("trace s", "compile s"))),
    ]
    if advice := dict.fromkeys(r.advice for r in records if r.advice):
        blocks.append(section("What would help", "\n".join(advice)))
    return "\n".join(blocks)


@dataclass(eq=False)
class Row:
    """A recompile while it goes on."""

    kind: str
    changed: str
    guard: str = ""
    advice: str = ""
    trace_seconds: float = 0.0
    compile_seconds: float = 0.0
    since: float | None = None

    @property
    def spent(self) -> float:
        """Seconds of compiling so far."""
        return self.compile_seconds + (time.perf_counter() - self.since if self.since is not None else 0.0)


@dataclass(eq=False)
class Function:
    """One function of the user's: how often it was compiled, and what of that was for the second time."""

    name: str
    site: str
    rows: list[Row] = field(default_factory=list)
    recompiles: int = 0
    warned: bool = False

    @property
    def report(self) -> RecompileReport:
        """The recompiles of this function."""
        return RecompileReport(tuple(self._records()))

    def _records(self) -> Iterable[Recompile]:
        for r in list(self.rows):
            yield Recompile(self.name, self.site, r.kind, r.changed, r.guard, r.trace_seconds, r.spent, r.advice)

    def start_over(self) -> None:
        """It is traced as if for the first time: what counts towards the warning begins anew."""
        with _lock:
            self.recompiles, self.warned = 0, False

    def add(self, row: Row) -> Row:
        """Take note of a recompile."""
        with _lock:
            self.rows.append(row)
            self.recompiles += row.kind != "evicted"
            del self.rows[:-KEPT]
        return row

    def join(self, row: Row) -> Row:
        """Take note of a recompile that several graphs of the function share, such as forward and backward."""
        last = self.rows[-1] if self.rows else None
        if last is not None and (last.kind, last.changed) == (row.kind, row.changed):
            return last
        return self.add(row)

    def warn_after(self, limit: int | None) -> None:
        """Raise the warning where there were ``limit`` recompiles, if it was not raised before."""
        if limit is None or self.recompiles < limit:
            return
        with _lock:
            if self.warned:
                return
            self.warned = True
        file, _, line = self.site.rpartition(":")
        text = (
            f"compiled again {self.recompiles} times\n{self.report}\nneuron_compiler.recompile_report() has all of it"
        )
        warnings.warn_explicit(text, RecompileWarning, file or self.site, int(line) if line.isdecimal() else 1)


_lock = threading.Lock()
_functions: dict[tuple[str, str], Function] = {}


def function(name: str, site: str) -> Function:
    """The record of a function; the same for the same name and place."""
    with _lock:
        return _functions.setdefault((name, site), Function(name, site))


def recompile_report() -> RecompileReport:
    """What was compiled again so far in this process, function by function."""
    with _lock:
        found = list(_functions.values())
    return RecompileReport(tuple(r for f in found for r in f.report.records))


def clear() -> None:
    """Forget all recompiles, and which functions were warned of."""
    with _lock:
        _functions.clear()


@contextmanager
def timed(row: Row | None) -> Iterator[None]:
    """Adds the wall seconds of a block to a row; without a row, to nothing."""
    if row is None:
        yield
        return
    row.since = time.perf_counter()
    try:
        yield
    finally:
        row.compile_seconds, row.since = row.spent, None
