"""Tensors from nothing: filled, counted. "Empty" ones are zeros, since their values are anybody's."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from neuron_compiler import dtypes
from neuron_compiler.ir.graph import DType, TensorType
from neuron_compiler.lowering.numeric import Array, cast
from neuron_compiler.opdef import Call, Kind, op

aten = torch.ops.aten


def _filled(value: Any, out: TensorType) -> Array:
    return jnp.broadcast_to(cast(value, out.dtype), out.shape)


@op(aten.full.default, aten.full_like.default, aten.fill.Scalar, aten.fill.Tensor, kind=Kind.CREATION)
def full(_size: Any, value: Any, *, dtype: Any = None, out: TensorType) -> Array:
    return _filled(value, out)


@op(aten.new_full.default, kind=Kind.CREATION)
def new_full(_like: Array, _size: Any, value: Any, *, dtype: Any = None, out: TensorType) -> Array:
    return _filled(value, out)


@op(aten.scalar_tensor.default, kind=Kind.CREATION)
def scalar_tensor(value: Any, *, dtype: Any = None, out: TensorType) -> Array:
    return _filled(value, out)


@op(
    aten.zeros.default,
    aten._efficientzerotensor.default,
    aten.zeros_like.default,
    aten.new_zeros.default,
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.empty_permuted.default,
    aten.empty_strided.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
    kind=Kind.CREATION,
)
def zeros(*_like: Any, dtype: Any = None, out: TensorType) -> Array:
    return _filled(0, out)


@op(aten.ones.default, aten.ones_like.default, aten.new_ones.default, kind=Kind.CREATION)
def ones(*_like: Any, dtype: Any = None, out: TensorType) -> Array:
    return _filled(1, out)


def _counted(start: Any, step: Any, out: TensorType) -> Array:
    """``start + i * step``: in int64 for integers, in float64 rounded once for floats, as ATen does."""
    exact = np.dtype(np.int64 if out.dtype.is_integer or out.dtype is DType.BOOL else np.float64)
    count = lax.iota(exact, out.numel)
    return cast(jnp.asarray(start, exact) + count * jnp.asarray(step, exact), out.dtype)


@op(aten.arange.default, kind=Kind.CREATION)
def arange(end: Any, *, dtype: Any = None, out: TensorType) -> Array:
    return _counted(0, 1, out)


@op(aten.arange.start, kind=Kind.CREATION)
def arange_start(start: Any, end: Any, *, dtype: Any = None, out: TensorType) -> Array:
    return _counted(start, 1, out)


@op(aten.arange.start_step, aten.range.default, aten.range.step, kind=Kind.CREATION)
def arange_start_step(start: Any, end: Any, step: Any = 1, *, dtype: Any = None, out: TensorType) -> Array:
    return _counted(start, step, out)


@op(aten.eye.default, aten.eye.m, kind=Kind.CREATION)
def eye(*_sizes: int, dtype: Any = None, out: TensorType) -> Array:
    return jnp.eye(*out.shape, dtype=dtypes.to_numpy(out.dtype))


def _half(call: Call) -> str | None:
    """Half precisions are rounded after each of ATen's steps, whose order follows the host's vector width."""
    small = any(t.dtype.is_floating and t.dtype.itemsize < 4 for t in call.result_types)
    return "half precision is counted in steps that depend on the host" if small else None


@op(aten.linspace.default, kind=Kind.CREATION, when=_half)
def linspace(start: Any, end: Any, steps: int, *, dtype: Any = None, out: TensorType) -> Array:
    """ATen counts from both ends, so that both are met exactly."""
    if steps == 1:
        return _filled(start, out)
    single = out.dtype.is_floating and out.dtype.itemsize < 8
    wide = np.complex128 if out.dtype.is_complex else np.float32 if single else np.float64
    first, last = wide(start), wide(end)
    step = (last - first) / wide(steps - 1) if steps > 1 else wide(0)
    i = np.arange(steps)
    values = np.where(i < steps // 2, first + step * i.astype(wide), last - step * (steps - 1 - i).astype(wide))
    return cast(jnp.asarray(values.astype(wide)), out.dtype)


@op(aten.tril_indices.default, kind=Kind.CREATION)
def tril_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None, out: TensorType) -> Array:
    return cast(jnp.asarray(np.stack(np.tril_indices(row, offset, col))), out.dtype)


@op(aten.triu_indices.default, kind=Kind.CREATION)
def triu_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None, out: TensorType) -> Array:
    return cast(jnp.asarray(np.stack(np.triu_indices(row, offset, col))), out.dtype)
