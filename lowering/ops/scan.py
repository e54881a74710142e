"""Cumulative ops: one pass along a dimension, in the order and the accumulation type of ATen's CPU kernels.

The pass is a loop over the dimension with the other dimensions side by side, or row after row. XLA's own cumulative
ops are a reduce-window (quadratic on the CPU) or a logarithmic tree (several times slower here, and slow to compile).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from neuron_compiler.ir.graph import DType, TensorType, TupleType
from neuron_compiler.lowering.numeric import Array, cast, constant, dtype_of, is_float, narrow, widen
from neuron_compiler.opdef import Kind, op, per_input_element

aten = torch.ops.aten

# ``at::acc_type`` of the CPU; other types accumulate in themselves.
ACCUMULATED_IN: Mapping[DType, DType] = {
    DType.F16: DType.F32,
    DType.BF16: DType.F32,
    DType.F32: DType.F64,
    DType.C64: DType.C128,
}


UNROLLED = 8  # elements of a row that one turn of the loop takes


def along(step: Callable[[Any, Any], tuple[Any, Any]], start: Callable[[Array], Any], x: Array, axis: int) -> Any:
    """``lax.scan`` over one axis: ``start`` makes the first carry from one slice; results keep the axis in place.

    Halves go in and come out as float32: XLA moves them so inside of a loop, by an instruction of the processor
    (AVX512-BF16) that takes subnormals for zero.
    """
    x = widen(x)
    if axis == x.ndim - 1:
        return _along_rows(step, start, x)
    moved = jnp.moveaxis(x, axis, 0)
    _, rows = lax.scan(step, start(moved[0]), moved)
    return jax.tree.map(lambda row: jnp.moveaxis(row, 0, axis), rows)


def _along_rows(step: Callable[[Any, Any], tuple[Any, Any]], start: Callable[[Array], Any], x: Array) -> Any:
    """The last axis, by one loop through memory that starts anew at each row: XLA's transpositions cost more."""
    size = x.shape[-1]
    taken = next(count for count in (UNROLLED, UNROLLED // 2, UNROLLED // 4, 1) if size % count == 0)
    turns = np.int32(size // taken)
    pieces = x.reshape(-1, taken)

    def turn(state: tuple[Array, Any], piece: Array) -> tuple[tuple[Array, Any], Any]:
        number, carry = state
        carry = jax.tree.map(lambda new, old: jnp.where(number == 0, new, old), start(piece[0]), carry)
        found = []
        for place in range(taken):
            carry, row = step(carry, piece[place])
            found.append(row)
        number = jnp.where(number + 1 == turns, np.int32(0), number + 1)
        return (number, carry), jax.tree.map(lambda *elements: jnp.stack(elements), *found)

    _, rows = lax.scan(turn, (jnp.zeros((), np.int32), start(pieces[0, 0])), pieces)
    return jax.tree.map(lambda row: row.reshape(x.shape), rows)


def running(x: Array, axis: int, combine: Callable[[Array, Array], Array], first: Any, out: DType) -> Array:
    """Running ``combine`` along an axis that has elements, accumulated as ATen does; each rounded to ``out``."""
    wide = ACCUMULATED_IN.get(out, out)

    def step(total: Array, row: Array) -> tuple[Array, Array]:
        total = combine(total, cast(row, wide))
        return total, total if wide is DType.F32 else cast(total, out)

    return cast(along(step, lambda row: jnp.broadcast_to(constant(first, wide), row.shape), x, axis), out)


def _cumulative(x: Array, dim: int, combine: Callable[[Array, Array], Array], first: Any, out: TensorType) -> Array:
    x = cast(x, out.dtype)
    if x.ndim == 0 or x.size == 0:
        return x
    return running(x, dim % x.ndim, combine, first, out.dtype)


@op(aten.cumsum.default, kind=Kind.SCAN)
def cumsum(x: Array, dim: int, *, dtype: DType | None = None, out: TensorType) -> Array:
    return _cumulative(x, dim, lax.add, 0, out)


@op(aten.cumprod.default, kind=Kind.SCAN)
def cumprod(x: Array, dim: int, *, dtype: DType | None = None, out: TensorType) -> Array:
    return _cumulative(x, dim, lax.mul, 1, out)


def _extreme(x: Array, dim: int, replaces: Callable[[Array, Array], Array]) -> tuple[Array, Array]:
    """Running extreme and its position: a later equal element replaces, as does every NaN."""
    if x.ndim == 0 or x.size == 0:
        return x, jnp.zeros(x.shape, jnp.int64)

    def step(carry: tuple[Array, Array, Array], row: Array) -> tuple[tuple[Array, Array, Array], tuple[Array, Array]]:
        best, where, index = carry
        chosen = replaces(row, best)
        if is_float(x):
            chosen = (row != row) | ((best == best) & chosen)
        best, where = jnp.where(chosen, row, best), jnp.where(chosen, index, where)
        return (best, where, index + np.int64(1)), (best, where)

    def start(row: Array) -> tuple[Array, Array, Array]:
        return row, jnp.zeros(row.shape, jnp.int64), jnp.zeros((), jnp.int64)

    extremes, places = along(step, start, x, dim % x.ndim)
    return cast(extremes, dtype_of(x)), places


@op(aten.cummax.default, kind=Kind.SCAN)
def cummax(x: Array, dim: int, *, out: TupleType) -> tuple[Array, Array]:
    return _extreme(x, dim, lambda row, best: row >= best)


@op(aten.cummin.default, kind=Kind.SCAN)
def cummin(x: Array, dim: int, *, out: TupleType) -> tuple[Array, Array]:
    return _extreme(x, dim, lambda row, best: row <= best)


def _log_of_sum(x: Array, y: Array) -> Array:
    """Logarithm of exp(x) + exp(y), from the lower of the two by real part and the higher."""
    low, high = jnp.minimum(x, y), jnp.maximum(x, y)
    equal_infinities = (low == high) & (abs(low) == np.inf)
    return jnp.where(equal_infinities, x, jnp.log1p(jnp.exp(low - high)) + high)


def _log_of_complex_sum(x: Array, y: Array) -> Array:
    lower = x.real < y.real
    low, high = jnp.where(lower, x, y), jnp.where(lower, y, x)
    infinite = jnp.isinf(low.real) & (low.real == high.real)
    # Where both vanish their angle means nothing; where both are infinite it is that of the sum.
    at_infinity = jnp.where(low.real < 0, low, jnp.log(jnp.exp(low) + jnp.exp(high)))
    part = low - high
    part = jnp.where(part.real == -np.inf, 0, jnp.exp(part))  # XLA's is NaN where the angle is infinite
    found = jnp.where(infinite, at_infinity, jnp.log1p(part) + high)
    return jnp.where(jnp.isnan(x) | jnp.isnan(y), lax.complex(jnp.nan, jnp.nan).astype(x.dtype), found)


@op(aten.logcumsumexp.default, kind=Kind.SCAN, work=per_input_element(flops=4, transcendental=2))
def logcumsumexp(x: Array, dim: int, *, out: TensorType) -> Array:
    if x.ndim == 0 or x.size == 0:
        return x
    wide = ACCUMULATED_IN.get(out.dtype, out.dtype)
    add = _log_of_complex_sum if out.dtype.is_complex else _log_of_sum

    def step(total: Array, row: Array) -> tuple[Array, Array]:
        total = add(cast(row, wide), total)
        return total, total if wide is DType.F32 else narrow(total, out)

    return narrow(along(step, lambda row: jnp.broadcast_to(constant(-np.inf, wide), row.shape), x, dim % x.ndim), out)
