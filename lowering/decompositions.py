"""The decomposition table handed to AOTAutograd.

PyTorch's core table, less what would change the meaning or the cost of a program:

* every overload that has a rule of its own stays whole (the rule defines what stays whole);
* ``bernoulli`` stays, since its decomposition draws from another random stream than eager;
* the fused attention ops stay, since their decomposition materialises the score matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions

import neuron_compiler.lowering.ops  # noqa: F401  (fills the registry)
from neuron_compiler.opdef import REGISTRY

aten = torch.ops.aten

KEPT = (
    "aten.bernoulli",
    "aten._scaled_dot_product",
    "aten.scaled_dot_product",
)
"""Name prefixes that PyTorch's core table decomposes and ours does not."""

# Beyond the core table: ops that arrive from autograd or from models and whose PyTorch decomposition is exact.
EXTRA: tuple[Any, ...] = ()


@cache
def table() -> dict[Any, Callable[..., Any]]:
    """Overload to decomposition; made once, since the registry is complete when this module is imported."""
    decompositions = dict(core_aten_decompositions())
    if EXTRA:
        decompositions.update(get_decompositions(EXTRA))
    return {
        overload: function
        for overload, function in decompositions.items()
        if str(overload) not in REGISTRY and not str(overload).startswith(KEPT)
    }
