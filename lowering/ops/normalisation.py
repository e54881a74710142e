"""Layer norm, group norm, and their gradients. RMS norm reaches the graph in parts already.

Half precisions are computed in float32 and rounded once; saved statistics have the recorded types. The variance is
taken in two passes, so it holds for means far from zero.
"""

from __future__ import annotations

from math import prod

import jax.numpy as jnp
import torch

from neuron_compiler.ir.graph import TensorType, TupleType
from neuron_compiler.lowering.numeric import Array, cast, constant, dtype_of, dtypes, narrow, widen
from neuron_compiler.lowering.ops.reduction import moments
from neuron_compiler.lowering.transcendental import rsqrt
from neuron_compiler.opdef import Kind, op, per_input_element

aten = torch.ops.aten

OutputMask = tuple[bool, ...]
Gradients = tuple[Array | None, ...]


def reciprocal_deviation(variance: Array, eps: float) -> Array:
    return rsqrt(variance + constant(eps, dtype_of(variance)))


def mean_over(x: Array, axes: tuple[int, ...]) -> Array:
    """Mean with dimensions kept, in ``x``'s own type."""
    count = prod(x.shape[axis] for axis in axes)
    return jnp.sum(x, axis=axes, keepdims=True) / constant(count, dtype_of(x))


def zero(type_: TensorType) -> Array:
    return jnp.zeros(type_.shape, dtypes.to_numpy(type_.dtype))


def standardised(x: Array, mean: Array, rstd: Array) -> Array:
    """``(x - mean) * rstd``, spelt so that XLA does not keep ``x - mean`` of the variance in memory for it."""
    return x * rstd - mean * rstd


def input_gradient(grad: Array, unit: Array, rstd: Array, axes: tuple[int, ...]) -> Array:
    """Gradient of ``unit = (x - mean) * rstd`` with respect to x, where mean and rstd are taken over the axes."""
    return rstd * (grad - mean_over(grad, axes) - unit * mean_over(grad * unit, axes))


_WORK = per_input_element(flops=8)
_BACKWARD_WORK = per_input_element(flops=12)


@op(aten.native_layer_norm.default, kind=Kind.NORMALISATION, work=_WORK)
def layer_norm(
    x: Array, normalized_shape: tuple[int, ...], weight: Array | None, bias: Array | None, eps: float, *, out: TupleType
) -> tuple[Array, ...]:
    wide = widen(x)
    axes = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    if x.size == 0:
        return tuple(zero(element) for element in out.elements)
    variance, average = moments(wide, axes, compensated=False)
    rstd = reciprocal_deviation(variance, eps)
    result = standardised(wide, average, rstd)
    if weight is not None:
        result = result * cast(weight, dtype_of(wide))
    if bias is not None:
        result = result + cast(bias, dtype_of(wide))
    return narrow(result, out.elements[0]), narrow(average, out.elements[1]), narrow(rstd, out.elements[2])


@op(aten.native_layer_norm_backward.default, kind=Kind.NORMALISATION, work=_BACKWARD_WORK)
def layer_norm_backward(
    grad: Array,
    x: Array,
    normalized_shape: tuple[int, ...],
    mean: Array,
    rstd: Array,
    weight: Array | None,
    bias: Array | None,
    output_mask: OutputMask,
    *,
    out: TupleType,
) -> Gradients:
    outer = x.ndim - len(normalized_shape)
    inner_axes, outer_axes = tuple(range(outer, x.ndim)), tuple(range(outer))
    if x.size == 0:
        return tuple(None if element is None else zero(element) for element in out.elements)
    wide, g = widen(x), widen(grad)
    kept = x.shape[:outer] + (1,) * len(normalized_shape)
    deviation = cast(rstd, dtype_of(wide)).reshape(kept)
    unit = (wide - cast(mean, dtype_of(wide)).reshape(kept)) * deviation
    of_x = of_weight = of_bias = None
    if output_mask[0]:
        weighted = g if weight is None else g * cast(weight, dtype_of(g))
        of_x = narrow(input_gradient(weighted, unit, deviation, inner_axes), out.elements[0])
    if output_mask[1] and weight is not None:
        of_weight = narrow(jnp.sum(g * unit, axis=outer_axes), out.elements[1])
    if output_mask[2] and bias is not None:
        of_bias = narrow(jnp.sum(g, axis=outer_axes), out.elements[2])
    return of_x, of_weight, of_bias


def _grouped(x: Array, n: int, groups: int, channels: int, size: int) -> Array:
    """The array in its computing type as [n, groups, channels per group, size]."""
    return widen(x).reshape(n, groups, channels // groups, size)


def _per_group(v: Array, like: Array) -> Array:
    """Parameters [channels] as [1, groups, channels per group, 1], in the type of ``like``."""
    return cast(v, dtype_of(like)).reshape(1, like.shape[1], like.shape[2], 1)


@op(aten.native_group_norm.default, kind=Kind.NORMALISATION, work=_WORK)
def group_norm(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    n: int,
    channels: int,
    size: int,
    groups: int,
    eps: float,
    *,
    out: TupleType,
) -> tuple[Array, ...]:
    if x.size == 0:
        return tuple(zero(element) for element in out.elements)
    wide = _grouped(x, n, groups, channels, size)
    variance, average = moments(wide, (2, 3), compensated=False)
    rstd = reciprocal_deviation(variance, eps)
    result = standardised(wide, average, rstd)
    if weight is not None:
        result = result * _per_group(weight, wide)
    if bias is not None:
        result = result + _per_group(bias, wide)
    return (
        narrow(result, out.elements[0]).reshape(x.shape),
        narrow(average, out.elements[1]).reshape(n, groups),
        narrow(rstd, out.elements[2]).reshape(n, groups),
    )


@op(aten.native_group_norm_backward.default, kind=Kind.NORMALISATION, work=_BACKWARD_WORK)
def group_norm_backward(
    grad: Array,
    x: Array,
    mean: Array,
    rstd: Array,
    weight: Array | None,
    n: int,
    channels: int,
    size: int,
    groups: int,
    output_mask: OutputMask,
    *,
    out: TupleType,
) -> Gradients:
    if x.size == 0:
        return tuple(None if element is None else zero(element) for element in out.elements)
    wide, g = _grouped(x, n, groups, channels, size), _grouped(grad, n, groups, channels, size)
    deviation = cast(rstd, dtype_of(wide)).reshape(n, groups, 1, 1)
    unit = (wide - cast(mean, dtype_of(wide)).reshape(n, groups, 1, 1)) * deviation
    of_x = of_weight = of_bias = None
    if output_mask[0]:
        weighted = g if weight is None else g * _per_group(weight, g)
        of_x = narrow(input_gradient(weighted, unit, deviation, (2, 3)), out.elements[0]).reshape(x.shape)
    if output_mask[1]:
        of_weight = narrow(jnp.sum(g * unit, axis=(0, 3)), out.elements[1]).reshape(channels)
    if output_mask[2]:
        of_bias = narrow(jnp.sum(g, axis=(0, 3)), out.elements[2]).reshape(channels)
    return of_x, of_weight, of_bias
