"""A fair cut of the suites where time is limited.

Within a budget (see the folder above) the cases of the files take turns by the seconds that one takes, so that
whenever time is up, each file has had about as much of it as the others.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent

SECONDS = {"test_opinfo": 1.0, "test_handwritten": 4.0, "test_zoo": 12.0}
"""About what one case of a file takes; the tests of what these share take nothing and go first."""


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
