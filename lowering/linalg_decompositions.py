"""The determinant and its logarithm as a factorisation and what is done with it.

Their autograd formulas expect the factorisation of the *transpose* where the matrix is real and contiguous, because
that is what ATen hands to LAPACK. Strides are known while PyTorch traces and not to a rule, so the choice is made here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

aten = torch.ops.aten


def _factors_transpose(a: torch.Tensor) -> bool:
    return a.is_contiguous() and not a.is_complex()


def _factored(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Packed factors, pivots, U's diagonal, and the determinant of the permutation: 1 or -1."""
    packed, pivots, _ = aten.linalg_lu_factor_ex(a.mT if _factors_transpose(a) else a)
    diagonal = packed.diagonal(0, -2, -1)
    swaps = pivots != torch.arange(1, pivots.shape[-1] + 1, dtype=pivots.dtype, device=pivots.device)
    return packed, pivots, diagonal, 1 - 2 * swaps.sum(-1).remainder(2)


def linalg_det(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    packed, pivots, diagonal, sign = _factored(a)
    return diagonal.prod(-1) * sign, packed, pivots


def linalg_slogdet(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    packed, pivots, diagonal, sign = _factored(a)
    return diagonal.sgn().prod(-1) * sign, diagonal.abs().log().sum(-1), packed, pivots


DECOMPOSITIONS: Mapping[Any, Callable[..., Any]] = {
    aten._linalg_det.default: linalg_det,
    aten._linalg_slogdet.default: linalg_slogdet,
}
