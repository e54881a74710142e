"""The user's ``file:line`` of an FX node."""

from __future__ import annotations

import re
import sysconfig
from functools import cache
from pathlib import Path

import torch
from torch.fx import Node

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_TORCH = str(Path(torch.__file__).parent) + "/"
_STDLIB = sysconfig.get_paths()["stdlib"] + "/"


def _is_users(file: str) -> bool:
    """A library outside torch counts as the user's: the line of transformers' GPT-2 is what is looked for."""
    return not file.startswith((_TORCH, "<")) and ("site-packages" in file or not file.startswith(_STDLIB))


@cache
def _last_user_frame(stack_trace: str) -> str:
    frames = _FRAME.findall(stack_trace)
    for file, line in reversed(frames):
        if _is_users(file):
            return f"{file}:{line}"
    return f"{frames[-1][0]}:{frames[-1][1]}" if frames else ""


def location(node: Node) -> str:
    """Innermost frame outside torch and the standard library; torch's own where there is no other; else empty."""
    trace = node.meta.get("stack_trace")
    return _last_user_frame(trace) if trace else ""
