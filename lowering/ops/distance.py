"""Distances between rows of two arrays, and between the rows of one."""

from __future__ import annotations

from math import inf
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from neuron_compiler.ir.graph import TensorType
from neuron_compiler.lowering.numeric import Array, constant, dtype_of, narrow, widen
from neuron_compiler.lowering.ops.reduction import norm_of
from neuron_compiler.lowering.order import maximum
from neuron_compiler.opdef import Call, Kind, Work, op

aten = torch.ops.aten

FEW_ROWS = 25  # up to this many, ATen measures Euclidean distances pair by pair unless told otherwise


def _pairs(call: Call) -> Work:
    return Work(flops=3 * call.result_types[0].numel * call.type(0).shape[-1])


def _by_product(x: Array, y: Array) -> Array:
    """Euclidean distances from |x|² + |y|² - 2xy, as ATen computes those of many rows."""
    batch = tuple(range(x.ndim - 2))
    products = lax.dot_general(x, y, (((x.ndim - 1,), (y.ndim - 1,)), (batch, batch)), precision=lax.Precision.HIGHEST)
    squares = jnp.sum(x * x, axis=-1)[..., :, None] + jnp.sum(y * y, axis=-1)[..., None, :] - 2 * products
    return jnp.sqrt(maximum(squares, jnp.zeros_like(squares)))


@op(aten._cdist_forward.default, kind=Kind.REDUCTION, work=_pairs)
def cdist_forward(x: Array, y: Array, p: float, compute_mode: int | None = None, *, out: TensorType) -> Array:
    a, b = widen(x), widen(y)
    if x.shape[-1] == 0 or out.numel == 0:
        return jnp.zeros(out.shape, x.dtype)
    batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    a, b = jnp.broadcast_to(a, (*batch, *a.shape[-2:])), jnp.broadcast_to(b, (*batch, *b.shape[-2:]))
    many = max(x.shape[-2], y.shape[-2]) > FEW_ROWS
    if p == 2 and (compute_mode == 1 or (not compute_mode and many)):
        return narrow(_by_product(a, b), out)
    apart = a[..., :, None, :] - b[..., None, :, :]
    return narrow(norm_of(apart, float(p), (apart.ndim - 1,)), out)


def _slope(apart: Array, distance: Array, p: float) -> Array:
    """Derivative of the p-norm with respect to each component of the difference; zero at distance zero."""
    if p == 0:
        return jnp.zeros_like(apart)
    sign = jnp.sign(apart)
    if p == 1:
        return sign
    if p == inf:
        return jnp.where(abs(apart) == distance, sign, 0)
    if p == 2:
        return jnp.where(distance == 0, 0, apart / distance)
    power = constant(p - 1, dtype_of(apart))
    steep = sign * jnp.power(abs(apart), power) / jnp.power(distance, power)
    return jnp.where((distance == 0) | (apart == 0), 0, steep)


@op(aten._cdist_backward.default, kind=Kind.REDUCTION, work=_pairs)
def cdist_backward(grad: Array, x: Array, y: Array, p: float, cdist: Array, *, out: TensorType) -> Array:
    if out.numel == 0 or y.size == 0:
        return jnp.zeros(out.shape, x.dtype)
    apart = widen(x)[..., :, None, :] - widen(y)[..., None, :, :]
    slope = _slope(apart, widen(cdist)[..., None], float(p))
    return narrow(jnp.sum(widen(grad)[..., None] * slope, axis=-2), out).reshape(out.shape)


def _upper(n: int) -> tuple[Any, Any]:
    """Row and column of each pair i < j, in ATen's order."""
    return np.triu_indices(n, 1)


@op(aten._pdist_forward.default, kind=Kind.REDUCTION, work=_pairs)
def pdist_forward(x: Array, p: float = 2.0, *, out: TensorType) -> Array:
    if out.numel == 0 or x.shape[-1] == 0:
        return jnp.zeros(out.shape, x.dtype)
    wide = widen(x)
    first, second = _upper(x.shape[0])
    return narrow(norm_of(wide[first] - wide[second], float(p), (1,)), out)


@op(aten._pdist_backward.default, kind=Kind.REDUCTION, work=_pairs)
def pdist_backward(grad: Array, x: Array, p: float, pdist: Array, *, out: TensorType) -> Array:
    if grad.size == 0 or out.numel == 0:
        return jnp.zeros(out.shape, x.dtype)
    n = x.shape[0]
    wide = widen(x)
    pairs = _upper(n)

    def square(v: Array) -> Array:
        upper = jnp.zeros((n, n), v.dtype).at[pairs].set(v)
        return upper + upper.T

    apart = wide[:, None, :] - wide[None, :, :]
    slope = _slope(apart, square(widen(pdist))[..., None], float(p))
    return narrow(jnp.sum(square(widen(grad))[..., None] * slope, axis=1), out)
