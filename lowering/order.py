"""How elements compare: NaN is greatest and wins, equal elements keep their order.

In: jax arrays of any real element type. Out: extremes, their positions and stable sorted positions, as ATen's CPU
kernels give them. Rules that compare elements go through here.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuron_compiler import interop
from neuron_compiler.ir.graph import DType
from neuron_compiler.lowering.numeric import Array, dtype_of, is_float, widen

INT32_MAX = np.iinfo(np.int32).max


def maximum(x: Array, y: Array) -> Array:
    """Elementwise maximum of two arrays of one element type, NaN where either is; of equal zeros the second.

    Spelt as a selection because XLA's CPU library kernels (YNN), which take over sums together with the elementwise
    operations before them, compute ``stablehlo.maximum`` without regard to NaN: ``sum(maximum(x, 0))`` would lose it.
    """
    if not is_float(x):
        return jnp.maximum(x, y)
    return jnp.where((x > y) | (x != x), x, y)


def minimum(x: Array, y: Array) -> Array:
    """Elementwise minimum of two arrays of one element type, NaN where either is; see ``maximum``."""
    if not is_float(x):
        return jnp.minimum(x, y)
    return jnp.where((x < y) | (x != x), x, y)


def largest(x: Array, axes: tuple[int, ...]) -> Array:
    """Largest element over the axes, NaN where there is one, in the type of ``x``."""
    return _fold(x, axes, maximum, jnp.max, -np.inf)


def smallest(x: Array, axes: tuple[int, ...]) -> Array:
    """Smallest element over the axes, NaN where there is one, in the type of ``x``."""
    return _fold(x, axes, minimum, jnp.min, np.inf)


def _fold(
    x: Array, axes: tuple[int, ...], choose: Callable[..., Array], of_integers: Callable[..., Array], start: float
) -> Array:
    if not axes:
        return x
    if dtype_of(x) is DType.BOOL:
        return _fold(x.astype(np.int8), axes, choose, of_integers, start) != 0
    if not is_float(x):
        return of_integers(x, axis=axes)
    wide = widen(x)  # exact, and XLA's comparisons of half precisions are slow
    return lax.reduce(wide, np.array(start, wide.dtype), choose, axes).astype(x.dtype)


def largest_of_row(x: Array, axis: int) -> Array:
    """Largest element along the axis, dimension kept, NaN **ignored**: to shift exponents by.

    For use where a NaN reaches the result by another way; several times as fast as ``largest``.
    """
    return jnp.max(x, axis=axis, keepdims=True)


def position_of_largest(x: Array, axis: int) -> Array:
    """int64 position of the first largest element (the first NaN where there is one) along the axis, which goes."""
    return _position(x, axis, lax.argmax)


def position_of_smallest(x: Array, axis: int) -> Array:
    """int64 position of the first smallest element (the first NaN where there is one) along the axis, which goes."""
    return _position(x, axis, lax.argmin)


def _position(x: Array, axis: int, find: Callable[..., Array]) -> Array:
    x = x.astype(np.int8) if dtype_of(x) is DType.BOOL else widen(x)
    index = np.int32 if x.shape[axis] <= INT32_MAX else np.int64
    return find(x, axis, index).astype(np.int64)


def take(x: Array, positions: Array, axis: int) -> Array:
    """Elements at positions (known to be in range) along the axis; shapes agree elsewhere or are 1."""
    return jnp.take_along_axis(x, positions, axis, mode="promise_in_bounds")


def sort_key(x: Array) -> Array:
    """int32 or int64 keys in the order of the elements: NaN above infinity, both zeros alike.

    Made of the bits alone: XLA's comparisons of floats take subnormal numbers for zero.
    """
    dtype = dtype_of(x)
    if is_float(x):
        wide = widen(x)
        signed: type[np.signedinteger] = np.int64 if wide.dtype.itemsize == 8 else np.int32
        bits = lax.bitcast_convert_type(wide, signed)
        top = np.array(np.iinfo(signed).max, signed)
        magnitude = bits & top
        infinity = np.array(np.inf, wide.dtype).view(signed)
        return jnp.where(magnitude > infinity, top, jnp.where(bits < 0, -magnitude, magnitude))
    if dtype in (DType.U32, DType.U64):
        signed = np.int32 if dtype is DType.U32 else np.int64
        return lax.bitcast_convert_type(x, signed) ^ np.array(np.iinfo(signed).min, signed)
    return x if dtype is DType.I64 else x.astype(np.int32)


LOW_WORD = np.int64(0xFFFFFFFF)


def ascending_key(x: Array, descending: bool) -> Array:
    """``sort_key``, or keys in the reversed order, in which equal elements stay equal."""
    key = sort_key(x)
    return ~key if descending else key


def sorted_positions(x: Array, axis: int, descending: bool) -> Array:
    """int64 positions that sort ``x`` stably along the axis."""
    key = ascending_key(x, descending)
    if key.dtype != np.int64:
        return _positions_by(key.astype(np.int64), axis)
    # By the low half, taken without sign, and then, stably, by the high half.
    low = (key & LOW_WORD) - np.int64(2**31)
    first = _positions_by(low, axis)
    return take(first, _positions_by(take(key >> np.int64(32), first, axis), axis), axis)


def _positions_by(key: Array, axis: int) -> Array:
    """Stable sort by an int64 key that fits 32 bits.

    Key and place go into one word: XLA sorts one operand of plain integers four times as fast as pairs by a comparator.
    """
    word = (key << np.int64(32)) | lax.broadcasted_iota(np.int64, key.shape, axis)
    return lax.sort(word, dimension=axis, is_stable=False) & LOW_WORD


def positions_as_pytorch(key: Array, axis: int, call: str, count: int, *rank: int) -> Array | None:
    """int64 positions [count along the axis] of a key's smallest elements, equal ones in eager's order.

    Args:
        key: int32 or int64, not 0-dim, not empty; floats are compared by ``<``, which NaN confuses as it does ATen.
        call: one of ``order_of_equals.CALLS``.
        count: how many positions.
        rank: for ``KTHVALUE``, the rank from 0.

    None where this host has no such call: see host/order_of_equals.cpp.
    """
    if not interop.orders_as_pytorch(call):
        return None
    moved = jnp.moveaxis(key, axis, -1)
    result = jax.ShapeDtypeStruct((*moved.shape[:-1], count), np.dtype(np.int64))
    numbers = [jnp.asarray(r, jnp.int64) for r in rank]
    return jnp.moveaxis(jax.ffi.ffi_call(call, result)(moved, *numbers), -1, axis)
