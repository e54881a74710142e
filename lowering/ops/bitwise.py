"""Bits of integers: and, or, xor, not, shifts. Shifts by a negative count or past the width have ATen's meaning."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from neuron_compiler.ir.graph import DType, TensorType
from neuron_compiler.lowering.numeric import Array, cast, dims_of, dtype_of
from neuron_compiler.opdef import Kind, op

aten = torch.ops.aten


@op(
    aten.bitwise_and.Tensor,
    aten.bitwise_and.Scalar,
    aten.bitwise_and.Scalar_Tensor,
    kind=Kind.ELEMENTWISE,
)
def bitwise_and(x: Any, y: Any, *, out: TensorType) -> Array:
    return cast(x, out.dtype) & cast(y, out.dtype)


@op(aten.bitwise_or.Tensor, aten.bitwise_or.Scalar, aten.bitwise_or.Scalar_Tensor, kind=Kind.ELEMENTWISE)
def bitwise_or(x: Any, y: Any, *, out: TensorType) -> Array:
    return cast(x, out.dtype) | cast(y, out.dtype)


@op(
    aten.bitwise_xor.Tensor,
    aten.bitwise_xor.Scalar,
    aten.bitwise_xor.Scalar_Tensor,
    kind=Kind.ELEMENTWISE,
)
def bitwise_xor(x: Any, y: Any, *, out: TensorType) -> Array:
    return cast(x, out.dtype) ^ cast(y, out.dtype)


@op(aten.bitwise_not.default, kind=Kind.ELEMENTWISE)
def bitwise_not(x: Array) -> Array:
    return ~x


@op(
    aten.bitwise_left_shift.Tensor,
    aten.bitwise_left_shift.Tensor_Scalar,
    aten.bitwise_left_shift.Scalar_Tensor,
    aten.__lshift__.Tensor,
    aten.__lshift__.Scalar,
    kind=Kind.ELEMENTWISE,
)
def left_shift(x: Any, count: Any, *, out: TensorType) -> Array:
    """Past the width, or by a negative count: zero."""
    a, b = jnp.broadcast_arrays(cast(x, out.dtype), cast(count, out.dtype))
    inside = (b >= 0) & (b < 8 * out.dtype.itemsize)
    return jnp.where(inside, lax.shift_left(a, jnp.where(inside, b, 0).astype(b.dtype)), jnp.zeros((), a.dtype))


@op(
    aten.bitwise_right_shift.Tensor,
    aten.bitwise_right_shift.Tensor_Scalar,
    aten.bitwise_right_shift.Scalar_Tensor,
    aten.__rshift__.Tensor,
    aten.__rshift__.Scalar,
    kind=Kind.ELEMENTWISE,
)
def right_shift(x: Any, count: Any, *, out: TensorType) -> Array:
    """Past the width, or by a negative count: what is left after all bits are gone, the sign."""
    a, b = jnp.broadcast_arrays(cast(x, out.dtype), cast(count, out.dtype))
    width = 8 * out.dtype.itemsize
    if np.issubdtype(a.dtype, np.signedinteger):
        inside = (b >= 0) & (b < width)
        return lax.shift_right_arithmetic(a, jnp.where(inside, b, width - 1).astype(b.dtype))
    inside = b < width
    return jnp.where(
        inside, lax.shift_right_logical(a, jnp.where(inside, b, 0).astype(b.dtype)), jnp.zeros((), a.dtype)
    )


@op(aten.hash_tensor.default, kind=Kind.REDUCTION)
def hash_tensor(x: Array, dim: Any = (), *, keepdim: bool = False, mode: int = 0, out: TensorType) -> Array:
    """Exclusive or of the elements as 64 bits: floats as those of their double, integers by value."""
    wide = cast(x, DType.F64) if dtype_of(x).is_floating else x
    words = lax.bitcast_convert_type(wide if wide.dtype == np.float64 else cast(x, DType.I64), np.uint64)
    return lax.reduce(words, np.uint64(0), lax.bitwise_xor, dims_of(dim, x.ndim)).reshape(out.shape)
