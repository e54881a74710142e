"""Losses that check their operands or pick by class; PyTorch's decompositions of the others are exact."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from neuron_compiler.ir.graph import TensorType, TupleType
from neuron_compiler.lowering import checks
from neuron_compiler.lowering.numeric import Array, cast, constant, dtype_of, narrow, widen
from neuron_compiler.lowering.order import maximum, take
from neuron_compiler.opdef import Kind, op, per_element, per_input_element

aten = torch.ops.aten

NONE, MEAN, SUM = 0, 1, 2  # values of ``reduction``


def _per_target(weight: Array | None, target: Array, counts: Array, like: Array) -> Array:
    """Weight of each target, zero where it does not count, in the type of ``like``."""
    if weight is None:
        return counts.astype(like.dtype)
    return jnp.where(counts, cast(weight, dtype_of(like))[target], 0)


def _targets(target: Array, classes: int, ignore_index: int) -> tuple[Array, Array]:
    """Targets that are safe to index with, and which of them count; the rest is required to be a class."""
    counts = target != ignore_index
    inside = (target >= 0) & (target < classes)
    if target.size:
        checks.require(~counts | inside, f"Target is out of bounds: there are {classes} classes.")
    return jnp.where(counts & inside, target, 0), counts


@op(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default, kind=Kind.REDUCTION, work=per_element(flops=2))
def nll_loss_forward(
    x: Array, target: Array, weight: Array | None, reduction: int, ignore_index: int, *, out: TupleType
) -> tuple[Array, Array]:
    """``x`` is [n, classes, ...] with ``target`` [n, ...], or [classes] with a 0-dim target."""
    wide = widen(x)
    axis = 0 if x.ndim == 1 else 1
    safe, counts = _targets(target.reshape(()) if x.ndim == 1 else target, x.shape[axis], ignore_index)
    weights = _per_target(weight, safe, counts, wide)
    if x.size:
        picked = take(wide, jnp.expand_dims(safe, axis), axis).reshape(safe.shape)
        losses = jnp.where(counts, -picked * weights, 0)
    else:
        losses = jnp.zeros(safe.shape, wide.dtype)
    result, total = out.elements
    if reduction == NONE and x.ndim > 1:
        return narrow(losses, result).reshape(result.shape), jnp.zeros(total.shape, x.dtype)
    all_weights = jnp.sum(weights)
    loss = jnp.sum(losses)
    if reduction == MEAN:
        loss = loss / all_weights
    return narrow(loss, result).reshape(result.shape), narrow(all_weights, total).reshape(total.shape)


@op(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default, kind=Kind.ELEMENTWISE)
def nll_loss_backward(
    grad: Array,
    x: Array,
    target: Array,
    weight: Array | None,
    reduction: int,
    ignore_index: int,
    total_weight: Array,
    *,
    out: TensorType,
) -> Array:
    """By comparing each class with the target: one fused loop instead of a scatter."""
    axis = 0 if x.ndim == 1 else 1
    safe, counts = _targets(target.reshape(()) if x.ndim == 1 else target, x.shape[axis], ignore_index)
    g = widen(grad)
    if reduction == MEAN:
        g = g / cast(total_weight, dtype_of(g))
    weights = _per_target(weight, safe, counts, g)
    of_target = jnp.where(counts, -weights * g.reshape(safe.shape if reduction == NONE else ()), 0)
    place = lax.broadcasted_iota(np.int64, x.shape, axis)
    hit = place == jnp.expand_dims(safe, axis)
    return narrow(jnp.where(hit, jnp.expand_dims(of_target, axis), 0), out)


@op(aten.binary_cross_entropy.default, kind=Kind.REDUCTION, work=per_input_element(flops=6, transcendental=2))
def binary_cross_entropy(
    x: Array, target: Array, weight: Array | None = None, reduction: int = MEAN, *, out: TensorType
) -> Array:
    """Logarithms are held above -100; each loss is rounded to the result's type before any is summed."""
    if x.size:
        checks.require((x >= 0) & (x <= 1), "all elements of input should be between 0 and 1", RuntimeError)
        checks.require((target >= 0) & (target <= 1), "all elements of target should be between 0 and 1", RuntimeError)
    wide = widen(x)
    own = dtype_of(wide)
    wanted = cast(target, own)
    low = jnp.broadcast_to(constant(-100.0, own), wide.shape)
    losses = (wanted - 1) * maximum(jnp.log1p(-wide), low) - wanted * maximum(jnp.log(wide), low)
    losses = narrow(losses, out)
    if weight is not None:
        losses = narrow(widen(losses) * cast(weight, own), out)
    if reduction == NONE:
        return losses
    total = jnp.sum(widen(losses))
    return narrow(total / constant(losses.size, own) if reduction == MEAN else total, out)
