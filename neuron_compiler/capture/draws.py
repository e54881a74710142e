"""Random ops under activation checkpointing: nodes that PyTorch's partitioner makes without recording what they return.

``run_and_save_rng_state(op, *args)`` returns the generator's state and what ``op`` returns; ``run_with_rng_state(state,
op, *args)`` draws the same again.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._ops import HigherOrderOperator
from torch.fx import Node

SAVING, REPEATING = "run_and_save_rng_state", "run_with_rng_state"


def is_draw(node: Node) -> bool:
    """Whether a node is one of the two."""
    return isinstance(node.target, HigherOrderOperator) and node.target.name() in (SAVING, REPEATING)


def record_missing_value(node: Node) -> None:
    """Fill in ``meta["val"]`` of such a node, and of an element taken out of it."""
    if node.op != "call_function" or node.meta.get("val") is not None:
        return
    if node.target is operator.getitem:
        source, index = node.args
        found = source.meta.get("val")
        if isinstance(found, tuple | list) and isinstance(index, int) and index < len(found):
            node.meta["val"] = found[index]
    elif is_draw(node):
        saving = node.target.name() == SAVING
        op, *args = node.args if saving else node.args[1:]
        result = _fake_result(op, args, dict(node.kwargs))
        node.meta["val"] = (None, result) if saving else result


def _fake_result(op: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    values = torch.fx.node.map_arg((tuple(args), kwargs), lambda n: n.meta.get("val"))
    mode = detect_fake_mode(values)
    if mode is None:
        return None
    with mode:
        return op(*values[0], **values[1])
