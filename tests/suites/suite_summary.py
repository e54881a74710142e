"""A plugin that counts what the suites' cases were compiled to, and says so at the end of the run.

A separate module, since a process that only hands tests out to others collects none and reads no conftest.py here.
A whole run of the op database fails if fewer of its cases than before compile without a fallback.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from neuron_compiler.ledger import LEDGER

FOLDER = Path(__file__).parent

FILES = ("test_handwritten", "test_opinfo", "test_zoo")

CASES_OF_A_WHOLE_RUN = "cases of a whole run"
"""Property in which a test says how many there are of its kind."""

FLOORS = {"test_opinfo": 0.0}
"""Least share of the cases in which PyTorch captures anything that compile without a fallback; it may only grow."""

SHOWN = 12
"""How many ops that ran eagerly are listed in the summary."""


@dataclass
class File:
    """Counts of one file's cases, skipped ones left out."""

    passed: int = 0
    failed: int = 0
    whole: int = 0
    partly: int = 0
    nothing: int = 0
    broken: int = 0
    nearer: int = 0
    skipped: int = 0
    cases: int = 0
    eager: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        return self.passed + self.failed

    @property
    def share(self) -> float:
        """Cases without a fallback among those of which PyTorch captured anything."""
        return self.whole / max(1, self.whole + self.partly)

    @property
    def is_complete(self) -> bool:
        return 0 < self.cases <= self.total + self.skipped

    def count(self, outcome: str, properties: dict[str, Any]) -> None:
        self.cases = properties.get(CASES_OF_A_WHOLE_RUN, self.cases)
        if outcome == "skipped":
            self.skipped += CASES_OF_A_WHOLE_RUN in properties
            return
        self.passed += outcome == "passed"
        self.failed += outcome == "failed"
        self.partly += bool(properties["fallbacks"])
        self.whole += bool(properties["captured_calls"] and not properties["fallbacks"])
        self.nothing += not properties["captured_calls"] and not properties["fallbacks"]
        self.broken += properties["graph_breaks"] > 0
        self.nearer += properties.get("nearer_than_eager", False)
        self.eager.update(properties["fallbacks"].keys())

    def __str__(self) -> str:
        extra = f"; {self.nearer} by being nearer to double precision than eager" if self.nearer else ""
        return (
            f"{self.passed} of {self.total} right ({self.passed / self.total:.1%}){extra}; compiled {self.whole} "
            f"whole, {self.partly} with fallbacks ({self.share:.1%} without one), {self.nothing} had nothing captured; "
            f"{self.broken} with graph breaks"
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
    if call.when == "call" and item.path.parent == FOLDER and item.path.stem in FILES:
        from torch._dynamo.utils import counters

        fallbacks: Counter[str] = Counter()
        for entry, count in LEDGER.counts("fallback").items():
            fallbacks[entry.op] += count
        item.user_properties += [
            ("fallbacks", dict(fallbacks)),
            ("captured_calls", counters["stats"]["calls_captured"]),
            ("graph_breaks", sum(counters["graph_break"].values())),
        ]
    return (yield)


def files(reporter: Any) -> dict[str, File]:
    """Counts by file of what a run has reported."""
    found: dict[str, File] = defaultdict(File)
    for outcome in ("passed", "failed", "skipped"):
        for report in reporter.stats.get(outcome, ()):
            properties = dict(report.user_properties)
            name = Path(report.nodeid.partition("::")[0]).stem
            if name in FILES and "captured_calls" in properties:
                found[name].count(outcome, properties)
    return {name: file for name, file in sorted(found.items()) if file.total}


def below_floor(found: dict[str, File]) -> list[str]:
    """What is wrong with a whole run."""
    return [
        f"{name}: {file.share:.2%} compiled without a fallback, which was {FLOORS[name]:.2%} before"
        for name, file in found.items()
        if name in FLOORS and file.is_complete and file.share < FLOORS[name]
    ]


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and below_floor(files(reporter)):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    found = files(terminalreporter)
    if not found:
        return
    terminalreporter.section("compiled against eager")
    for name, file in found.items():
        terminalreporter.write_line(f"{name}: {file}")
    ops = sum((file.eager for file in found.values()), Counter[str]())
    if ops:
        listed = ", ".join(f"{op} {count}" for op, count in ops.most_common(SHOWN))
        terminalreporter.write_line(f"ops that ran eagerly, by the number of cases: {listed}")
    for line in below_floor(found):
        terminalreporter.write_line(line, red=True)
