"""The function that PyTorch is compiling, and why it compiles it again: the one reader of Dynamo's private state."""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from neuron_compiler.logs import TORCH_VERSIONS

_MISMATCH = re.compile(r"tensor '(.+?)' (\w+) mismatch at index (\d+)\. expected (\S+), actual (\S+)")
_KIND = re.compile(r"tensor '(.+?)' ([\w ]+?) mismatch\. expected ([^,]+), actual (.+)")
_GRADIENT = re.compile(r"tensor '(.+?)' requires_grad mismatch\. expected requires_grad=(\d)")
_STATE = re.compile(r"GLOBAL_STATE changed: (.*)")


@dataclass(frozen=True)
class Frame:
    """What is being compiled.

    Attributes:
        name: of the code, with a suffix after a graph break.
        site: its ``file:line``.
        guard: the first assumption that failed; empty at the first compile, or where PyTorch's version is not known.
        seconds: wall seconds since PyTorch began with it.
        values: local and global variables.
    """

    name: str
    site: str
    guard: str = ""
    seconds: float = 0.0
    values: Mapping[str, Any] = field(default_factory=dict)


def current() -> Frame | None:
    """The frame that Dynamo compiles in this thread; None outside of it, or in a release it was not read against."""
    low, high = TORCH_VERSIONS
    if not low <= tuple(int(part) for part in torch.__version__.split(".")[:2]) < high:
        return None
    from torch._dynamo.symbolic_convert import InstructionTranslator
    from torch._dynamo.utils import get_metrics_context

    try:
        translator = InstructionTranslator.current_tx()
        while getattr(translator, "parent", None) is not None:
            translator = translator.parent
        code = translator.f_code
        metrics = get_metrics_context()
        guard = metrics._metrics.get("recompile_reason") or ""
        started = metrics._start_time_ns
        values = {**translator.f_globals, **translator.f_locals}
    except AttributeError:  # outside of a compile, or another release's names
        return None
    seconds = (time.time_ns() - started) / 1e9 if started else 0.0
    return Frame(code.co_name, f"{code.co_filename}:{code.co_firstlineno}", _first_line(guard), seconds, values)


def _first_line(guard: str) -> str:
    """Without the compile's id and the stack below it, and without the source line that PyTorch appends."""
    text = guard.partition("\n")[0].strip()
    text = re.sub(r"^\[?\d+/\d+\]?:\s*", "", text)
    return re.sub(r"\s{2,}#.*$", "", text).strip()


def change(frame: Frame) -> tuple[str, str]:
    """What changed, in words, and what would have absorbed it."""
    guard = frame.guard
    if found := _MISMATCH.search(guard):
        name, what, index, old, new = found.groups()
        if what == "size":
            advice = (
                f"torch.compile(dynamic=True), or torch._dynamo.mark_dynamic({name}, {index}) before the first call: "
                "one trace for all sizes; options={'buckets': 'powers_of_2'} then shares programs among them"
            )
            return f"{name}.size({index}): {old} -> {new}", advice
        return f"{name}.{what}({index}): {old} -> {new}", f"pass {name} with the same strides: {name}.contiguous()"
    if found := _GRADIENT.search(guard):
        name, old = found.groups()
        new = getattr(frame.values.get(name), "requires_grad", None)
        was, now = bool(int(old)), "?" if new is None else new
        return f"{name}.requires_grad: {was} -> {now}", f"pass {name} always with, or always without, requires_grad"
    if found := _KIND.search(guard):
        name, what, old, new = found.groups()
        return f"{name} {what}: {old} -> {new.strip()}", f"pass {name} always with the same {what}"
    if found := _STATE.search(guard):
        return (
            f"global state: {found[1].strip()}",
            "one program is needed for each such state; keep it the same where it need not change",
        )
    return _comparison(guard, frame.values)


def _comparison(guard: str, values: Mapping[str, Any]) -> tuple[str, str]:
    """A guard such as ``n == 3``, with the new value where it can be read without calling anything."""
    try:
        parsed = ast.parse(guard, mode="eval").body
    except SyntaxError:
        return guard, ""
    if not isinstance(parsed, ast.Compare) or len(parsed.ops) != 1:
        return guard, ""
    left, right = parsed.left, parsed.comparators[0]
    side, other = (left, right) if not isinstance(left, ast.Constant) else (right, left)
    name, old = ast.unparse(side), ast.unparse(other)
    new = _read(side, values)
    if new is _UNREAD:
        return f"no longer {guard}", _advice(name, None)
    if isinstance(parsed.ops[0], ast.Eq) and isinstance(other, ast.Constant):
        return f"{name}: {old} -> {new!r}", _advice(name, new)
    return f"{name}: {new!r}, was {ast.unparse(parsed)}", _advice(name, new)


_UNREAD = object()


def _read(node: ast.expr, values: Mapping[str, Any]) -> Any:
    """The value of a path such as ``self.layers[0].p`` or ``x.size()[0]``."""
    try:
        if isinstance(node, ast.Name):
            return values[node.id]
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Attribute):
            owner = _read(node.value, values)
            return owner if owner is _UNREAD else vars(owner).get(node.attr, _UNREAD)
        if isinstance(node, ast.Subscript):
            owner, key = _read(node.value, values), _read(node.slice, values)
            plain = isinstance(owner, dict | list | tuple | torch.Size)
            return owner[key] if plain and key is not _UNREAD else _UNREAD
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "size":
            owner = _read(node.func.value, values)
            return owner.size() if isinstance(owner, torch.Tensor) and not node.args else _UNREAD
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len":
            owner = _read(node.args[0], values)
            return len(owner) if isinstance(owner, dict | list | tuple) else _UNREAD
    except (KeyError, IndexError, TypeError):
        return _UNREAD
    return _UNREAD


def _advice(name: str, new: Any) -> str:
    if name.endswith(".training"):
        return "training and evaluation are two programs: switch between them no more often than needed"
    if ".size()" in name:
        return "sizes 0 and 1, and sizes that the function compares with numbers, are traced apart"
    if isinstance(new, bool):
        return f"each value of {name} is a program of its own"
    if isinstance(new, int):
        if "." in name or "[" in name:
            return (
                f"make {name} a tensor, or set torch._dynamo.config.allow_unspec_int_on_nn_module = True for a "
                "module's attribute: one trace for all numbers"
            )
        return f"torch.compile(dynamic=True): one trace for all numbers {name}"
    if isinstance(new, float):
        return f"make {name} a tensor, torch.tensor({name}): one trace for all numbers"
    if name.startswith("len("):
        return "pass a tensor, or always as many elements: each length is a program of its own"
    return ""
