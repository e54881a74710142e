"""What every test gets: verification after each pass, empty counters, no dump, no network; and the order of the tests.

Unit folders run before ``suites`` and ``end_to_end``: a broken unit explains a broken model, not the other way round.
``NEURON_TEST_BUDGET=suites=300,end_to_end=300`` gives folders a number of seconds. The tests of such a folder run in
an order shuffled by ``NEURON_TEST_SEED``, those marked ``full`` after the others, so that what was run before time was
up is a fair sample; the rest is skipped with that reason. Without the variable everything runs, in the order of the
files.
"""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from neuron_compiler.ledger import LEDGER
from neuron_compiler.options import ENVIRONMENT

# Before anything imports huggingface_hub, which reads them once.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"

hypothesis.settings.register_profile("neuron_compiler", deadline=None, derandomize=True)
hypothesis.settings.load_profile("neuron_compiler")

TESTS = Path(__file__).parent
UNITS = ("", "neuron_compiler", "passes", "lowering", "eager_fallback")
LAST = ("suites", "end_to_end")


def folder_of(item: pytest.Item) -> str:
    """First folder below tests/, or nothing for a file in tests/ itself."""
    parts = item.path.relative_to(TESTS).parts
    return parts[0] if len(parts) > 1 else ""


def rank(folder: str) -> int:
    """Place of a folder in the order of the run; one that is not listed comes between units and suites."""
    if folder in UNITS:
        return UNITS.index(folder)
    return len(UNITS) + (1 + LAST.index(folder) if folder in LAST else 0)


def parse_budget(text: str) -> dict[str, float]:
    """Seconds by folder or file from ``lowering/test_ops.py=300,suites=300``."""
    pairs = (part.split("=") for part in text.split(",") if part.strip())
    return {place.strip(): float(seconds) for place, seconds in pairs}


def leave_trace_alone() -> None:
    """Keep pytest's handlers off PyTorch's trace: it takes a handler for a sign that all graphs are to be printed.

    pytest puts its handlers on the loggers that do not propagate, once for the run and again for each test.
    """
    logging.getLogger("torch.__trace").propagate = True


class Order:
    """Sorts the tests, marks them by folder, and skips what is over the budget of its folder or file."""

    def __init__(self, budget: dict[str, float], seed: str) -> None:
        self.budget, self.seed = budget, seed
        self.spent: Counter[str] = Counter()

    def budgeted(self, item: pytest.Item) -> str:
        """The place in the budget that a test belongs to; nothing where it has none."""
        path = item.path.relative_to(TESTS)
        return next((p for p in (path.as_posix(), *(d.as_posix() for d in path.parents)) if p in self.budget), "")

    def key(self, item: pytest.Item) -> tuple[int, str, bool, str]:
        place = self.budgeted(item)
        shuffled = hashlib.sha1(f"{self.seed} {item.nodeid}".encode()).hexdigest() if place else ""
        # Within a folder, what is sampled comes after what always runs, and what takes minutes after that.
        return rank(folder_of(item)), place, bool(place) and "full" in item.keywords, shuffled

    def pytest_report_header(self) -> str:
        if not self.budget:
            return "budget: none, every test runs"
        return f"budget: {', '.join(f'tests/{f} {s:g} s' for f, s in self.budget.items())}; sampled by seed {self.seed}"

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            if folder := folder_of(item):
                item.add_marker(folder)
        items.sort(key=self.key)
        leave_trace_alone()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        start = time.monotonic()
        try:
            return (yield)
        finally:
            self.spent[self.budgeted(item)] += time.monotonic() - start

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        place = self.budgeted(item)
        if place and self.spent[place] > self.budget[place]:
            pytest.skip(f"over the budget of {self.budget[place]:g} s for tests/{place}")


def pytest_configure(config: pytest.Config) -> None:
    for path in TESTS.iterdir():
        if path.is_dir() and path.name.isidentifier():
            config.addinivalue_line("markers", f"{path.name}: the tests in tests/{path.name}")
    config.addinivalue_line("markers", "full: a model of its published width; within a budget, after all others")
    budget = parse_budget(os.environ.get("NEURON_TEST_BUDGET", ""))
    config.pluginmanager.register(Order(budget, os.environ.get("NEURON_TEST_SEED", "0")), "neuron_compiler_order")
    if (TESTS / "suites" / "suite_summary.py").is_file():
        sys.path.append(str(TESTS / "suites"))
        config.pluginmanager.import_plugin("suite_summary")


@pytest.fixture(autouse=True)
def clean_slate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options as in the documentation but for verification; counters at zero; nothing compiled before."""
    for variable in (*ENVIRONMENT, "TORCH_COMPILE_DEBUG"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("NEURON_COMPILER_VERIFY", "every")
    leave_trace_alone()
    LEDGER.clear()
    # Not imported for tests that have no use for it. Its counters are filled by whatever compiles.
    dynamo: Any = sys.modules.get("torch._dynamo")
    if dynamo is not None and dynamo.utils.counters:
        dynamo.reset()
        dynamo.utils.counters.clear()


@pytest.fixture(autouse=True, scope="session")
def no_network() -> Iterator[None]:
    """A connection that leaves this machine is an error: a test that needs the network is not a test of this code."""
    connect = socket.socket.connect

    def local_only(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise OSError(f"tests reach no network, and this one asked for {address[0]}")
        connect(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", local_only)
        yield
