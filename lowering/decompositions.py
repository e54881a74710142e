"""The decomposition table handed to AOTAutograd.

PyTorch's core table, less what would change the meaning or the cost of a program:

* an overload that has a rule of its own stays whole (the rule defines what stays whole);
* an op that draws random numbers stays, since decompositions draw from another stream than eager does, or draw in a
  place that depends on computed values;
* fused attention stays, since its decomposition materialises the score matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions

import neuron_compiler.lowering.ops  # noqa: F401  (fills the registry)
from neuron_compiler.lowering import (
    fast_path_decompositions,
    foreach_decompositions,
    kernel_decompositions,
    linalg_decompositions,
    loss_decompositions,
    optimizer_decompositions,
    quantization_decompositions,
    strided_decompositions,
)
from neuron_compiler.opdef import REGISTRY

aten = torch.ops.aten

KEPT = ("aten._scaled_dot_product", "aten.scaled_dot_product")
"""Name prefixes that PyTorch's core table decomposes and ours does not."""

# Beyond the core table: ops that arrive from autograd or from models and whose PyTorch decomposition is exact.
EXTRA: tuple[Any, ...] = ()


def native_dropout(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """ATen's CPU kernel in parts, so that the draw needs the shape of ``x`` only and can come first."""
    if p == 0 or train is False or x.numel() == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    mask = torch.ops.aten.bernoulli.p(torch.empty_like(x, dtype=torch.bool), 1 - p)
    scale = 0.0 if p == 1 else 1.0 / (1.0 - p)
    return x * mask * scale, mask


OWN: dict[Any, Callable[..., Any]] = {
    aten.native_dropout.default: native_dropout,
    **kernel_decompositions.DECOMPOSITIONS,
    **linalg_decompositions.DECOMPOSITIONS,
    **fast_path_decompositions.DECOMPOSITIONS,
    **foreach_decompositions.DECOMPOSITIONS,
    **loss_decompositions.DECOMPOSITIONS,
    **optimizer_decompositions.DECOMPOSITIONS,
    **quantization_decompositions.DECOMPOSITIONS,
    **strided_decompositions.DECOMPOSITIONS,
}


def _draws(overload: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in overload.tags


@cache
def table() -> dict[Any, Callable[..., Any]]:
    """Overload to decomposition; made once, since the registry is complete when this module is imported."""
    decompositions = dict(core_aten_decompositions())
    if EXTRA:
        decompositions.update(get_decompositions(EXTRA))
    kept = {
        overload: function
        for overload, function in decompositions.items()
        if str(overload) not in REGISTRY and not str(overload).startswith(KEPT) and not _draws(overload)
    }
    return kept | OWN


@cache
def table_for_export() -> dict[Any, Callable[..., Any]]:
    """The table for exported programs, where composite overloads are still whole.

    Under ``torch.compile`` the dispatcher takes them apart before AOTAutograd sees them, those that draw as well:
    attention into its fused kernels, recurrent nets into their steps.
    """
    composite = {
        overload: function
        for overload, function in core_aten_decompositions().items()
        if str(overload) not in REGISTRY and _is_composite(overload)
    }
    # Tracing takes PyTorch's own decomposition of it, whatever the backend, and that one is wrong.
    replaced = {aten.multilabel_margin_loss.default: loss_decompositions.multilabel_margin_loss}
    return composite | table() | replaced


def _is_composite(overload: Any) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), "CompositeImplicitAutograd"))
