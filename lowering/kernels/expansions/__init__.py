"""ATen's ops as engine operations: one function an op, from its operands' nodes to that of its result.

Each op rounds its result to its own type, as its rule in ``lowering/ops`` does; what an op computes on the way stays in
fp32. Written from PyTorch's documentation of the ops, independently of the rules. A family is a file with a table.
"""

from __future__ import annotations

from collections.abc import Mapping

from neuron_compiler.lowering.kernels.expansions import (
    attention,
    contraction,
    creation,
    elementwise,
    indexing,
    reduction,
    window,
)
from neuron_compiler.lowering.kernels.expansions.common import Expansion

_FAMILIES = (elementwise, creation, reduction, contraction, window, attention, indexing)

EXPANSIONS: Mapping[str, Expansion] = {name: f for family in _FAMILIES for name, f in family.EXPANSIONS.items()}
"""By the name of the op, its overloads together."""

__all__ = ["EXPANSIONS", "Expansion"]
