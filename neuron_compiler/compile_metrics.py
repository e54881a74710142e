"""What compiling took, per graph: the records behind ``torch.neuron.get_dynamo_metrics``.

In: finished compilations, as an observer. Out: plain dictionaries. Invariant: keeps numbers and names alone, never a
program, so that thousands of compilations cost little memory; imports nothing of the compiler.
"""

from __future__ import annotations

import threading
import time
from typing import Any

_lock = threading.Lock()
_records: list[dict[str, Any]] = []


def add(graph_name: str, nodes: int, has_collectives: bool, seconds: dict[str, float]) -> None:
    """Keep the record of one graph; ``seconds`` by stage: ``passes``, ``lower``, ``xla``."""
    with _lock:
        _records.append(
            {
                "graph_id": len(_records),
                "graph_name": graph_name,
                "model_name": graph_name.split("_")[0],
                "has_collectives": has_collectives,
                "graph_node_count": nodes,
                "timestamp": time.time(),
                "fx_passes_us": seconds.get("passes", 0.0) * 1e6,
                "lower_us": seconds.get("lower", 0.0) * 1e6,
                "compile_us": seconds.get("xla", 0.0) * 1e6,
            }
        )


def records() -> list[dict[str, Any]]:
    """The records so far, oldest first."""
    with _lock:
        return [dict(record) for record in _records]


def clear() -> None:
    """Forget them."""
    with _lock:
        _records.clear()
