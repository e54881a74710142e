"""Decompositions of fake quantization: values rounded to the steps of an integer type, in floating point."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def _steps(x: Tensor, scale: float | Tensor, zero_point: int | Tensor) -> Tensor:
    """The integers that values fall on, before they are limited; ATen multiplies by the reciprocal in float32."""
    one = torch.ones((), dtype=torch.float32, device=x.device)
    steps = x.to(torch.float32) * (one / scale)
    if isinstance(zero_point, Tensor) and zero_point.is_floating_point():
        return torch.round(zero_point + steps).to(torch.int64)
    return (zero_point + torch.round(steps)).to(torch.int64)


def _quantized(
    x: Tensor, scale: float | Tensor, zero_point: int | Tensor, low: int, high: int
) -> tuple[Tensor, Tensor]:
    steps = _steps(x, scale, zero_point)
    inside = (steps >= low) & (steps <= high)
    return ((steps.clamp(low, high) - zero_point) * scale).to(x.dtype), inside


def per_tensor(x: Tensor, scale: float, zero_point: int, low: int, high: int) -> tuple[Tensor, Tensor]:
    """Values on steps of ``scale``, and where they were within ``low`` to ``high`` steps."""
    return _quantized(x, torch.full((), scale, dtype=torch.float32, device=x.device), zero_point, low, high)


def per_tensor_of_tensors(
    x: Tensor, scale: Tensor, zero_point: Tensor, enabled: Tensor, low: int, high: int
) -> tuple[Tensor, Tensor]:
    """The same with scale and zero point in tensors of one element, and a switch in another."""
    on = enabled.reshape(()) != 0
    rounded, inside = _quantized(x, scale.reshape(()).to(torch.float32), zero_point.reshape(()), low, high)
    return torch.where(on, rounded, x), inside | ~on


def per_channel(x: Tensor, scale: Tensor, zero_point: Tensor, axis: int, low: int, high: int) -> tuple[Tensor, Tensor]:
    """The same with a scale and a zero point for each index of a dimension."""
    along = [1] * x.dim()
    along[axis] = -1
    return _quantized(x, scale.to(torch.float32).reshape(along), zero_point.reshape(along), low, high)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.fake_quantize_per_tensor_affine_cachemask.default: per_tensor,
    aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: per_tensor_of_tensors,
    aten.fake_quantize_per_channel_affine_cachemask.default: per_channel,
}
