"""Sorting, selecting by rank, and searching in sorted sequences. NaN is greatest.

Equal elements are in eager's order, also where ATen leaves it open; stably on a host where that cannot be had.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from neuron_compiler.ir.graph import DType, TensorType, TupleType
from neuron_compiler.lowering import order
from neuron_compiler.lowering.numeric import Array, cast, dtype_of, dtypes, is_array, is_float, result_dtype, widen
from neuron_compiler.lowering.ops.scan import along
from neuron_compiler.opdef import Call, Kind, Work, op
from neuron_compiler.order_of_equals import BY_DIGITS_FROM, KTHVALUE, SORT, TOPK, TOPK_UNSORTED, sorts_by_digits

aten = torch.ops.aten


def _comparisons(call: Call) -> Work:
    """n log2 n of each row; the shortest row that the schema allows is the whole operand."""
    shape = call.type(0).shape
    count = call.type(0).numel
    longest = max(shape, default=1)
    return Work(flops=count * max(1, longest.bit_length()))


STABLE_TO = 16
"""Up to so many elements the standard library's sort inserts them one by one, which keeps equal ones in order."""


def _is_stable_anyway(x: Array, axis: int, descending: bool) -> bool:
    """Whether ATen's unstable sort keeps equal elements in order here."""
    if x.shape[axis] <= STABLE_TO:
        return True
    by_digits = x.ndim == 1 and not descending and not is_float(x) and dtype_of(x) is not DType.BOOL
    return by_digits and x.size >= BY_DIGITS_FROM and sorts_by_digits()


def _sorted(x: Array, dim: int, descending: bool, stable: bool) -> tuple[Array, Array]:
    if x.ndim == 0 or x.size == 0:
        return x, jnp.zeros(x.shape, jnp.int64)
    axis = dim % x.ndim
    positions = None
    if not stable and not _is_stable_anyway(x, axis, descending):
        key = order.ascending_key(x, descending)
        positions = order.positions_as_pytorch(key, axis, SORT, x.shape[axis])
    if positions is None:
        positions = order.sorted_positions(x, axis, descending)
    return order.take(x, positions, axis), positions


@op(aten.sort.default, kind=Kind.SORT, work=_comparisons)
def sort(x: Array, dim: int = -1, descending: bool = False, *, out: TupleType) -> tuple[Array, Array]:
    return _sorted(x, dim, descending, stable=False)


@op(aten.sort.stable, kind=Kind.SORT, work=_comparisons)
def sort_stable(
    x: Array, dim: int = -1, descending: bool = False, *, stable: bool | None = None, out: TupleType
) -> tuple[Array, Array]:
    return _sorted(x, dim, descending, bool(stable))


def _by_partial_selection(x: Array, k: int, largest: bool) -> Array:
    """int64 positions of the ``k`` first in order along the last axis, by XLA's partial sort of float32.

    That sort compares bit patterns, so zeros of either sign and all NaN are made alike first; the narrow types that
    come here are exact in float32.
    """
    wide = x.astype(np.float32)
    zero = order.sort_key(wide) == 0
    missing = np.float32(np.nan) if largest else -np.float32(np.nan)
    wide = jnp.where(zero, np.float32(0), wide if largest else -wide)
    wide = jnp.where(wide != wide, missing, wide)
    return lax.top_k(wide, k)[1].astype(np.int64)


@op(aten.topk.default, kind=Kind.SORT, work=_comparisons)
def topk(
    x: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True, *, out: TupleType
) -> tuple[Array, Array]:
    values, indices = out.elements
    if x.ndim == 0 or values.numel == 0:
        return jnp.broadcast_to(x, values.shape) if values.numel else jnp.zeros(values.shape, x.dtype), jnp.zeros(
            indices.shape, jnp.int64
        )
    axis = dim % x.ndim
    positions = order.positions_as_pytorch(order.ascending_key(x, largest), axis, TOPK if sorted else TOPK_UNSORTED, k)
    if positions is not None:
        return order.take(x, positions, axis), positions
    if dtype_of(x).itemsize < 4 or dtype_of(x) is DType.F32:
        moved = jnp.moveaxis(x, axis, -1)
        positions = jnp.moveaxis(_by_partial_selection(moved, k, largest), -1, axis)
    else:
        positions = lax.slice_in_dim(order.sorted_positions(x, axis, largest), 0, k, axis=axis)
    return order.take(x, positions, axis), positions


def _at_rank(x: Array, rank: Any, axis: int, positions: Array, out: TupleType) -> tuple[Array, Array]:
    """Element and position at a rank (a number, or an array with the axis of size one) of the sorted order."""
    values, indices = out.elements
    rank = jnp.broadcast_to(jnp.asarray(rank, jnp.int64), [1 if d == axis else s for d, s in enumerate(x.shape)])
    found = order.take(positions, rank, axis)
    return order.take(x, found, axis).reshape(values.shape), found.reshape(indices.shape)


def _nothing(x: Array, out: TupleType) -> tuple[Array, Array]:
    values, indices = out.elements
    found = x.reshape(values.shape) if x.ndim == 0 else jnp.zeros(values.shape, x.dtype)
    return found, jnp.zeros(indices.shape, jnp.int64)


@op(aten.kthvalue.default, kind=Kind.SORT, work=_comparisons)
def kthvalue(x: Array, k: int, dim: int = -1, keepdim: bool = False, *, out: TupleType) -> tuple[Array, Array]:
    if x.ndim == 0 or x.size == 0:
        return _nothing(x, out)
    axis = dim % x.ndim
    found = order.positions_as_pytorch(order.sort_key(x), axis, KTHVALUE, 1, k - 1)
    if found is None:
        return _at_rank(x, k - 1, axis, order.sorted_positions(x, axis, False), out)
    values, indices = out.elements
    return order.take(x, found, axis).reshape(values.shape), found.reshape(indices.shape)


def _median(x: Array, axis: int, skip_nan: bool, out: TupleType) -> tuple[Array, Array]:
    """The lower median; the first NaN where there is one, unless NaN are left out."""
    positions = order.sorted_positions(x, axis, False)
    count = x.shape[axis]
    rank: Any = (count - 1) // 2
    if is_float(x):
        missing = jnp.sum((x != x).astype(np.int64), axis=axis, keepdims=True)
        among_rest = jnp.maximum(count - missing - 1, 0) // 2
        rank = among_rest if skip_nan else jnp.where(missing > 0, count - missing, rank)
    return _at_rank(x, rank, axis, positions, out)


@op(aten.median.dim, kind=Kind.SORT, work=_comparisons)
def median_dim(x: Array, dim: int, keepdim: bool = False, *, out: TupleType) -> tuple[Array, Array]:
    return _nothing(x, out) if x.ndim == 0 or x.size == 0 else _median(x, dim % x.ndim, False, out)


@op(aten.nanmedian.dim, kind=Kind.SORT, work=_comparisons)
def nanmedian_dim(x: Array, dim: int, keepdim: bool = False, *, out: TupleType) -> tuple[Array, Array]:
    return _nothing(x, out) if x.ndim == 0 or x.size == 0 else _median(x, dim % x.ndim, True, out)


def _median_of_all(x: Array, skip_nan: bool, out: TensorType) -> Array:
    if x.size == 0:
        lost = np.nan if out.dtype.is_floating else np.iinfo(dtypes.to_numpy(out.dtype)).min
        return jnp.asarray(lost, dtypes.to_numpy(out.dtype))
    pair = TupleType((out, TensorType(out.shape, DType.I64)))
    return _median(x.reshape(-1), 0, skip_nan, pair)[0]


@op(aten.median.default, kind=Kind.SORT, work=_comparisons)
def median(x: Array, *, out: TensorType) -> Array:
    return _median_of_all(x, False, out)


@op(aten.nanmedian.default, kind=Kind.SORT, work=_comparisons)
def nanmedian(x: Array, *, out: TensorType) -> Array:
    return _median_of_all(x, True, out)


@op(aten.mode.default, kind=Kind.SORT, work=_comparisons)
def mode(x: Array, dim: int = -1, keepdim: bool = False, *, out: TupleType) -> tuple[Array, Array]:
    """The most frequent element, of those the smallest, and the position of the last of them in sorted order."""
    if x.ndim == 0 or x.size == 0:
        return _nothing(x, out)
    axis = dim % x.ndim
    # ATen's own sort here, unlike its others, has no place for NaN.
    key = widen(x) if is_float(x) else order.sort_key(x)
    positions = order.positions_as_pytorch(key, axis, SORT, x.shape[axis])
    if positions is None:
        positions = order.sorted_positions(x, axis, False)
    values = order.take(x, positions, axis)

    def step(carry: tuple[Array, Array], row: Array) -> tuple[tuple[Array, Array], Array]:
        previous, length = carry
        length = jnp.where(row == previous, length + 1, 1)
        return (row, length), length

    lengths = along(step, lambda row: (row, jnp.zeros(row.shape, jnp.int64)), values, axis)
    rank = jnp.expand_dims(order.position_of_largest(lengths, axis), axis)
    return _at_rank(x, rank, axis, positions, out)


def _search(sequence: Array, values: Array, right: bool) -> Array:
    """ATen's binary search, all values at once: the same comparisons, so the same answer for NaN and unsorted input."""
    size = sequence.shape[-1]
    batch = sequence.shape[:-1]
    per_row = values.reshape(*batch, -1) if batch else values.reshape(-1)
    number = np.int32 if size < order.INT32_MAX else np.int64

    def halve(_: Any, state: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = state
        middle = low + (high - low) // 2
        found = order.take(sequence, jnp.minimum(middle, size - 1), len(batch))
        goes_right = ~(found > per_row) if right else ~(found >= per_row)
        searching = low < high
        low = jnp.where(searching & goes_right, middle + 1, low)
        return low, jnp.where(searching & ~goes_right, middle, high)

    bounds = jnp.zeros(per_row.shape, number), jnp.full(per_row.shape, size, number)
    return lax.fori_loop(0, size.bit_length(), halve, bounds)[0].reshape(values.shape)


def _searching(call: Call) -> Work:
    size = max((t.shape[-1] for t in call.operand_types if t.shape), default=1)
    return Work(flops=call.result_types[0].numel * max(1, size.bit_length()))


@op(aten.searchsorted.Tensor, aten.searchsorted.Scalar, kind=Kind.SORT, work=_searching)
def searchsorted(
    sequence: Array,
    values: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Array | None = None,
    out: TensorType,
) -> Array:
    if sorter is not None:
        sequence = order.take(sequence, sorter, sequence.ndim - 1)
    common = result_dtype(sequence, values)
    values = cast(values, common) if is_array(values) else jnp.asarray(values, dtypes.to_numpy(common))
    if sequence.size == 0 or values.size == 0:
        return jnp.zeros(out.shape, dtypes.to_numpy(out.dtype))
    # Wide: XLA moves halves inside of a loop by an instruction that may take subnormals for zero.
    found = _search(widen(cast(sequence, common)), widen(values), right or side == "right")
    return cast(found, out.dtype).reshape(out.shape)


@op(aten.bucketize.Tensor, aten.bucketize.Scalar, kind=Kind.SORT, work=_searching)
def bucketize(
    values: Any, boundaries: Array, *, out_int32: bool = False, right: bool = False, out: TensorType
) -> Array:
    return searchsorted(boundaries, values, right=right, out=out)
