"""Writes through expanded views, ``x.expand(2, 3).fill_(1)``: legal, and wrong once AOTAutograd made them functional.

It adds up what the positions of one place were given, 2 where all of them were given 1. A graph that holds such a write
is left to eager PyTorch.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.multiprocessing.reductions import StorageWeakRef

CAUSE = "writes through an expanded view, which PyTorch gets wrong when it traces it"
INSTEAD = "write to the tensor before it is expanded"

IN_PLACE = frozenset(
    {
        operator.setitem,
        operator.iadd,
        operator.isub,
        operator.imul,
        operator.itruediv,
        operator.ifloordiv,
        operator.imod,
        operator.ipow,
        operator.iand,
        operator.ior,
        operator.ixor,
        operator.ilshift,
        operator.irshift,
    }
)


def find(module: GraphModule) -> Node | None:
    """The first node of Dynamo's graph that writes through a view of which one place is several elements."""
    writes = (node for node in module.graph.nodes if _writes(node) and node.args)
    return next((node for node in writes if any(map(_is_expanded, _views(node.args[0])))), None)


def _views(value: Any) -> Iterator[torch.Tensor]:
    """The tensor that is written, and those that it is a view of."""
    memory = None
    while isinstance(value, Node) and (tensor := _tensor(value)) is not None:
        here = StorageWeakRef(tensor.untyped_storage())
        if memory is not None and here != memory:
            return
        yield tensor
        memory = here
        value = value.args[0] if value.args else None


def _tensor(node: Node) -> torch.Tensor | None:
    found = node.meta.get("example_value", node.meta.get("val"))
    # What vmap and grad hand to a function has no storage of its own: the tensor inside has.
    while isinstance(found, torch.Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(found):
        found = torch._C._functorch.get_unwrapped(found)
    return found if isinstance(found, torch.Tensor) and found.layout is torch.strided else None


def _writes(node: Node) -> bool:
    if node.op == "call_method":
        return _is_in_place(str(node.target))
    if node.op != "call_function":
        return False
    if isinstance(node.target, OpOverload):
        return node.target._schema.is_mutable
    return node.target in IN_PLACE or _is_in_place(getattr(node.target, "__name__", ""))


def _is_in_place(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__")


def _is_expanded(tensor: torch.Tensor) -> bool:
    # Sizes that are symbols are not asked: a guard would follow.
    return any(
        isinstance(stride, int) and stride == 0 and not (isinstance(size, int) and size <= 1)
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
