"""What each argument is for the user: ``self.transformer.h.0.ln_1.weight`` instead of ``arg3_1``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch.fx import GraphModule, Node

_STEPS = re.compile(r"\._(?:modules|parameters|buffers)\['([^']*)'\]")
_LOCAL = re.compile(r"^[LG]\['([^']*)'\]")


def shortened(source: str) -> str:
    """Dynamo's expression for a source, as a path: module dictionaries become attributes."""
    return _STEPS.sub(r".\1", _LOCAL.sub(r"\1", source))


def of_dynamo(module: GraphModule) -> dict[int, str]:
    """Path of each of a Dynamo graph's placeholders, by position; those without a source are left out."""
    found: dict[int, str] = {}
    for index, node in enumerate(n for n in module.graph.nodes if n.op == "placeholder"):
        name = getattr(getattr(node.meta.get("grapharg"), "source", None), "name", None)
        if callable(name):  # a method in some releases, a property in others
            name = name()
        if isinstance(name, str):
            found[index] = shortened(name)
    return found


def origin(node: Node, dynamo: Mapping[int, str]) -> str:
    """Path of an AOT placeholder: by AOTAutograd's description of it, in Dynamo's names where they are known."""
    description: Any = node.meta.get("desc")
    index = getattr(description, "idx", None)
    if type(description).__name__ == "PlainAOTInput" and index in dynamo:
        return dynamo[index]
    expression = getattr(description, "expr", None)
    return str(expression()) if callable(expression) else ""
