"""Distances between rows, by any norm, and their gradients."""

from __future__ import annotations

from math import inf

import jax.numpy as jnp
import numpy as np
import torch

from neuron_compiler.ir.graph import TensorType
from neuron_compiler.lowering.numeric import Array, narrow, scalar
from neuron_compiler.lowering.ops.contraction import contract
from neuron_compiler.opdef import Call, Kind, Work, op

aten = torch.ops.aten

ROWS_FOR_PRODUCT = 25
"""Rows above which ATen takes Euclidean distances from a matrix product, with its larger rounding errors."""
BY_PRODUCT, NEVER_BY_PRODUCT = 1, 2


def _norm(difference: Array, p: float) -> Array:
    """Norm over the last axis."""
    size = jnp.abs(difference)
    if p == 0:
        return jnp.sum((size != 0).astype(size.dtype), axis=-1)
    if p == 1:
        return jnp.sum(size, axis=-1)
    if p == 2:
        return jnp.sqrt(jnp.sum(size * size, axis=-1))
    if p == inf:
        return jnp.max(size, axis=-1, initial=0)
    return jnp.sum(size ** scalar(p, size), axis=-1) ** scalar(1 / p, size)


def _share(difference: Array, grad: Array, distance: Array, p: float) -> Array:
    """Gradient of one distance by each coordinate of its first row; a distance of 0 has none."""
    if p == 0:
        return jnp.zeros_like(difference)
    size, sign = jnp.abs(difference), jnp.sign(difference)
    grad, distance = grad[..., None], distance[..., None]
    if p == 1:
        return grad * sign
    if p == inf:
        return grad * sign * (size == distance)
    safe = jnp.where(distance == 0, 1, distance)
    if p == 2:
        part = grad * difference / safe
    else:
        power = jnp.where(size == 0, 0, jnp.where(size == 0, 1, size) ** scalar(p - 1, size))
        part = sign * power * grad / safe ** scalar(p - 1, size)
    return jnp.where(distance == 0, 0, part)


def _euclidean_by_product(a: Array, b: Array) -> Array:
    """Root of |a|² - 2·a·b + |b|², summed by one product as ATen does."""
    one_a, one_b = (jnp.ones((*x.shape[:-1], 1), x.dtype) for x in (a, b))
    of_a, of_b = (jnp.sum(x * x, axis=-1, keepdims=True) for x in (a, b))
    left = jnp.concatenate([-2 * a, of_a, one_a], axis=-1)
    right = jnp.concatenate([b, one_b, of_b], axis=-1)
    axes = tuple(range(a.ndim - 2))
    squares = contract(left, right, ((a.ndim - 1,), (a.ndim - 1,)), (axes, axes))
    return jnp.sqrt(jnp.where(squares < 0, 0, squares))


def _pairs_work(call: Call) -> Work:
    """Three flops for each coordinate of each pair."""
    return Work(3 * call.result_types[0].numel * call.type(0).shape[-1])


def _backward_work(call: Call) -> Work:
    return Work(4 * call.type(0).numel * call.type(1).shape[-1])


@op(aten._cdist_forward.default, kind=Kind.OTHER, work=_pairs_work)
def cdist(a: Array, b: Array, p: float, compute_mode: int | None, *, out: TensorType) -> Array:
    """``a`` [..., P, M], ``b`` [..., R, M] to [..., P, R]."""
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (jnp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b))
    if out.numel == 0 or a.shape[-1] == 0:
        return narrow(jnp.zeros(out.shape), out)
    many = max(a.shape[-2], b.shape[-2]) > ROWS_FOR_PRODUCT
    if p == 2 and (compute_mode == BY_PRODUCT or (compute_mode != NEVER_BY_PRODUCT and many)):
        return _euclidean_by_product(a, b)
    return _norm(a[..., :, None, :] - b[..., None, :, :], p)


@op(aten._cdist_backward.default, kind=Kind.OTHER, work=_backward_work)
def cdist_backward(grad: Array, a: Array, b: Array, p: float, distance: Array, *, out: TensorType) -> Array:
    """Gradient by ``a``."""
    if out.numel == 0 or b.size == 0:
        return jnp.zeros(out.shape, a.dtype)
    share = _share(a[..., :, None, :] - b[..., None, :, :], grad, distance, p)
    return jnp.broadcast_to(jnp.sum(share, axis=-2), out.shape)


def _pairs(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of rows once, in the order of their distances."""
    return np.triu_indices(rows, 1)


@op(aten._pdist_forward.default, kind=Kind.OTHER, work=_pairs_work)
def pdist(x: Array, p: float = 2.0, *, out: TensorType) -> Array:
    if out.numel == 0 or x.shape[1] == 0:
        return jnp.zeros(out.shape, x.dtype)
    first, second = _pairs(x.shape[0])
    return _norm(x[jnp.asarray(first)] - x[jnp.asarray(second)], p)


@op(aten._pdist_backward.default, kind=Kind.OTHER, work=_backward_work)
def pdist_backward(grad: Array, x: Array, p: float, distance: Array, *, out: TensorType) -> Array:
    if grad.size == 0 or x.size == 0:
        return jnp.zeros(out.shape, x.dtype)
    first, second = map(jnp.asarray, _pairs(x.shape[0]))
    share = _share(x[first] - x[second], grad, distance, p)
    return jnp.zeros_like(x).at[first].add(share).at[second].add(-share)
