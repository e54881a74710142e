"""Arithmetic of two or more tensors: each result element depends on the same (broadcast) element of each operand.

Half precisions are computed in float32 and rounded once; integers wrap.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import torch
from jax import lax

from neuron_compiler.ir.graph import DType, TensorType
from neuron_compiler.lowering import order
from neuron_compiler.lowering.numeric import (
    Array,
    cast,
    constant,
    dtype_of,
    is_array,
    narrow,
    quotient,
    sealed,
    working,
    working_with_exact_factor,
)
from neuron_compiler.lowering.transcendental import log
from neuron_compiler.opdef import Kind, op, per_element

aten = torch.ops.aten


@op(aten.add.Tensor, aten.add.Scalar, kind=Kind.ELEMENTWISE)
def add(x: Any, y: Any, alpha: Any = 1, *, out: TensorType) -> Array:
    a, b = working(out, x, y)
    return narrow(a + _times(b, alpha, out) if alpha != 1 else a + b, out)


@op(aten.sub.Tensor, aten.sub.Scalar, kind=Kind.ELEMENTWISE)
def sub(x: Any, y: Any, alpha: Any = 1, *, out: TensorType) -> Array:
    a, b = working(out, x, y)
    return narrow(a - _times(b, alpha, out) if alpha != 1 else a - b, out)


def _times(b: Array, alpha: Any, out: TensorType) -> Array:
    """A product of its own: ATen rounds factor and product where the type is narrow."""
    (factor,) = working(out, alpha)
    return cast(narrow(b * factor, out), dtype_of(b))


@op(aten.rsub.Tensor, aten.rsub.Scalar, kind=Kind.ELEMENTWISE)
def rsub(x: Any, y: Any, alpha: Any = 1, *, out: TensorType) -> Array:
    return sub(y, x, alpha, out=out)


@op(aten.mul.Tensor, aten.mul.Scalar, kind=Kind.ELEMENTWISE)
def mul(x: Any, y: Any, *, out: TensorType) -> Array:
    a, b = working_with_exact_factor(out, x, y)
    return narrow(a * b, out)


@op(aten.addcmul.default, kind=Kind.ELEMENTWISE, work=per_element(flops=3))
def addcmul(x: Array, y: Array, z: Array, *, value: Any = 1, out: TensorType) -> Array:
    a, b, c = working(out, x, y, z)
    return narrow(a + constant(value, dtype_of(a)) * b * c, out)


# By name: the overload exists only once Dynamo has imported Inductor's prims for an optimizer's addcmul and lerp.
@op("prims.fma.default", kind=Kind.ELEMENTWISE, work=per_element(flops=2))
def fma(x: Array, y: Any, z: Array, *, out: TensorType) -> Array:
    a, b, c = working(out, x, y, z)
    return narrow(a * b + c, out)


@op(aten.addcdiv.default, kind=Kind.ELEMENTWISE, work=per_element(flops=3))
def addcdiv(x: Array, y: Array, z: Array, *, value: Any = 1, out: TensorType) -> Array:
    a, b, c = working(out, x, y, z)
    return narrow(a + quotient(constant(value, dtype_of(a)) * b, c), out)


@op(aten.lerp.Scalar, aten.lerp.Tensor, kind=Kind.ELEMENTWISE, work=per_element(flops=3))
def lerp(start: Array, end: Array, weight: Any, *, out: TensorType) -> Array:
    """ATen takes the formula that is exact at the nearer end."""
    a, b = working(out, start, end)
    w = cast(weight, dtype_of(a))
    near = jnp.abs(w) < 0.5
    return narrow(jnp.where(near, a + w * (b - a), b - (b - a) * (1 - w)), out)


@op(aten.maximum.default, kind=Kind.ELEMENTWISE)
def maximum(x: Array, y: Array, *, out: TensorType) -> Array:
    a, b = working(out, x, y)
    return narrow(order.maximum(a, b), out)


@op(aten.minimum.default, kind=Kind.ELEMENTWISE)
def minimum(x: Array, y: Array, *, out: TensorType) -> Array:
    a, b = working(out, x, y)
    return narrow(order.minimum(a, b), out)


@op(aten.fmax.default, kind=Kind.ELEMENTWISE)
def fmax(x: Array, y: Array, *, out: TensorType) -> Array:
    return _ignoring_nan(order.maximum, x, y, out)


@op(aten.fmin.default, kind=Kind.ELEMENTWISE)
def fmin(x: Array, y: Array, *, out: TensorType) -> Array:
    return _ignoring_nan(order.minimum, x, y, out)


def _ignoring_nan(choose: Any, x: Array, y: Array, out: TensorType) -> Array:
    a, b = working(out, x, y)
    return narrow(jnp.where(a != a, b, jnp.where(b != b, a, choose(a, b))), out)


@op(aten.clamp.default, aten.clamp.Tensor, kind=Kind.ELEMENTWISE, work=per_element(flops=2))
def clamp(x: Array, low: Any = None, high: Any = None, *, out: TensorType) -> Array:
    """NaN anywhere gives NaN; where the limits cross, the upper one wins; zeros equal to a number keep their sign."""
    (a,) = working(out, x)
    if low is not None:
        a = _within(order.maximum, low, a)
    if high is not None:
        a = _within(order.minimum, high, a)
    return narrow(jnp.broadcast_to(a, out.shape), out)


def _within(choose: Any, limit: Any, a: Array) -> Array:
    """The further of the limit and each element; of equal ones the limit if it is a tensor, as ATen has it."""
    bound = cast(limit, dtype_of(a))
    return choose(a, bound) if is_array(limit) else choose(bound, a)


@op(aten.clamp_min.default, aten.clamp_min.Tensor, kind=Kind.ELEMENTWISE)
def clamp_min(x: Array, low: Any, *, out: TensorType) -> Array:
    return clamp(x, low, None, out=out)


@op(aten.clamp_max.default, aten.clamp_max.Tensor, kind=Kind.ELEMENTWISE)
def clamp_max(x: Array, high: Any, *, out: TensorType) -> Array:
    return clamp(x, None, high, out=out)


@op(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar, kind=Kind.ELEMENTWISE)
def where(condition: Array, x: Any, y: Any, *, out: TensorType) -> Array:
    return jnp.where(cast(condition, DType.BOOL), cast(x, out.dtype), cast(y, out.dtype))


@op(aten.atan2.default, kind=Kind.ELEMENTWISE, work=per_element(transcendental=1))
def atan2(y: Array, x: Array, *, out: TensorType) -> Array:
    a, b = working(out, y, x)
    return narrow(jnp.arctan2(a, b), out)


@op(aten.hypot.default, kind=Kind.ELEMENTWISE, work=per_element(flops=4, transcendental=1))
def hypot(x: Array, y: Array, *, out: TensorType) -> Array:
    """Scaled by the larger operand, so that squares neither overflow nor vanish."""
    a, b = (jnp.abs(v) for v in working(out, x, y))
    big, small = order.maximum(a, b), order.minimum(a, b)
    ratio = sealed(small / jnp.where(big == 0, 1, big).astype(big.dtype))
    length = big * jnp.sqrt(1 + ratio * ratio)
    length = jnp.where(big == 0, big, length)
    return narrow(jnp.where(jnp.isinf(a) | jnp.isinf(b), jnp.inf, length).astype(big.dtype), out)


@op(aten.copysign.Tensor, aten.copysign.Scalar, kind=Kind.ELEMENTWISE)
def copysign(x: Array, y: Any, *, out: TensorType) -> Array:
    dtype = out.dtype
    return jnp.copysign(cast(x, dtype), cast(y, dtype))


@op(aten.nextafter.default, kind=Kind.ELEMENTWISE)
def nextafter(x: Array, y: Array, *, out: TensorType) -> Array:
    a, b = jnp.broadcast_arrays(cast(x, out.dtype), cast(y, out.dtype))
    return lax.nextafter(a, b)


@op(aten.heaviside.default, kind=Kind.ELEMENTWISE)
def heaviside(x: Array, at_zero: Array, *, out: TensorType) -> Array:
    a, b = cast(x, out.dtype), cast(at_zero, out.dtype)
    return jnp.where(a == 0, b, (a > 0).astype(a.dtype))


@op(
    aten.xlogy.Tensor,
    aten.xlogy.Scalar_Self,
    aten.xlogy.Scalar_Other,
    kind=Kind.ELEMENTWISE,
    work=per_element(transcendental=1),
)
def xlogy(x: Any, y: Any, *, out: TensorType) -> Array:
    a, b = working(out, x, y)
    return narrow(_zero_wins(a, b, a * log(b)), out)


def _zero_wins(a: Array, b: Array, product: Array) -> Array:
    """0 * f(y) is 0 unless y is NaN."""
    return jnp.where(b != b, b, jnp.where(a == 0, jnp.zeros_like(a), product))


@op(
    aten.special_xlog1py.default,
    aten.special_xlog1py.self_scalar,
    aten.special_xlog1py.other_scalar,
    kind=Kind.ELEMENTWISE,
    work=per_element(transcendental=1),
)
def xlog1py(x: Any, y: Any, *, out: TensorType) -> Array:
    a, b = working(out, x, y)
    return narrow(_zero_wins(a, b, a * jnp.log1p(b)), out)


@op(aten.logaddexp.default, kind=Kind.ELEMENTWISE, work=per_element(flops=3, transcendental=2))
def logaddexp(x: Array, y: Array, *, out: TensorType) -> Array:
    a, b = working(out, x, y)
    return narrow(jnp.logaddexp(a, b), out)


@op(aten.logaddexp2.default, kind=Kind.ELEMENTWISE, work=per_element(flops=3, transcendental=2))
def logaddexp2(x: Array, y: Array, *, out: TensorType) -> Array:
    a, b = working(out, x, y)
    return narrow(jnp.logaddexp2(a, b), out)
