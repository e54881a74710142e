"""Writing by index tensors. Equal indices are written in order, so the last one stays.

A bad index raises after the run. Half precisions that are summed or multiplied accumulate in float32, but where ATen
adds element by element into the result itself, as ``index_put`` does: there each sum is rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from neuron_compiler.ir.graph import DType, Value
from neuron_compiler.lowering import checks
from neuron_compiler.lowering.addressing import Rows, elements_of, from_end, in_range, rows_of, slices_of
from neuron_compiler.lowering.numeric import Array, cast, constant, dtype_of, dtypes, is_array, widened
from neuron_compiler.lowering.ops.indexing import Indices, checked, mask_among_indices, places_of_mask
from neuron_compiler.lowering.order import take
from neuron_compiler.opdef import Call, Kind, op, per_input_element

aten = torch.ops.aten


def combined(x: Array, rows: Rows, values: Array, how: str, rounding: bool = False) -> Array:
    """``rows.write`` in the type that sums and products accumulate in; of bools they are or and and.

    ``rounding`` rounds each sum to the array's own type.
    """
    own = dtype_of(x)
    wide = own if rounding else widened(own)
    if own is DType.BOOL:
        how = {"add": "max", "mul": "min"}.get(how, how)
    if how in ("add", "mul") and wide is not own:
        return cast(rows.write(cast(x, wide), cast(values, wide), how), own)
    return rows.write(x, values, how)


# --- advanced indexing ----------------------------------------------------------------------------


def _one_mask(call: Call) -> str | None:
    indices = call.op.operand(1)
    if not mask_among_indices(call) or not isinstance(indices, tuple):
        return None
    given = [item for item in indices if isinstance(item, Value)]
    return None if len(given) == 1 else "a mask among several indices"


def _put_by_mask(x: Array, dim: int, mask: Array, values: Array, accumulate: bool) -> Array:
    """A mask over the dimensions from ``dim`` on: no indices are made of it, so nothing depends on data."""
    mask = cast(mask, DType.BOOL)
    rest = x.shape[dim + mask.ndim :]
    shape = (*x.shape[:dim], *mask.shape, *(1,) * len(rest))
    selected = mask.reshape(*(1,) * dim, *mask.shape, *(1,) * len(rest))
    # ``values`` broadcasts to [..., number of True, *rest]; that number is known at run time only.
    padded = values.reshape(*(1,) * (dim + 1 + len(rest) - values.ndim), *values.shape)
    if padded.shape[dim] == 1:
        new = padded.reshape(*padded.shape[:dim], *(1,) * mask.ndim, *padded.shape[dim + 1 :])
    else:
        places, count = places_of_mask(mask)
        length = padded.shape[dim]
        message = f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to indexing result"
        checks.require(count == length, message, RuntimeError)
        flat = jnp.clip(places, 0, length - 1).reshape(*(1,) * dim, -1, *(1,) * len(rest))
        wanted = (*padded.shape[:dim], mask.size, *padded.shape[dim + 1 :])
        new = take(padded, jnp.broadcast_to(flat, wanted), dim)
        new = new.reshape(*padded.shape[:dim], *mask.shape, *padded.shape[dim + 1 :])
    new = jnp.broadcast_to(new, x.shape)
    if accumulate:
        new = (x | new) if dtype_of(x) is DType.BOOL else x + new
    return jnp.where(jnp.broadcast_to(selected, shape), new, x)


def _put(x: Array, indices: Indices, values: Array, accumulate: bool) -> Array:
    values = cast(values, dtype_of(x))
    rows = rows_of(x.shape, indices)
    return combined(x, rows, jnp.broadcast_to(values, rows.shape), "add" if accumulate else "set", rounding=True)


@op(aten.index_put.default, kind=Kind.INDEXING, when=_one_mask)
def index_put(x: Array, indices: Indices, values: Array, accumulate: bool = False) -> Array:
    given = [dim for dim, item in enumerate(indices) if item is not None]
    if not given:
        new = jnp.broadcast_to(cast(values, dtype_of(x)), x.shape)
        return x + new if accumulate else new
    if indices[given[0]].dtype in (np.bool_, np.uint8):
        return _put_by_mask(x, given[0], indices[given[0]], cast(values, dtype_of(x)), accumulate)
    return _put(x, checked(x.shape, indices), values, accumulate)


def _no_mask(call: Call) -> str | None:
    return "a mask as index" if mask_among_indices(call) else None


@op(aten._unsafe_index_put.default, kind=Kind.INDEXING, when=_no_mask)
def unsafe_index_put(x: Array, indices: Indices, values: Array, accumulate: bool = False) -> Array:
    return _put(
        x, [i if i is None else from_end(i, s) for i, s in zip(indices, x.shape, strict=False)], values, accumulate
    )


@op(aten.put.default, kind=Kind.INDEXING)
def put(x: Array, index: Array, source: Array, accumulate: bool = False) -> Array:
    in_range(index, x.size, f"out of range: tried to access an index on a tensor of {x.size} elements.", low=-x.size)
    rows = Rows(from_end(index, x.size).reshape(-1), ())
    return combined(x, rows, source.reshape(-1), "add" if accumulate else "set", rounding=True)


# --- slices along one dimension -------------------------------------------------------------------


def _slices(x: Array, dim: int, index: Array, message: str, error: type[Exception], low: int = 0) -> tuple[Array, Rows]:
    """The array with at least one dimension, and its slices at ``index``."""
    array = x.reshape(1) if x.ndim == 0 else x
    axis = dim % array.ndim
    size = array.shape[axis]
    in_range(index, size, message.format(axis=axis, size=size), error, low=-size if low else 0)
    index = from_end(index, size) if low else index
    return array, slices_of(array.shape, axis, index.reshape(-1))


@op(aten.index_add.default, kind=Kind.INDEXING, work=per_input_element())
def index_add(x: Array, dim: int, index: Array, source: Array, *, alpha: Any = 1) -> Array:
    array, rows = _slices(x, dim, index, "index is out of bounds for dimension {axis} with size {size}", RuntimeError)
    wide = widened(dtype_of(x))
    if dtype_of(x) is DType.BOOL:
        return combined(array, rows, source.reshape(rows.shape) & bool(alpha), "add").reshape(x.shape)
    values = cast(source, wide) if alpha == 1 else cast(source, wide) * constant(alpha, wide)
    if x.ndim <= 1:
        return combined(array, rows, cast(values, dtype_of(x)).reshape(rows.shape), "add", rounding=True).reshape(
            x.shape
        )
    return cast(rows.write(cast(array, wide), values.reshape(rows.shape), "add"), dtype_of(x)).reshape(x.shape)


@op(aten.index_copy.default, kind=Kind.INDEXING)
def index_copy(x: Array, dim: int, index: Array, source: Array) -> Array:
    message = "index_copy_(): index is out of bounds for dimension {axis} with size {size}"
    array, rows = _slices(x, dim, index, message, IndexError)
    return rows.write(array, source.reshape(rows.shape)).reshape(x.shape)


@op(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor, kind=Kind.INDEXING)
def index_fill(x: Array, dim: int, index: Array, value: Any) -> Array:
    message = "index is out of bounds for dimension {axis} with size {size}"
    array, rows = _slices(x, dim, index, message, IndexError, low=-1)
    return rows.write(array, jnp.broadcast_to(cast(value, dtype_of(x)), rows.shape)).reshape(x.shape)


@op(aten.index_reduce.default, kind=Kind.INDEXING, work=per_input_element())
def index_reduce(x: Array, dim: int, index: Array, source: Array, reduce: str, *, include_self: bool = True) -> Array:
    array, rows = _slices(x, dim, index, "index out of range in self", IndexError)
    return _reduced(array, rows, source.reshape(rows.shape), reduce, include_self).reshape(x.shape)


# --- elements along one dimension -----------------------------------------------------------------


def _elements(x: Array, dim: int, index: Array, source: Any) -> tuple[Array, int, Array, Array]:
    """Array, axis, checked index and source of its shape, all with at least one dimension."""
    array, index = (x.reshape(1) if x.ndim == 0 else x), (index.reshape(1) if index.ndim == 0 else index)
    axis = dim % array.ndim
    size = array.shape[axis]
    in_range(index, size, f"index is out of bounds for dimension {axis} with size {size}", RuntimeError)
    if is_array(source):
        source = source.reshape(1) if source.ndim == 0 else source
        source = lax.slice(source, (0,) * index.ndim, index.shape) if index.size else source
    else:
        source = jnp.broadcast_to(cast(source, dtype_of(x)), index.shape)
    return array, axis, index, source


def _one_each(array: Array, axis: int, index: Array) -> bool:
    """Whether each line along the axis has one index, so that comparing places is all there is to do."""
    return index.size > 0 and index.shape == tuple(1 if d == axis else s for d, s in enumerate(array.shape))


def _scatter(x: Array, dim: int, index: Array, source: Any, how: str) -> Array:
    array, axis, index, source = _elements(x, dim, index, source)
    if index.size == 0:
        return x
    if how in ("set", "add") and _one_each(array, axis, index):
        here = lax.broadcasted_iota(index.dtype, array.shape, axis) == index
        new = jnp.broadcast_to(source, array.shape)
        if how == "add":
            new = (array | new) if dtype_of(x) is DType.BOOL else array + new
        return jnp.where(here, new, array).reshape(x.shape)
    return combined(array, elements_of(array.shape, axis, index), source, how).reshape(x.shape)


@op(aten.scatter.src, aten.scatter.value, kind=Kind.INDEXING)
def scatter(x: Array, dim: int, index: Array, source: Any) -> Array:
    return _scatter(x, dim, index, source, "set")


@op(aten.scatter_add.default, kind=Kind.INDEXING, work=per_input_element())
def scatter_add(x: Array, dim: int, index: Array, source: Array) -> Array:
    return _scatter(x, dim, index, source, "add")


@op(aten.scatter.reduce, aten.scatter.value_reduce, kind=Kind.INDEXING, work=per_input_element())
def scatter_with(x: Array, dim: int, index: Array, source: Any, *, reduce: str) -> Array:
    return _scatter(x, dim, index, source, {"add": "add", "multiply": "mul"}[reduce])


@op(aten.scatter_reduce.two, kind=Kind.INDEXING, work=per_input_element())
def scatter_reduce(x: Array, dim: int, index: Array, source: Array, reduce: str, *, include_self: bool = True) -> Array:
    array, axis, index, source = _elements(x, dim, index, source)
    if index.size == 0:
        return x
    return _reduced(array, elements_of(array.shape, axis, index), source, reduce, include_self).reshape(x.shape)


# --- reductions -----------------------------------------------------------------------------------


def _reduced(x: Array, rows: Rows, values: Array, reduce: str, include_self: bool) -> Array:
    """Elements combined with all that are written to them; without ``include_self`` with these alone."""
    if x.size == 0 or rows.numbers.size == 0:
        return x
    own = dtype_of(x)
    how, neutral = _COMBINATIONS[reduce]
    start = x if include_self else rows.write(x, jnp.broadcast_to(cast(neutral(own), own), rows.shape))
    if reduce != "mean":
        return combined(start, rows, values, how)
    wide = widened(own)
    total = rows.write(cast(start, wide), cast(values, wide), "add")
    number = np.int64
    counts = jnp.full(x.shape, 1 if include_self else 0, number)
    counts = jnp.maximum(rows.write(counts, jnp.ones(rows.shape, number), "add"), 1)
    if wide.is_integer:
        return cast(jnp.floor_divide(total, cast(counts, wide)), own)
    return cast(total / cast(counts, wide), own)


def _lowest(dtype: DType) -> Any:
    if dtype is DType.BOOL:
        return False
    return -np.inf if dtype.is_floating else int(np.iinfo(dtypes.to_numpy(dtype)).min)


def _highest(dtype: DType) -> Any:
    if dtype is DType.BOOL:
        return True
    return np.inf if dtype.is_floating else int(np.iinfo(dtypes.to_numpy(dtype)).max)


_COMBINATIONS: dict[str, tuple[str, Callable[[DType], Any]]] = {
    "sum": ("add", lambda dtype: 0),
    "mean": ("add", lambda dtype: 0),
    "prod": ("mul", lambda dtype: 1),
    "amax": ("max", _lowest),
    "amin": ("min", _highest),
}
