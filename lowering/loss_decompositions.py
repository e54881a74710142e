"""Margin losses, and the backward passes that PyTorch has kernels of and no decomposition, or a wrong one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

NONE, MEAN = 0, 1  # at::Reduction


def _classes(x: Tensor) -> int:
    """Scores of a sample; a number is one sample of one class."""
    return x.shape[-1] if x.dim() else 1


def _share(x: Tensor, reduction: int) -> float:
    """What one pair of classes counts: a loss is a mean over classes, and over samples where that is asked for."""
    return 1 / (x.numel() if reduction == MEAN else _classes(x))


def multi_margin_loss_backward(
    grad_output: Tensor,
    x: Tensor,
    target: Tensor,
    p: float,
    margin: float,
    weight: Tensor | None = None,
    reduction: int = MEAN,
) -> Tensor:
    """Gradient of samples [N, C], one sample [C] or a number; ``target`` [N] or a number."""
    rows, classes = x.reshape(-1, _classes(x)), target.reshape(-1, 1)
    distance = margin - rows.gather(1, classes) + rows
    others = torch.arange(rows.shape[1], device=x.device) != classes
    slope = _share(x, reduction) * (1.0 if p == 1 else 2 * distance)
    made = torch.where((distance > 0) & others, slope, 0.0)
    if weight is not None:
        made = made * weight[classes]
    made = made.scatter_add(1, classes, -made.sum(1, keepdim=True))
    return (made * grad_output.reshape(-1, 1)).reshape(x.shape).to(x.dtype)


def _listed(target: Tensor) -> Tensor:
    """Which entries of [N, C] count: those before the first that is negative."""
    return torch.cumprod((target >= 0).to(torch.int64), 1) == 1


def multilabel_margin_loss(input: Tensor, target: Tensor, reduction: int = MEAN) -> Tensor:
    """Loss of samples [N, C], one sample [C] or a number; ``target`` lists classes, the first negative one ends it."""
    shape, count = tuple(input.shape), _classes(input)
    torch._check(len(shape) <= 2 and count != 0, lambda: f"expected one or more samples, not {shape}")
    alike = target.shape == input.shape if len(shape) == 2 else target.dim() <= 1 and target.numel() == count
    torch._check(alike, lambda: f"inconsistent target size: {tuple(target.shape)}")
    rows, listed = input.reshape(-1, count), target.reshape(-1, count)
    counts = _listed(listed)
    classes = torch.where(counts, listed, 0)
    is_target = torch.zeros_like(listed).scatter_add(1, classes, counts.to(listed.dtype)) > 0
    distance = (1 - rows.gather(1, classes).unsqueeze(2) + rows.unsqueeze(1)).clamp_min(0)
    losses = torch.where(counts.unsqueeze(2) & ~is_target.unsqueeze(1), distance, 0).sum((1, 2)) / count
    if reduction == NONE:
        return losses.reshape(shape[:-1])
    return losses.mean() if reduction == MEAN else losses.sum()


def multilabel_margin_loss_backward(
    grad_output: Tensor, x: Tensor, target: Tensor, reduction: int, is_target: Tensor
) -> Tensor:
    """Gradient of samples [N, C], one sample [C] or a number; ``target`` lists classes, the first negative ends it."""
    rows, listed = x.reshape(-1, _classes(x)), target.reshape(-1, _classes(x))
    counts = _listed(listed)
    classes = torch.where(counts, listed, 0)
    distance = 1 - rows.gather(1, classes).unsqueeze(2) + rows.unsqueeze(1)
    others = is_target.reshape(rows.shape).unsqueeze(1) == 0
    pairs = ((distance > 0) & counts.unsqueeze(2) & others).to(x.dtype) * _share(x, reduction)
    made = pairs.sum(1).scatter_add(1, classes, -pairs.sum(2))
    return (made * grad_output.reshape(-1, 1)).reshape(x.shape)


def masked_softmax_backward(grad_output: Tensor, output: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Gradient where ``mask`` is False; elsewhere the softmax had no part and 0 is given."""
    over = output.dim() - 1 if dim is None else dim
    kept = torch.where(mask, 0.0, output)
    given = torch.where(mask, 0.0, grad_output)
    return (kept * (given - (given * kept).sum(over, keepdim=True))).to(output.dtype)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.multi_margin_loss_backward.default: multi_margin_loss_backward,
    aten.multilabel_margin_loss_backward.default: multilabel_margin_loss_backward,
    aten._masked_softmax_backward.default: masked_softmax_backward,
}
