"""What was built for each binding of a graph's symbols, least recently used dropped first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from neuron_compiler.ledger import LEDGER, Entry

Key = tuple[int | float, ...]
T = TypeVar("T")


class Bindings(Generic[T]):
    """A bounded table from the numbers of the symbols to what was built for them; threads may ask at once.

    Args:
        name: of the graph, for the ledger.
        limit: how many are kept.
    """

    def __init__(self, name: str, limit: int) -> None:
        self.name, self.limit = name, limit
        self._found: OrderedDict[Key, T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Key, build: Callable[[], T]) -> T:
        """What there is for the key, built where there is nothing."""
        with self._lock:
            if (found := self._found.get(key)) is not None:
                self._found.move_to_end(key)
                return found
            built = self._found[key] = build()
            if len(self._found) > self.limit:
                self._found.popitem(last=False)
                LEDGER.record(Entry("evicted", self.name, "program_cache_size"))
            return built

    def items(self) -> list[tuple[Key, T]]:
        """All that is kept, least recently used first."""
        with self._lock:
            return list(self._found.items())
