"""Which records of the op database reach an overload: looked up in a file, for it takes minutes to find out.

``python tests/lowering/op_reach.py`` writes ``op_reach.json``. What it does not hold, because the rule is newer or
PyTorch another, is searched for.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import torch

FILE = Path(__file__).with_suffix(".json")
AT_MOST = 3
"""Records that are kept for an overload."""


@cache
def known() -> dict[str, list[str]]:
    """Overload → names of the first records that reach it; empty for another PyTorch than the file was written with."""
    held = json.loads(FILE.read_text()) if FILE.is_file() else {}
    return held["overloads"] if held.get("torch") == torch.__version__.partition("+")[0] else {}


def main() -> None:
    """Write the file."""
    from op_samples import GLANCE, REGISTRY, op_db

    found: dict[str, list[str]] = {}
    for info in op_db:
        for overload in GLANCE.recorded(info):
            names = found.setdefault(overload, [])
            if len(names) < AT_MOST:
                names.append(info.full_name)
    for overload in REGISTRY.names():
        found.setdefault(overload, [])  # no record reaches it: nothing to search for
    held = {"torch": torch.__version__.partition("+")[0], "overloads": dict(sorted(found.items()))}
    FILE.write_text(json.dumps(held, indent=1) + "\n")


if __name__ == "__main__":
    main()
