"""Reading by index tensors. A bad index raises after the run, in ATen's words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from neuron_compiler.ir.graph import DType, TensorType, Value
from neuron_compiler.lowering import checks
from neuron_compiler.lowering.addressing import Rows, elements_of, from_end, in_range, rows_of, slices_of
from neuron_compiler.lowering.numeric import Array
from neuron_compiler.lowering.ops.scan import cumsum
from neuron_compiler.lowering.order import take as take_along
from neuron_compiler.opdef import Call, Kind, op

aten = torch.ops.aten

Indices = Sequence[Array | None]


def checked(shape: tuple[int, ...], indices: Indices) -> list[Array | None]:
    """The indices of advanced indexing, required to be in range, counted from the start."""
    found: list[Array | None] = []
    for dim, index in enumerate(indices):
        if index is not None:
            size = shape[dim]
            message = f"index is out of bounds for dimension {dim} with size {size}"
            in_range(index, size, message, low=-size)
            index = from_end(index, size)
        found.append(index)
    return found


def mask_among_indices(call: Call, place: int = 1) -> bool:
    """Whether an index is a mask (bool, or the old uint8), so that the number of selected rows depends on data."""
    operand = call.op.operand(place)
    given = operand if isinstance(operand, tuple) else (operand,)
    types = [call.types[item.name] for item in given if isinstance(item, Value)]
    return any(isinstance(t, TensorType) and t.dtype in (DType.BOOL, DType.U8) for t in types)


def _static(call: Call) -> str | None:
    return "a mask as index: the result's shape depends on data" if mask_among_indices(call) else None


def _read(x: Array, indices: Indices, out: TensorType) -> Array:
    if all(index is None for index in indices):
        return x
    return rows_of(x.shape, indices).read(x).reshape(out.shape)


@op(aten.index.Tensor, kind=Kind.INDEXING, when=_static)
def index(x: Array, indices: Indices, *, out: TensorType) -> Array:
    return _read(x, checked(x.shape, indices), out)


@op(aten._unsafe_index.Tensor, kind=Kind.INDEXING, when=_static)
def unsafe_index(x: Array, indices: Indices, *, out: TensorType) -> Array:
    """Without the check; PyTorch's own decompositions make it where indices are known to be good."""
    return _read(x, [i if i is None else from_end(i, s) for i, s in zip(indices, x.shape, strict=False)], out)


@op(aten.index_select.default, kind=Kind.INDEXING)
def index_select(x: Array, dim: int, index: Array, *, out: TensorType) -> Array:
    if x.ndim == 0:
        in_range(index, 1, "index out of range in self")
        return jnp.broadcast_to(x, out.shape)
    axis = dim % x.ndim
    if axis == 1:  # a kernel of its own in ATen, with words and a type of its own
        message = f"INDICES element is out of DATA bounds, axis_dim={x.shape[axis]}"
        in_range(index, x.shape[axis], message, RuntimeError)
    else:
        in_range(index, x.shape[axis], "index out of range in self")
    return slices_of(x.shape, axis, index.reshape(-1)).read(x).reshape(out.shape)


@op(aten.gather.default, kind=Kind.INDEXING)
def gather(x: Array, dim: int, index: Array, *, sparse_grad: bool = False, out: TensorType) -> Array:
    if x.ndim == 0 or index.ndim == 0:
        x, index, axis = x.reshape(-1), index.reshape(-1), 0
    else:
        axis = dim % x.ndim
    size = x.shape[axis]
    in_range(index, size, f"index is out of bounds for dimension {axis} with size {size}", RuntimeError)
    if out.numel == 0:
        return jnp.zeros(out.shape, x.dtype)
    return elements_of(x.shape, axis, index).read(x).reshape(out.shape)


@op(aten.take.default, kind=Kind.INDEXING)
def take(x: Array, index: Array, *, out: TensorType) -> Array:
    in_range(index, x.size, f"out of range: tried to access an index on a tensor of {x.size} elements.", low=-x.size)
    return Rows(from_end(index, x.size), ()).read(x)


def _of_known_size(call: Call) -> str | None:
    return None if call.op.attr("output_size") is not None else "no output_size: the result's shape depends on data"


@op(aten.repeat_interleave.Tensor, kind=Kind.INDEXING, when=_of_known_size)
def repeat_interleave(repeats: Array, *, output_size: int | None = None, out: TensorType) -> Array:
    """``i`` as often as ``repeats[i]`` says: for each place, how many running totals end at or before it."""
    if repeats.size == 0:
        return jnp.zeros(out.shape, repeats.dtype)
    checks.require(repeats >= 0, "repeats can not be negative", RuntimeError)
    totals = cumsum(repeats, 0, out=TensorType(tuple(repeats.shape), DType.I64))
    checks.require(totals[-1] == output_size, "allocated size does not match required size", RuntimeError)
    starts = jnp.zeros(int(output_size or 0) + 1, jnp.int64)
    ends = starts.at[totals[:-1]].add(1, mode="drop", wrap_negative_indices=False)[:-1]
    counted = cumsum(ends, 0, out=TensorType(tuple(ends.shape), DType.I64))
    return counted.astype(repeats.dtype)


def places_of_mask(mask: Array) -> tuple[Array, Array]:
    """For each element of a mask (row-major), how many True come before it; and how many there are."""
    flat = mask.reshape(-1)
    totals = cumsum(flat, 0, out=TensorType(tuple(flat.shape), DType.I64))
    return (totals - 1).reshape(mask.shape), totals[-1]


@op(aten.masked_scatter.default, kind=Kind.INDEXING)
def masked_scatter(x: Array, mask: Array, source: Array, *, out: TensorType) -> Array:
    """The n-th True place takes the n-th element of the source."""
    shape = out.shape
    if out.numel == 0:
        return jnp.broadcast_to(x, shape)
    mask = jnp.broadcast_to(mask, shape)
    places, count = places_of_mask(mask)
    checks.require(count <= source.size, "Number of elements of source < number of ones in mask", RuntimeError)
    if source.size == 0:
        return jnp.broadcast_to(x, shape)
    taken = take_along(source.reshape(-1), jnp.clip(places, 0, source.size - 1).reshape(-1), 0).reshape(shape)
    return jnp.where(mask, taken, jnp.broadcast_to(x, shape))


@op(aten.masked_scatter_backward.default, kind=Kind.INDEXING)
def masked_scatter_backward(grad: Array, mask: Array, sizes: tuple[int, ...], *, out: TensorType) -> Array:
    """What was written to the n-th True place goes back to element n; elements not used get zero."""
    source = jnp.zeros(out.numel, grad.dtype)
    mask = jnp.broadcast_to(mask, grad.shape)
    if grad.size == 0 or out.numel == 0:
        return source.reshape(out.shape)
    places, _ = places_of_mask(mask)
    places = jnp.where(mask, places, out.numel)
    return Rows(places.reshape(-1), ()).write(source, grad.reshape(-1)).reshape(out.shape)


@op(aten.nonzero_static.default, kind=Kind.INDEXING)
def nonzero_static(x: Array, *, size: int, fill_value: int = -1, out: TensorType) -> Array:
    """Coordinates of the first ``size`` non-zero elements, one a row; rows left over are filled."""
    filled = jnp.full(out.shape, fill_value, jnp.int64)
    if filled.size == 0 or x.size == 0:
        return filled
    mask = x != jnp.zeros((), x.dtype)
    places, _ = places_of_mask(mask)
    places = jnp.where(mask, places, size).reshape(-1)
    coordinates: list[Any] = [lax.broadcasted_iota(np.int64, x.shape, dim).reshape(-1) for dim in range(x.ndim)]
    return Rows(places, (x.ndim,)).write(filled, jnp.stack(coordinates, 1))
