"""What the suites share: a fair cut where time is limited, and a summary of what ran compiled.

Within a budget (see the folder above) the cases of the three files take turns by the seconds that one takes, so that
whenever time is up, each file has had about as much of it as the others.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch._dynamo.utils import counters

from neuron_compiler.ledger import LEDGER

FOLDER = Path(__file__).parent

SECONDS = {"test_opinfo": 1.0, "test_handwritten": 4.0, "test_zoo": 12.0}
"""About what one case of a file takes; the tests of what these share take nothing and go first."""

SHOWN = 12
"""How many ops that ran eagerly are listed in the summary."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    order: Any = config.pluginmanager.get_plugin("neuron_compiler_order")
    if order is None or FOLDER.name not in order.budget:
        return
    places = [index for index, item in enumerate(items) if item.path.parent == FOLDER]
    for index, item in zip(places, take_turns([items[i] for i in places]), strict=True):
        items[index] = item


def take_turns(items: list[pytest.Item]) -> list[pytest.Item]:
    """The items with those of each file in the order given, files interleaved by time; ``full`` ones last."""
    spent: Counter[str] = Counter()
    keys: dict[str, tuple[bool, float]] = {}
    for item in items:
        spent[item.path.stem] += SECONDS.get(item.path.stem, 0.0)
        keys[item.nodeid] = item.get_closest_marker("full") is not None, spent[item.path.stem]
    return sorted(items, key=lambda item: keys[item.nodeid])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
    if call.when == "call" and item.path.parent == FOLDER:
        fallbacks: Counter[str] = Counter()
        for entry, count in LEDGER.counts("fallback").items():
            fallbacks[entry.op] += count
        item.user_properties += [
            ("fallbacks", dict(fallbacks)),
            ("captured_calls", counters["stats"]["calls_captured"]),
            ("graph_breaks", sum(counters["graph_break"].values())),
        ]
    return (yield)


def how_compiled(properties: dict[str, Any]) -> str:
    """``whole``, ``with fallbacks``, or ``nothing captured``: what PyTorch gave the compiler, and what became of it."""
    if properties["fallbacks"]:
        return "with fallbacks"
    return "whole" if properties["captured_calls"] else "nothing captured"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    outcomes: dict[str, Counter[str]] = defaultdict(Counter)
    ops: Counter[str] = Counter()
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, ()):
            properties = dict(report.user_properties)
            name = Path(report.nodeid.partition("::")[0]).stem
            if name not in SECONDS or "captured_calls" not in properties:
                continue
            outcomes[name].update([outcome, how_compiled(properties)])
            outcomes[name]["broken"] += properties["graph_breaks"] > 0
            outcomes[name]["nearer"] += properties.get("nearer_than_eager", False)
            ops.update(properties["fallbacks"].keys())
    if not outcomes:
        return
    terminalreporter.section("compiled against eager")
    for name, found in sorted(outcomes.items()):
        total = found["passed"] + found["failed"]
        parts = [f"{found[how]} {how}" for how in ("whole", "with fallbacks", "nothing captured") if found[how]]
        terminalreporter.write_line(
            f"{name}: {found['passed']} of {total} right ({found['passed'] / total:.1%}); compiled {', '.join(parts)}"
            f" ({found['whole'] / total:.1%} without a fallback); {found['broken']} with graph breaks"
            + (f"; {found['nearer']} by being nearer to double precision than eager" if found["nearer"] else "")
        )
    if ops:
        listed = ", ".join(f"{op} {count}" for op, count in ops.most_common(SHOWN))
        terminalreporter.write_line(f"cases in which an op ran eagerly, the {SHOWN} most frequent ops: {listed}")
