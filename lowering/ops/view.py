"""Views: the same elements under other positions. Sizes come from the recorded type, so ``-1`` needs no inference."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from neuron_compiler import dtypes
from neuron_compiler.ir.graph import TensorType, TupleType
from neuron_compiler.lowering.numeric import Array
from neuron_compiler.opdef import Kind, op

aten = torch.ops.aten


def axis(dim: int, rank: int) -> int:
    """PyTorch's dimension, where -1 is the last and a 0-dim tensor has one."""
    return dim % rank if rank else 0


@op(
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten._reshape_alias.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.unsqueeze.default,
    aten.flatten.using_ints,
    aten.view_copy.default,
    aten._reshape_copy.default,
    aten._reshape_alias_copy.default,
    kind=Kind.VIEW,
)
def reshape(x: Array, *_sizes: Any, out: TensorType) -> Array:
    return x.reshape(out.shape)


@op(
    aten.alias.default,
    aten.detach.default,
    aten.clone.default,
    aten.contiguous.default,
    aten.detach_copy.default,
    aten.lift.default,
    aten.lift_fresh.default,
    aten.lift_fresh_copy.default,
    kind=Kind.VIEW,
)
def alias(x: Array) -> Array:
    return x


@op(aten.permute.default, aten.permute_copy.default, kind=Kind.VIEW)
def permute(x: Array, dims: tuple[int, ...]) -> Array:
    return jnp.transpose(x, tuple(axis(d, x.ndim) for d in dims))


@op(aten.transpose.int, kind=Kind.VIEW)
def transpose(x: Array, dim0: int, dim1: int) -> Array:
    return x if x.ndim == 0 else jnp.swapaxes(x, dim0, dim1)


@op(aten.t.default, kind=Kind.VIEW)
def t(x: Array) -> Array:
    return x.T


@op(aten.expand.default, kind=Kind.VIEW)
def expand(x: Array, size: tuple[int, ...], implicit: bool = False, *, out: TensorType) -> Array:
    return jnp.broadcast_to(x, out.shape)


def bounds(start: int | None, end: int | None, extent: int) -> tuple[int, int]:
    """Start and end of a slice, clamped to the extent as ATen clamps them."""
    first = 0 if start is None else start + extent if start < 0 else start
    last = extent if end is None else end + extent if end < 0 else end
    first = min(max(first, 0), extent)
    return first, min(max(last, first), extent)


@op(aten.slice.Tensor, aten.slice_copy.Tensor, kind=Kind.VIEW)
def slice_(x: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    first, last = bounds(start, end, x.shape[dim])
    return lax.slice_in_dim(x, first, last, step, axis(dim, x.ndim))


@op(aten.narrow.default, aten.narrow_copy.default, kind=Kind.VIEW)
def narrow(x: Array, dim: int, start: int, length: int) -> Array:
    first = start % x.shape[dim] if start < 0 else start
    return lax.slice_in_dim(x, first, first + length, 1, axis(dim, x.ndim))


@op(aten.select.int, aten.select_copy.int, kind=Kind.VIEW)
def select(x: Array, dim: int, index: int) -> Array:
    place = axis(dim, x.ndim)
    return lax.index_in_dim(x, index % x.shape[place], place, keepdims=False)


def _pieces(x: Array, dim: int, extents: tuple[int, ...]) -> tuple[Array, ...]:
    place = axis(dim, x.ndim)
    ends = np.cumsum(extents).tolist()
    return tuple(lax.slice_in_dim(x, end - n, end, 1, place) for n, end in zip(extents, ends, strict=True))


@op(
    aten.split.Tensor,
    aten.split_copy.Tensor,
    aten.split_with_sizes.default,
    aten.split_with_sizes_copy.default,
    aten.unsafe_split.Tensor,
    aten.unsafe_split_with_sizes.default,
    aten.chunk.default,
    kind=Kind.VIEW,
)
def split(x: Array, sizes: Any, dim: int = 0, *, out: TupleType) -> tuple[Array, ...]:
    extents = tuple(part.shape[axis(dim, x.ndim)] for part in out.elements if part is not None)
    return _pieces(x, dim, extents)


@op(aten.unbind.int, aten.unbind_copy.int, kind=Kind.VIEW)
def unbind(x: Array, dim: int = 0) -> tuple[Array, ...]:
    place = axis(dim, x.ndim)
    return tuple(lax.index_in_dim(x, i, place, keepdims=False) for i in range(x.shape[place]))


@op(aten.diagonal.default, kind=Kind.VIEW)
def diagonal(x: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    return jnp.diagonal(x, offset, dim1, dim2)


@op(aten.unfold.default, kind=Kind.VIEW)
def unfold(x: Array, dimension: int, size: int, step: int, *, out: TensorType) -> Array:
    """Windows of a dimension; each becomes a row of a new last dimension."""
    if x.ndim == 0:
        return x.reshape(out.shape)
    place = axis(dimension, x.ndim)
    starts = np.arange(out.shape[place]) * step
    windows = jnp.take(x, jnp.asarray(starts[:, None] + np.arange(size)), axis=place, mode="clip")
    return jnp.moveaxis(windows, place + 1, -1)


@op(aten.as_strided.default, kind=Kind.VIEW)
def as_strided(
    x: Array,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    storage_offset: int | None = None,
    *,
    input_stride: tuple[int, ...] | None = None,
) -> Array:
    """Any addressing of the operand's memory, which lies without gaps in the order of ``input_stride``."""
    order = range(x.ndim) if input_stride is None else sorted(range(x.ndim), key=lambda d: (-input_stride[d], d))
    flat = jnp.transpose(x, tuple(order)).reshape(-1)
    index = np.full((), storage_offset or 0)
    for extent, step in zip(size, stride, strict=True):
        index = index[..., None] + np.arange(extent) * step
    return flat[jnp.asarray(index)] if index.size else jnp.zeros(size, x.dtype)


@op(aten.view.dtype, aten.view_copy.dtype, kind=Kind.VIEW)
def view_dtype(x: Array, dtype: Any, *, out: TensorType) -> Array:
    """The same bytes as another element type; the last dimension grows or shrinks with the size of an element."""
    target = dtypes.to_numpy(out.dtype)
    if x.dtype == np.bool_:
        x = x.astype(np.uint8)
    ratio = target.itemsize // x.dtype.itemsize
    if ratio > 1:
        x = x.reshape(*x.shape[:-1], x.shape[-1] // ratio, ratio)
    if target == np.bool_:
        return (lax.bitcast_convert_type(x, np.uint8) != 0).reshape(out.shape)
    return lax.bitcast_convert_type(x, target).reshape(out.shape)
