"""Random ops that the graph states otherwise than eager ran them.

Under activation checkpointing, PyTorch's partitioner makes nodes without recording what they return:
``run_and_save_rng_state(op, *args)`` returns the generator's state and what ``op`` returns; ``run_with_rng_state(state,
op, *args)`` draws the same again. And ``bernoulli_``, which fills memory in its order, becomes ``bernoulli``, which
fills elements in theirs.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Node

from neuron_compiler.sequence import bernoulli_in_order_of_memory

aten = torch.ops.aten

SAVING, REPEATING = "run_and_save_rng_state", "run_with_rng_state"


def is_draw(node: Node) -> bool:
    """Whether a node is one of the two."""
    return isinstance(node.target, HigherOrderOperator) and node.target.name() in (SAVING, REPEATING)


def is_random(target: Any) -> bool:
    """Whether an overload draws random numbers."""
    return isinstance(target, OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


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


def as_eager_ran(node: Node) -> tuple[Any, tuple[Any, ...]]:
    """What to call for a random node, with what: the node's own op, but for ``bernoulli`` out of ``bernoulli_``."""
    place = 0
    if is_draw(node):
        place = 1 if node.target.name() == SAVING else 2
    op = node.args[place - 1] if place else node.target
    if op is not aten.bernoulli.p or _source(node) == "bernoulli":
        return node.target, node.args
    if not place:
        return bernoulli_in_order_of_memory, node.args
    return node.target, (*node.args[: place - 1], bernoulli_in_order_of_memory, *node.args[place:])


def _source(node: Node) -> str:
    """Name of the user's function or method that a node came from; empty where none was recorded."""
    stack = node.meta.get("source_fn_stack") or node.meta.get("fwd_source_fn_stack")
    if not stack and (
        called := node.meta.get("torch_fn")
    ):  # torch.export: ("bernoulli_1", "method_descriptor.bernoulli")
        return str(called[1]).rpartition(".")[2]
    target = stack[-1][1] if stack else ""
    return target if isinstance(target, str) else getattr(target, "__name__", "")
