"""Loads files without pickle, calls each for its case in another thread, and says whether all bits are as expected.

Run as a script, ``load_programs.py folder case...``: loads ``folder/case.program``, compares with ``case.expected``.
"""

from __future__ import annotations

import json
import pickle
import sys
import threading
from pathlib import Path
from typing import Any

import torch
from exported_programs import CASES, results
from torch.utils import _pytree as pytree


class _Forbidden:
    """A class, so that modules that derive from ``pickle.Pickler`` can be imported."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise AssertionError("pickle was used")


def same(a: Any, b: Any) -> bool:
    """Whether two nested results are the same to the bit."""
    leaves, others = pytree.tree_leaves(a), pytree.tree_leaves(b)
    return len(leaves) == len(others) and all(
        torch.equal(x, y) and x.stride() == y.stride() and x.dtype == y.dtype
        if isinstance(x, torch.Tensor)
        else x == y and type(x) is type(y)
        for x, y in zip(leaves, others, strict=True)
    )


def main(folder: Path, names: list[str]) -> None:
    expected = {name: torch.load(folder / f"{name}.expected") for name in names}
    for name in ("loads", "load", "Unpickler", "dumps", "dump", "Pickler"):
        setattr(pickle, name, _Forbidden)

    import neuron_compiler

    found: dict[str, Any] = {}
    for name in names:
        program = neuron_compiler.load(folder / f"{name}.program")
        found[name] = []
        thread = threading.Thread(
            target=lambda program=program, name=name: found[name].append(results(program, CASES[name]))
        )
        thread.start()
        thread.join()
    imported = [name for name in ("neuron_compiler.compile", "torch._dynamo", "networkx") if name in sys.modules]
    verdict = {name: [same(one, expected[name]) for one in found[name]] for name in names}
    sys.stdout.write(json.dumps({"same": verdict, "imported": imported}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
