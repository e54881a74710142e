"""Calls that the op database does not make: eigenvalues alone, losses over images."""

from __future__ import annotations

from typing import Any

import torch

Call = tuple[tuple[Any, ...], dict[str, Any]]


def _matrix(dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(4, 4, generator=torch.Generator().manual_seed(0), dtype=dtype)


def _loss(backward: bool) -> tuple[Call, ...]:
    found = []
    x = torch.randn(2, 3, 4, 2, generator=torch.Generator().manual_seed(0))
    target = torch.arange(16).reshape(2, 4, 2) % 3
    for weight in (None, torch.tensor([0.5, 1.0, 2.0])):
        for reduction in (0, 1, 2):
            rest = (target, weight, reduction, 1)
            output, total = torch.ops.aten.nll_loss2d_forward(x, *rest)
            found.append((((torch.ones_like(output), x, *rest, total) if backward else (x, *rest)), {}))
    return tuple(found)


_EIGENVALUES = tuple(((_matrix(dtype),), {}) for dtype in (torch.float32, torch.float64, torch.complex64))

CALLS: dict[str, tuple[Call, ...]] = {
    "aten._linalg_eigvals.default": _EIGENVALUES,
    "aten.linalg_eigvals.default": _EIGENVALUES,
    "aten.nll_loss2d_forward.default": _loss(False),
    "aten.nll_loss2d_backward.default": _loss(True),
}
