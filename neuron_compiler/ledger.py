"""Counts of what did not run compiled, or cost something unasked: fallbacks, random draws, recompiles, transfers.

Nothing here prints. Counts also go to ``torch._dynamo.utils.counters["neuron"]``, where PyTorch's tools look.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import Counter
from dataclasses import dataclass

log = logging.getLogger("neuron_compiler.fallbacks")


@dataclass(frozen=True)
class Entry:
    """One kind of event: what (``fallback``, ``random``, ``compile``), which op, why, and the user's ``file:line``."""

    event: str
    op: str
    cause: str = ""
    site: str = ""


class Ledger:
    """Thread-safe counts of entries since the process started or since ``clear``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[Entry] = Counter()
        self._untold: Counter[str] = Counter()

    def record(self, entry: Entry, count: int = 1) -> None:
        """Count one executed event; the first of its kind is logged."""
        with self._lock:
            first = entry not in self._counts
            self._counts[entry] += count
            self._tell_dynamo(_counter_name(entry), count)
        if first and entry.event == "fallback":
            log.warning("%s runs eagerly: %s (%s)", entry.op, entry.cause, entry.site or "no source line")

    def _tell_dynamo(self, name: str, count: int) -> None:
        """Count where PyTorch's tools look, once there is such a place: it is not imported for that."""
        self._untold[name] += count
        counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
        if counters is not None:
            counters["neuron"].update(self._untold)
            self._untold.clear()

    def counts(self, event: str | None = None) -> dict[Entry, int]:
        """Counts so far, of one event or of all."""
        with self._lock:
            return {e: n for e, n in self._counts.items() if event is None or e.event == event}

    def total(self, event: str) -> int:
        return sum(self.counts(event).values())

    def clear(self) -> None:
        with self._lock:
            self._counts.clear()


def _counter_name(entry: Entry) -> str:
    if entry.event == "fallback":
        return f"fallback: {entry.op}: {entry.cause}"
    return f"{entry.event}: {entry.op}" if entry.op else entry.event


LEDGER = Ledger()
