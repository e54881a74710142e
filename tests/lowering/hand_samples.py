"""Calls of overloads that PyTorch's op database does not reach: overload → (args, kwargs) of each call.

They stand in the ``hand_calls_*`` modules beside this one, by family. A rule whose overload is in none of them and not
in the database fails its generated test, which asks for a line there.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

Call = tuple[tuple[Any, ...], dict[str, Any]]

CALLS: dict[str, tuple[Call, ...]] = {}
for _file in sorted(Path(__file__).parent.glob("hand_calls_*.py")):
    for _overload, _calls in import_module(_file.stem).CALLS.items():
        CALLS[_overload] = CALLS.get(_overload, ()) + _calls
