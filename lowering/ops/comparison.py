"""Comparisons and logic: operands are compared in the type PyTorch promotes them to; the result is bool."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import torch

from neuron_compiler.ir.graph import DType
from neuron_compiler.lowering.numeric import Array, cast, result_dtype
from neuron_compiler.opdef import Kind, op

aten = torch.ops.aten


def _common(x: Any, y: Any) -> tuple[Array, Array]:
    dtype = result_dtype(x, y)
    return cast(x, dtype), cast(y, dtype)


@op(aten.eq.Tensor, aten.eq.Scalar, kind=Kind.ELEMENTWISE)
def eq(x: Any, y: Any) -> Array:
    a, b = _common(x, y)
    return a == b


@op(aten.ne.Tensor, aten.ne.Scalar, kind=Kind.ELEMENTWISE)
def ne(x: Any, y: Any) -> Array:
    a, b = _common(x, y)
    return a != b


@op(aten.lt.Tensor, aten.lt.Scalar, kind=Kind.ELEMENTWISE)
def lt(x: Any, y: Any) -> Array:
    a, b = _common(x, y)
    return a < b


@op(aten.le.Tensor, aten.le.Scalar, kind=Kind.ELEMENTWISE)
def le(x: Any, y: Any) -> Array:
    a, b = _common(x, y)
    return a <= b


@op(aten.gt.Tensor, aten.gt.Scalar, kind=Kind.ELEMENTWISE)
def gt(x: Any, y: Any) -> Array:
    a, b = _common(x, y)
    return a > b


@op(aten.ge.Tensor, aten.ge.Scalar, kind=Kind.ELEMENTWISE)
def ge(x: Any, y: Any) -> Array:
    a, b = _common(x, y)
    return a >= b


@op(aten.logical_and.default, kind=Kind.ELEMENTWISE)
def logical_and(x: Array, y: Array) -> Array:
    return cast(x, DType.BOOL) & cast(y, DType.BOOL)


@op(aten.logical_or.default, kind=Kind.ELEMENTWISE)
def logical_or(x: Array, y: Array) -> Array:
    return cast(x, DType.BOOL) | cast(y, DType.BOOL)


@op(aten.logical_xor.default, kind=Kind.ELEMENTWISE)
def logical_xor(x: Array, y: Array) -> Array:
    return cast(x, DType.BOOL) ^ cast(y, DType.BOOL)


@op(aten.logical_not.default, kind=Kind.ELEMENTWISE)
def logical_not(x: Array) -> Array:
    return jnp.logical_not(cast(x, DType.BOOL))
