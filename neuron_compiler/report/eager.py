"""What of a graph does not run compiled: ops that fall back to ATen, and random draws, each with its cause and site."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from neuron_compiler.ledger import Entry
from neuron_compiler.report.table import section, table

COLUMNS = ("calls", "op", "cause", "site")


def fallbacks(name: str, entries: Sequence[Entry]) -> str:
    """The list of a graph: eager ops first, random draws apart from them.

    Args:
        name: the graph's.
        entries: one per op in the graph, repeats kept: ``calls`` counts how often each runs in one call.
    """
    eager = [e for e in entries if e.event == "fallback"]
    drawn = [e for e in entries if e.event == "random"]
    blocks = [f"{name}: {count(len(eager), 'op')} eager, {count(len(drawn), 'random draw')} in each call"]
    if eager:
        title = "Not compiled: these run one by one through ATen, between the executables."
        blocks.append(section(title, _rows(eager)))
    if drawn:
        title = "Random draws: made by ATen in program order from the user's generator, so that they equal eager's."
        blocks.append(section(title, _rows(drawn)))
    return "\n\n".join(blocks) + "\n"


def count(number: int, noun: str) -> str:
    """``1 op``, ``2 ops``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _rows(entries: Iterable[Entry]) -> str:
    counted = Counter(entries)
    return table(COLUMNS, [(n, e.op, e.cause, e.site) for e, n in counted.items()], numbers=("calls",))
