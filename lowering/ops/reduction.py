"""Sums, products, means, variances, norms, any and all.

Half precisions accumulate in float32 and are rounded once; bool and integer sums promote as the recorded type says.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import torch

from neuron_compiler.ir.graph import DType, TensorType, TupleType
from neuron_compiler.lowering.numeric import (
    Array,
    cast,
    constant,
    dims_of,
    dtype_of,
    narrow,
    widened,
)
from neuron_compiler.lowering.order import largest, smallest
from neuron_compiler.opdef import Call, Kind, Work, op, per_input_element

aten = torch.ops.aten


def finish(x: Array, out: TensorType) -> Array:
    """A reduced array in the recorded type and shape, which says whether the reduced dimensions stay."""
    return narrow(x, out).reshape(out.shape)


def count_of(x: Array, axes: tuple[int, ...]) -> int:
    """How many elements are folded into one."""
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    return count


def _operand(x: Array, out: TensorType) -> Array:
    """The operand as ATen folds it: first rounded to the result's type, then widened to accumulate in."""
    return cast(cast(x, out.dtype), widened(out.dtype))


@op(aten.sum.default, aten.sum.dim_IntList, kind=Kind.REDUCTION)
def sum_(x: Array, dim: Any = None, keepdim: bool = False, *, dtype: DType | None = None, out: TensorType) -> Array:
    axes = dims_of(dim, x.ndim)
    if out.dtype is DType.BOOL:
        return finish(jnp.any(cast(x, DType.BOOL), axis=axes), out)
    return finish(jnp.sum(_operand(x, out), axis=axes), out)


@op(aten.mean.default, aten.mean.dim, kind=Kind.REDUCTION)
def mean(x: Array, dim: Any = None, keepdim: bool = False, *, dtype: DType | None = None, out: TensorType) -> Array:
    axes = dims_of(dim, x.ndim)
    wide = _operand(x, out)
    return finish(jnp.sum(wide, axis=axes) / constant(count_of(x, axes), dtype_of(wide)), out)


@op(aten.prod.default, aten.prod.dim_int, kind=Kind.REDUCTION)
def prod(x: Array, dim: Any = None, keepdim: bool = False, *, dtype: DType | None = None, out: TensorType) -> Array:
    axes = dims_of(dim, x.ndim)
    if out.dtype is DType.BOOL:
        return finish(jnp.all(cast(x, DType.BOOL), axis=axes), out)
    return finish(jnp.prod(_rounded(_operand(x, out)), axis=axes), out)


def _rounded(x: Array) -> Array:
    """The array unchanged, as it was rounded.

    In a loop that multiplies up, LLVM takes factors in any order: those that are constants it multiplies beforehand,
    ``(x * 1e20).prod()`` to ``x.prod() * inf``. What a comparison was made of it does not take apart.
    """
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    return jnp.where(jnp.abs(x) <= jnp.inf, x, jnp.asarray(jnp.nan, x.dtype))


@op(aten.any.default, aten.any.dim, aten.any.dims, kind=Kind.REDUCTION)
def any_(x: Array, dim: Any = None, keepdim: bool = False, *, out: TensorType) -> Array:
    return finish(jnp.any(cast(x, DType.BOOL), axis=dims_of(dim, x.ndim)), out)


@op(aten.all.default, aten.all.dim, aten.all.dims, kind=Kind.REDUCTION)
def all_(x: Array, dim: Any = None, keepdim: bool = False, *, out: TensorType) -> Array:
    return finish(jnp.all(cast(x, DType.BOOL), axis=dims_of(dim, x.ndim)), out)


def moments(x: Array, axes: tuple[int, ...], correction: float = 0.0, compensated: bool = True) -> tuple[Array, Array]:
    """Variance and mean over the axes, dimensions kept, in ``x``'s own type (float32 or wider).

    Two passes. Compensated, what the rounded mean leaves over is taken off: as accurate as the double-precision
    Welford of ``aten.var``; else as accurate as the single-precision one of ATen's normalisations.
    """
    own = dtype_of(x)
    count = count_of(x, axes)
    average = jnp.sum(x, axis=axes, keepdims=True) / constant(count, own)
    off = x - average
    squares = jnp.sum(off * off, axis=axes, keepdims=True)
    if compensated:
        left = jnp.sum(off, axis=axes, keepdims=True)
        squares = squares - left * left / constant(count, own)
    return squares / constant(max(0.0, count - correction), own), average


def _variance(x: Array, dim: Any, correction: Any) -> tuple[Array, Array]:
    axes = dims_of(dim, x.ndim)
    wide = cast(x, widened(dtype_of(x)))
    away = 1.0 if correction is None else float(correction)
    if dtype_of(wide).is_complex:
        real, imaginary = moments(wide.real, axes, away), moments(wide.imag, axes, away)
        return real[0] + imaginary[0], real[1] + 1j * imaginary[1]
    return moments(wide, axes, away)


_variance_work = per_input_element(flops=5)


@op(aten.var.correction, kind=Kind.REDUCTION, work=_variance_work)
def var(x: Array, dim: Any = None, *, correction: Any = None, keepdim: bool = False, out: TensorType) -> Array:
    return finish(_variance(x, dim, correction)[0], out)


@op(aten.std.correction, kind=Kind.REDUCTION, work=_variance_work)
def std(x: Array, dim: Any = None, *, correction: Any = None, keepdim: bool = False, out: TensorType) -> Array:
    return finish(jnp.sqrt(_variance(x, dim, correction)[0]), out)


@op(aten.var_mean.correction, kind=Kind.REDUCTION, work=_variance_work)
def var_mean(
    x: Array, dim: Any = None, *, correction: Any = None, keepdim: bool = False, out: TupleType
) -> tuple[Array, Array]:
    variance, average = _variance(x, dim, correction)
    return finish(variance, out.elements[0]), finish(average, out.elements[1])


@op(aten.std_mean.correction, kind=Kind.REDUCTION, work=_variance_work)
def std_mean(
    x: Array, dim: Any = None, *, correction: Any = None, keepdim: bool = False, out: TupleType
) -> tuple[Array, Array]:
    variance, average = _variance(x, dim, correction)
    return finish(jnp.sqrt(variance), out.elements[0]), finish(average, out.elements[1])


def norm_of(x: Array, power: float, axes: tuple[int, ...]) -> Array:
    """The vector norm of a float32 or wider array over the axes; real."""
    if power == 0:
        size = abs(x)
        return jnp.sum((size != 0).astype(size.dtype), axis=axes)
    if power == 2:
        squares = x.real * x.real + x.imag * x.imag if dtype_of(x).is_complex else x * x
        return jnp.sqrt(jnp.sum(squares, axis=axes))
    size = abs(x)
    if power == np.inf:
        return largest(size, axes)
    if power == -np.inf:
        return smallest(size, axes)
    if power == 1:
        return jnp.sum(size, axis=axes)
    own = dtype_of(size)
    return jnp.power(jnp.sum(jnp.power(size, constant(power, own)), axis=axes), constant(1.0 / power, own))


def _norm_work(call: Call) -> Work:
    count = call.operand_types[0].numel
    power = call.op.operand(1, 2)
    return Work(2 * count, 0 if power in (0, 1, 2, float("inf"), float("-inf")) else count)


@op(aten.linalg_vector_norm.default, kind=Kind.REDUCTION, work=_norm_work)
def vector_norm(
    x: Array, power: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: DType | None = None, out: TensorType
) -> Array:
    wide = cast(x, dtype) if dtype is not None else x
    return finish(norm_of(cast(wide, widened(dtype_of(wide))), float(power), dims_of(dim, x.ndim)), out)


@op(aten.dist.default, kind=Kind.REDUCTION, work=per_input_element(flops=3))
def dist(x: Array, y: Array, power: Any = 2, *, out: TensorType) -> Array:
    apart = cast(x, widened(dtype_of(x))) - cast(y, widened(dtype_of(y)))
    return finish(norm_of(apart, float(power), tuple(range(apart.ndim))), out)


@op(aten.logsumexp.default, kind=Kind.REDUCTION, work=per_input_element(flops=3, transcendental=1))
def logsumexp(x: Array, dim: Any, keepdim: bool = False, *, out: TensorType) -> Array:
    """NaN reaches the result through the exponentials, so the shift may ignore it."""
    axes = dims_of(dim, x.ndim)
    wide = cast(x, widened(out.dtype))
    if x.size == 0:
        return finish(jnp.log(jnp.sum(wide, axis=axes)), out)
    real = wide.real if dtype_of(wide).is_complex else wide
    shift = jnp.max(real, axis=axes) if axes else real
    kept = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
    shift = jnp.where(abs(shift) == np.inf, jnp.zeros_like(shift), shift).reshape(kept)
    return finish(jnp.log(jnp.sum(jnp.exp(wide - shift), axis=axes, keepdims=True)) + shift, out)
