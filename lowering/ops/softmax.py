"""Softmax, its logarithm, and their gradients. A row of minus infinity alone gives NaN, as in ATen."""

from __future__ import annotations

import jax.numpy as jnp
import torch

from neuron_compiler.ir.graph import DType, TensorType
from neuron_compiler.lowering.numeric import Array, narrow, widen
from neuron_compiler.lowering.order import largest_of_row
from neuron_compiler.opdef import Kind, op, per_input_element

aten = torch.ops.aten


def _row(x: Array, dim: int) -> tuple[Array, int]:
    """The operand in its computing type, and the axis; a 0-dim tensor is a row of one."""
    wide = widen(x)
    return (wide.reshape(1), 0) if x.ndim == 0 else (wide, dim % x.ndim)


def _shifted(x: Array, dim: int) -> tuple[Array, int]:
    """Rows less their largest element. NaN in a row reaches its sum, so the shift may ignore it."""
    row, axis = _row(x, dim)
    return (row - largest_of_row(row, axis) if row.size else row), axis


@op(aten._softmax.default, kind=Kind.NORMALISATION, work=per_input_element(flops=4, transcendental=1))
def softmax(x: Array, dim: int, half_to_float: bool, *, out: TensorType) -> Array:
    shifted, axis = _shifted(x, dim)
    power = jnp.exp(shifted)
    return narrow(power / jnp.sum(power, axis=axis, keepdims=True), out).reshape(out.shape)


@op(aten._log_softmax.default, kind=Kind.NORMALISATION, work=per_input_element(flops=4, transcendental=1))
def log_softmax(x: Array, dim: int, half_to_float: bool, *, out: TensorType) -> Array:
    shifted, axis = _shifted(x, dim)
    total = jnp.log(jnp.sum(jnp.exp(shifted), axis=axis, keepdims=True))
    return narrow(shifted - total, out).reshape(out.shape)


@op(aten._softmax_backward_data.default, kind=Kind.NORMALISATION, work=per_input_element(flops=4))
def softmax_backward(grad: Array, y: Array, dim: int, input_dtype: DType, *, out: TensorType) -> Array:
    g, axis = _row(grad, dim)
    p, _ = _row(y, dim)
    weighted = g * p
    return narrow(weighted - p * jnp.sum(weighted, axis=axis, keepdims=True), out).reshape(out.shape)


@op(
    aten._log_softmax_backward_data.default,
    kind=Kind.NORMALISATION,
    work=per_input_element(flops=3, transcendental=1),
)
def log_softmax_backward(grad: Array, y: Array, dim: int, input_dtype: DType, *, out: TensorType) -> Array:
    g, axis = _row(grad, dim)
    p, _ = _row(y, dim)
    return narrow(g - jnp.exp(p) * jnp.sum(g, axis=axis, keepdims=True), out).reshape(out.shape)
