"""Largest and smallest elements and where they are: NaN wins, the first of equals is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import torch

from neuron_compiler.ir.graph import TensorType, TupleType
from neuron_compiler.lowering import order
from neuron_compiler.lowering.numeric import Array, dims_of
from neuron_compiler.opdef import Kind, op, per_input_element

aten = torch.ops.aten


@op(aten.amax.default, kind=Kind.REDUCTION)
def amax(x: Array, dim: Any = (), keepdim: bool = False, *, out: TensorType) -> Array:
    return order.largest(x, dims_of(dim, x.ndim)).reshape(out.shape)


@op(aten.amin.default, kind=Kind.REDUCTION)
def amin(x: Array, dim: Any = (), keepdim: bool = False, *, out: TensorType) -> Array:
    return order.smallest(x, dims_of(dim, x.ndim)).reshape(out.shape)


@op(aten.max.default, kind=Kind.REDUCTION)
def max_(x: Array, *, out: TensorType) -> Array:
    return amax(x, out=out)


@op(aten.min.default, kind=Kind.REDUCTION)
def min_(x: Array, *, out: TensorType) -> Array:
    return amin(x, out=out)


@op(aten.aminmax.default, kind=Kind.REDUCTION, work=per_input_element(flops=2))
def aminmax(x: Array, *, dim: int | None = None, keepdim: bool = False, out: TupleType) -> tuple[Array, Array]:
    return amin(x, dim, out=out.elements[0]), amax(x, dim, out=out.elements[1])


def _with_position(x: Array, dim: int, out: TupleType, position: Callable[[Array, int], Array]) -> tuple[Array, Array]:
    """The value is taken from the position found, so that the two always agree (zeros of either sign, NaN payloads)."""
    values, indices = out.elements
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int64)
    if x.size == 0:
        return jnp.zeros(values.shape, x.dtype), jnp.zeros(indices.shape, jnp.int64)
    axis = dim % x.ndim
    found = jnp.expand_dims(position(x, axis), axis)
    return order.take(x, found, axis).reshape(values.shape), found.reshape(indices.shape)


@op(aten.max.dim, kind=Kind.REDUCTION)
def max_dim(x: Array, dim: int, keepdim: bool = False, *, out: TupleType) -> tuple[Array, Array]:
    return _with_position(x, dim, out, order.position_of_largest)


@op(aten.min.dim, kind=Kind.REDUCTION)
def min_dim(x: Array, dim: int, keepdim: bool = False, *, out: TupleType) -> tuple[Array, Array]:
    return _with_position(x, dim, out, order.position_of_smallest)


def _position(x: Array, dim: int | None, out: TensorType, position: Callable[[Array, int], Array]) -> Array:
    if x.ndim == 0 or x.size == 0:
        return jnp.zeros(out.shape, jnp.int64)
    found = position(x.reshape(-1), 0) if dim is None else position(x, dim % x.ndim)
    return found.reshape(out.shape)


@op(aten.argmax.default, kind=Kind.REDUCTION)
def argmax(x: Array, dim: int | None = None, keepdim: bool = False, *, out: TensorType) -> Array:
    return _position(x, dim, out, order.position_of_largest)


@op(aten.argmin.default, kind=Kind.REDUCTION)
def argmin(x: Array, dim: int | None = None, keepdim: bool = False, *, out: TensorType) -> Array:
    return _position(x, dim, out, order.position_of_smallest)
