"""Ops that put elements together anew: concatenation, repetition, padding, order along a dimension."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import torch

from neuron_compiler.ir.graph import TensorType
from neuron_compiler.lowering.numeric import Array, cast, constant, dtype_of
from neuron_compiler.lowering.ops.view import axis, bounds
from neuron_compiler.opdef import Kind, no_work, op

aten = torch.ops.aten


@op(aten.cat.default, kind=Kind.OTHER, work=no_work)
def cat(tensors: tuple[Array, ...], dim: int = 0, *, out: TensorType) -> Array:
    """Operands of shape (0,) are skipped, whatever the others' rank: ATen's legacy."""
    parts = [cast(x, out.dtype) for x in tensors if x.shape != (0,) or len(out.shape) == 1]
    return jnp.concatenate(parts, axis(dim, len(out.shape))) if parts else jnp.zeros(out.shape, tensors[0].dtype)


@op(aten.stack.default, kind=Kind.OTHER, work=no_work)
def stack(tensors: tuple[Array, ...], dim: int = 0, *, out: TensorType) -> Array:
    return jnp.stack([cast(x, out.dtype) for x in tensors], axis(dim, len(out.shape)))


@op(aten.repeat.default, aten.tile.default, kind=Kind.OTHER, work=no_work)
def repeat(x: Array, repeats: tuple[int, ...], *, out: TensorType) -> Array:
    return jnp.tile(x, repeats).reshape(out.shape)


@op(aten.flip.default, kind=Kind.OTHER, work=no_work)
def flip(x: Array, dims: tuple[int, ...]) -> Array:
    return jnp.flip(x, tuple(axis(d, x.ndim) for d in dims)) if x.ndim else x


@op(aten.roll.default, kind=Kind.OTHER, work=no_work)
def roll(x: Array, shifts: tuple[int, ...], dims: tuple[int, ...] = ()) -> Array:
    if not dims:
        return jnp.roll(x.reshape(-1), shifts[0]).reshape(x.shape)
    return jnp.roll(x, shifts, tuple(axis(d, x.ndim) for d in dims)) if x.size else x


@op(aten.constant_pad_nd.default, kind=Kind.OTHER, work=no_work)
def constant_pad_nd(x: Array, pad: tuple[int, ...], value: Any = 0, *, out: TensorType) -> Array:
    """Pairs of (before, after) from the last dimension on; a negative one cuts off."""
    pairs = [(0, 0)] * (x.ndim - len(pad) // 2) + [(pad[i], pad[i + 1]) for i in range(len(pad) - 2, -2, -2)]
    for d, (before, after) in enumerate(pairs):
        if before < 0 or after < 0:
            index = [slice(None)] * x.ndim
            index[d] = slice(max(-before, 0), x.shape[d] - max(-after, 0))
            x = x[tuple(index)]
    grown = [(max(before, 0), max(after, 0)) for before, after in pairs]
    return jnp.pad(x, grown, constant_values=constant(value, dtype_of(x)))


@op(aten.tril.default, kind=Kind.ELEMENTWISE, work=no_work)
def tril(x: Array, diagonal: int = 0) -> Array:
    return jnp.tril(x, diagonal)


@op(aten.triu.default, kind=Kind.ELEMENTWISE, work=no_work)
def triu(x: Array, diagonal: int = 0) -> Array:
    return jnp.triu(x, diagonal)


@op(aten.slice_scatter.default, kind=Kind.INDEXING)
def slice_scatter(
    x: Array, source: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Array:
    place = axis(dim, x.ndim)
    first, last = bounds(start, end, x.shape[place])
    index = (slice(None),) * place + (slice(first, last, step),)
    return x.at[index].set(cast(source, dtype_of(x)))


@op(aten.select_scatter.default, kind=Kind.INDEXING)
def select_scatter(x: Array, source: Array, dim: int, index: int) -> Array:
    place = axis(dim, x.ndim)
    return x.at[(slice(None),) * place + (index % x.shape[place],)].set(cast(source, dtype_of(x)))


@op(aten.diagonal_scatter.default, kind=Kind.INDEXING)
def diagonal_scatter(x: Array, source: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    places = jnp.diagonal(jnp.arange(x.size).reshape(x.shape), offset, dim1, dim2)
    return x.reshape(-1).at[places.reshape(-1)].set(cast(source, dtype_of(x)).reshape(-1)).reshape(x.shape)


@op(aten.pixel_shuffle.default, kind=Kind.OTHER, work=no_work)
def pixel_shuffle(x: Array, upscale_factor: int, *, out: TensorType) -> Array:
    r = upscale_factor
    *batch, c, h, w = x.shape
    n = len(batch)
    parts = x.reshape(*batch, c // (r * r), r, r, h, w)
    return jnp.transpose(parts, (*range(n), n, n + 3, n + 1, n + 4, n + 2)).reshape(out.shape)


@op(aten.pixel_unshuffle.default, kind=Kind.OTHER, work=no_work)
def pixel_unshuffle(x: Array, downscale_factor: int, *, out: TensorType) -> Array:
    r = downscale_factor
    *batch, c, h, w = x.shape
    n = len(batch)
    parts = x.reshape(*batch, c, h // r, r, w // r, r)
    return jnp.transpose(parts, (*range(n), n, n + 2, n + 4, n + 1, n + 3)).reshape(out.shape)
