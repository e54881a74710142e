"""How far one list of results is from another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

RMS_LIMIT = 1e-4
"""Largest relative RMS error of a float32 result that counts as equal to eager's."""

HALF_FACTOR = 1.5
"""In 16-bit types, how many times eager's own distance from float32 the results for one input may be away from it.

Over many inputs the distances agree; for one input with few results either may be luckier by this much.
"""


@dataclass(frozen=True)
class Difference:
    """The worst over all results.

    Attributes:
        rms: root of the mean squared difference, by the root of the mean square of the wanted values.
        largest: largest absolute difference of one element.
        fault: what is wrong beside values: number, shape, dtype, a NaN on one side; empty where nothing is.
    """

    rms: float = 0.0
    largest: float = 0.0
    fault: str = ""


def difference(
    got: Sequence[torch.Tensor], want: Sequence[torch.Tensor], *, dtypes: bool = True, floor: float = 0.0
) -> Difference:
    """Distance of ``got`` from ``want``, tensor by tensor, in float64; integers and booleans have to be equal.

    Args:
        got: results under test.
        want: the results they should be.
        dtypes: also compare element types; False to compare a 16-bit result with a float32 one.
        floor: the least size by which the error of a result is divided, as a share of the largest result's.
    """
    if len(got) != len(want):
        return Difference(math.inf, math.inf, f"{len(got)} results instead of {len(want)}")
    least = floor * max(map(size, want), default=0.0) if floor else 0.0
    worst = Difference()
    for index, (a, b) in enumerate(zip(got, want, strict=True)):
        found = _of_one(a, b, dtypes, least)
        if found.fault:
            return Difference(math.inf, math.inf, f"result {index}: {found.fault}")
        worst = Difference(max(worst.rms, found.rms), max(worst.largest, found.largest))
    return worst


def size(tensor: torch.Tensor) -> float:
    """Root of the mean square of its finite values, 0 where there are none."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return 0.0
    values = tensor.detach().to(_wide(tensor))
    values = values[torch.isfinite(values)]
    return float(values.abs().square().mean().sqrt()) if values.numel() else 0.0


def _wide(tensor: torch.Tensor) -> torch.dtype:
    return torch.complex128 if tensor.is_complex() else torch.float64


def _of_one(got: torch.Tensor, want: torch.Tensor, dtypes: bool, least: float) -> Difference:
    if got.shape != want.shape:
        return Difference(fault=f"shape {tuple(got.shape)} instead of {tuple(want.shape)}")
    if dtypes and got.dtype is not want.dtype:
        return Difference(fault=f"{got.dtype} instead of {want.dtype}")
    if want.numel() == 0:
        return Difference()
    if not want.is_floating_point() and not want.is_complex():
        unequal = int((got != want).sum())
        return (
            Difference(fault=f"{unequal} of {want.numel()} values of {want.dtype} differ") if unequal else Difference()
        )
    a, b = got.detach().to(_wide(want)), want.detach().to(_wide(want))
    finite = torch.isfinite(b)
    if not torch.equal(torch.isfinite(a), finite):
        return Difference(fault="NaN or infinite where the other is not")
    a, b = a[finite], b[finite]
    if b.numel() == 0:
        return Difference()
    apart = (a - b).abs()
    by = max(size(b), least)
    rms = float(apart.square().mean().sqrt())
    return Difference(rms / by if by else (math.inf if rms else 0.0), float(apart.max()))
