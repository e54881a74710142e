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


def _learned_zero_point(zero_point: Tensor, low: int, high: int) -> Tensor:
    """A zero point that is learned in floating point, as the integer that ATen takes it for."""
    return torch.round(zero_point.to(torch.float32)).clamp(low, high).to(torch.int64)


def learned_per_tensor(
    x: Tensor, scale: Tensor, zero_point: Tensor, low: int, high: int, grad_factor: float = 1.0
) -> Tensor:
    """Values on steps of a scale that is learned."""
    point = _learned_zero_point(zero_point, low, high).reshape(())
    return _quantized(x, scale.reshape(()).to(torch.float32), point, low, high)[0]


def learned_per_channel(
    x: Tensor, scale: Tensor, zero_point: Tensor, axis: int, low: int, high: int, grad_factor: float = 1.0
) -> Tensor:
    """The same with a scale and a zero point for each index of a dimension."""
    points = _learned_zero_point(zero_point, low, high)
    return per_channel(x, scale, points, axis, low, high)[0]


def _learned_backward(
    grad: Tensor, x: Tensor, scale: Tensor, point: Tensor, low: int, high: int, factor: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of values, and of the scale and the zero point before they are summed."""
    # Unlike the kernel of the forward pass, this one rounds the sum with the zero point.
    inverse = torch.ones((), dtype=torch.float32, device=x.device) / scale
    steps = torch.round(point + x * inverse).to(torch.int64)
    inside = (steps >= low) & (steps <= high)
    limited = steps.clamp(low, high)
    rounded = (limited - point).to(torch.float32) * scale
    slope = torch.where(inside, (rounded - x) * inverse, (limited - point).to(torch.float32))
    shift = torch.where(inside, 0.0, -scale)
    return grad * inside, grad * slope * factor, grad * shift * factor


def learned_per_tensor_backward(
    grad: Tensor, x: Tensor, scale: Tensor, zero_point: Tensor, low: int, high: int, grad_factor: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    # Rounded another way than in the forward pass: a half goes up, and -4 becomes -3.
    point = (zero_point.to(torch.float32) + 0.5).clamp(low, high).to(torch.int64).reshape(())
    made = _learned_backward(grad, x, scale.reshape(()), point, low, high, grad_factor)
    return made[0], made[1].sum().reshape(1), made[2].sum().reshape(1)


def learned_per_channel_backward(
    grad: Tensor, x: Tensor, scale: Tensor, zero_point: Tensor, axis: int, low: int, high: int, grad_factor: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    along = [1] * x.dim()
    along[axis] = -1
    point = _learned_zero_point(zero_point, low, high).reshape(along)
    made = _learned_backward(grad, x, scale.reshape(along), point, low, high, grad_factor)
    others = [d for d in range(x.dim()) if d != axis % x.dim()]
    return made[0], *((g.sum(others) if others else g) for g in made[1:])


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.fake_quantize_per_tensor_affine_cachemask.default: per_tensor,
    aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: per_tensor_of_tensors,
    aten.fake_quantize_per_channel_affine_cachemask.default: per_channel,
    aten._fake_quantize_learnable_per_tensor_affine.default: learned_per_tensor,
    aten._fake_quantize_learnable_per_tensor_affine_backward.default: learned_per_tensor_backward,
    aten._fake_quantize_learnable_per_channel_affine.default: learned_per_channel,
    aten._fake_quantize_learnable_per_channel_affine_backward.default: learned_per_channel_backward,
}
