"""Decompositions of what optimizers are with ``fused=True``, and of gradient scaling: operators on lists of tensors.

The steps are those of ATen's CPU kernels, in their order. Steps taken and bias corrections are computed in float64, as
there: ``1 - beta ** step`` has few digits left in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

Lists = tuple[list[Tensor], ...]
Number = float | Tensor


def _given(grad: Tensor, scale: Tensor | None) -> Tensor:
    return grad if scale is None else grad / scale.to(grad.dtype)


def _direction(grad: Tensor, param: Tensor, maximize: bool, weight_decay: float) -> Tensor:
    """Where a parameter goes downhill, with the decay that counts as part of the gradient."""
    grad = -grad if maximize else grad
    return grad + param * weight_decay if weight_decay != 0 else grad


def _unless(found_inf: Tensor | None, new: list[Tensor], old: Sequence[Tensor]) -> list[Tensor]:
    """The new tensors, or where a gradient was infinite the old."""
    if found_inf is None:
        return new
    return [torch.where(found_inf == 1, before, after) for after, before in zip(new, old, strict=True)]


def _adam(decoupled: bool) -> Callable[..., Lists]:
    def decomposition(
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        exp_avgs: Sequence[Tensor],
        exp_avg_sqs: Sequence[Tensor],
        max_exp_avg_sqs: Sequence[Tensor],
        state_steps: Sequence[Tensor],
        *,
        lr: Number,
        beta1: float,
        beta2: float,
        weight_decay: float,
        eps: float,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Tensor | None = None,
        found_inf: Tensor | None = None,
    ) -> Lists:
        made: Lists = ([], [], [], [], [])
        for i, (param, grad) in enumerate(zip(params, grads, strict=True)):
            dtype = param.dtype
            step = state_steps[i].to(torch.float64)
            kept = _given(grad, grad_scale)
            grad = _direction(kept, param, maximize, 0.0 if decoupled else weight_decay)
            if decoupled and weight_decay != 0:
                param = param - _times(lr, weight_decay, dtype) * param
            exp_avg = torch.lerp(exp_avgs[i], grad, 1 - beta1)
            exp_avg_sq = exp_avg_sqs[i] * beta2 + (1 - beta2) * grad * grad
            largest = torch.maximum(max_exp_avg_sqs[i], exp_avg_sq) if amsgrad else exp_avg_sq
            denominator = largest.sqrt() / (1 - beta2**step).sqrt().to(dtype) + eps
            param = param - (lr / (1 - beta1**step)).to(dtype) * exp_avg / denominator
            for several, one in zip(made, (param, kept, exp_avg, exp_avg_sq, largest), strict=True):
                several.append(one)
        old = (params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs)
        if not amsgrad:
            made = (*made[:4], list(max_exp_avg_sqs))
        return tuple(_unless(found_inf, new, before) for new, before in zip(made, old, strict=True))

    return decomposition


def _times(lr: Number, number: float, dtype: torch.dtype) -> Number:
    return (lr * number).to(dtype) if isinstance(lr, Tensor) else lr * number


def _sgd(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    momentum_buffers: Sequence[Tensor],
    *,
    weight_decay: float,
    momentum: float,
    lr: Number,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> Lists:
    made: Lists = ([], [], [])
    for i, (param, grad) in enumerate(zip(params, grads, strict=True)):
        kept = _given(grad, grad_scale)
        grad = _direction(kept, param, maximize, weight_decay)
        if momentum != 0:
            buffer = grad if is_first_step else momentum_buffers[i] * momentum + grad * (1 - dampening)
            made[2].append(buffer.clone() if is_first_step else buffer)
            grad = grad + buffer * momentum if nesterov else buffer
        made[0].append(param - _times(lr, 1.0, param.dtype) * grad)
        made[1].append(kept)
    if momentum == 0:
        made = (*made[:2], list(momentum_buffers))
    old = (params, grads, momentum_buffers)
    return tuple(_unless(found_inf, new, before) for new, before in zip(made, old, strict=True))


def _adagrad(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    state_sums: Sequence[Tensor],
    state_steps: Sequence[Tensor],
    *,
    lr: Number,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> Lists:
    made: Lists = ([], [], [])
    for i, (param, grad) in enumerate(zip(params, grads, strict=True)):
        rate = lr / (1 + (state_steps[i].to(torch.float64) - 1) * lr_decay)
        kept = _given(grad, grad_scale)
        grad = _direction(kept, param, maximize, weight_decay)
        total = state_sums[i] + grad * grad
        param = param - rate.to(param.dtype) * grad / (total.sqrt() + eps)
        for several, one in zip(made, (param, kept, total), strict=True):
            several.append(one)
    old = (params, grads, state_sums)
    return tuple(_unless(found_inf, new, before) for new, before in zip(made, old, strict=True))


def _adagrad_with_steps(*args: Any, **kwargs: Any) -> Lists:
    return (*_adagrad(*args, **kwargs), list(args[3]))


def _unscale(grads: Sequence[Tensor], found_inf: Tensor, inv_scale: Tensor) -> tuple[list[Tensor], Tensor]:
    found = found_inf
    for grad in grads:
        found = torch.where(torch.isfinite(grad).all(), found, torch.ones_like(found))
    # One is not multiplied: it would make NaN of an infinity that is to be found later.
    return [torch.where(inv_scale == 1, grad, grad * inv_scale.to(grad.dtype)) for grad in grads], found


def _update_scale(
    scale: Tensor, growth_tracker: Tensor, found_inf: Tensor, growth: float, backoff: float, interval: int
) -> tuple[Tensor, Tensor]:
    found = found_inf != 0
    successes = growth_tracker + 1
    due = successes == interval
    larger = (scale * growth).to(scale.dtype)
    grown = torch.where(due & torch.isfinite(larger), larger, scale)
    tracker = torch.where(due | found, torch.zeros_like(growth_tracker), successes)
    return torch.where(found, (scale * backoff).to(scale.dtype), grown), tracker


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten._fused_adam.default: _adam(decoupled=False),
    aten._fused_adam.tensor_lr: _adam(decoupled=False),
    aten._fused_adamw.default: _adam(decoupled=True),
    aten._fused_adamw.tensor_lr: _adam(decoupled=True),
    aten._fused_sgd.default: _sgd,
    aten._fused_sgd.tensor_lr: _sgd,
    aten._fused_adagrad.default: _adagrad_with_steps,
    aten._fused_adagrad.tensor_lr: _adagrad,
    aten._amp_foreach_non_finite_check_and_unscale.default: _unscale,
    aten._amp_update_scale.default: _update_scale,
}
