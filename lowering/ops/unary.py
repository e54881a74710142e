"""Functions of one tensor: roots, exponentials, logarithms, trigonometry, signs and rounding.

Integers are computed in the floating type PyTorch promotes them to; half precisions in float32, rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from neuron_compiler.ir.graph import DType, TensorType
from neuron_compiler.lowering import transcendental
from neuron_compiler.lowering.numeric import Array, cast, constant, dtype_of, narrow, quotient, sealed, working
from neuron_compiler.opdef import Kind, op, per_element

aten = torch.ops.aten

TRANSCENDENTAL = per_element(flops=0, transcendental=1)


def _unary(function: Callable[[Array], Array], x: Array, out: TensorType) -> Array:
    (wide,) = working(out, x)
    return narrow(sealed(function(wide)), out)


@op(aten.exp.default, kind=Kind.ELEMENTWISE, work=TRANSCENDENTAL)
def exp(x: Array, *, out: TensorType) -> Array:
    return _unary(transcendental.exp, x, out)


@op(aten.exp2.default, kind=Kind.ELEMENTWISE, work=TRANSCENDENTAL)
def exp2(x: Array, *, out: TensorType) -> Array:
    return _unary(transcendental.exp2, x, out)


@op(aten.expm1.default, kind=Kind.ELEMENTWISE, work=TRANSCENDENTAL)
def expm1(x: Array, *, out: TensorType) -> Array:
    return _unary(jnp.expm1, x, out)


@op(aten.log.default, kind=Kind.ELEMENTWISE, work=TRANSCENDENTAL)
def log(x: Array, *, out: TensorType) -> Array:
    return _unary(transcendental.log, x, out)


@op(aten.log2.default, kind=Kind.ELEMENTWISE, work=TRANSCENDENTAL)
def log2(x: Array, *, out: TensorType) -> Array:
    return _unary(transcendental.log2, x, out)


@op(aten.log10.default, kind=Kind.ELEMENTWISE, work=TRANSCENDENTAL)
def log10(x: Array, *, out: TensorType) -> Array:
    return _unary(transcendental.log10, x, out)


@op(aten.log1p.default, kind=Kind.ELEMENTWISE, work=TRANSCENDENTAL)
def log1p(x: Array, *, out: TensorType) -> Array:
    return _unary(jnp.log1p, x, out)


@op(aten.sqrt.default, kind=Kind.ELEMENTWISE, work=TRANSCENDENTAL)
def sqrt(x: Array, *, out: TensorType) -> Array:
    return _unary(jnp.sqrt, x, out)


@op(aten.rsqrt.default, kind=Kind.ELEMENTWISE, work=TRANSCENDENTAL)
def rsqrt(x: Array, *, out: TensorType) -> Array:
    return _unary(transcendental.rsqrt, x, out)


@op(aten.reciprocal.default, kind=Kind.ELEMENTWISE, work=per_element())
def reciprocal(x: Array, *, out: TensorType) -> Array:
    return _unary(lambda a: jnp.ones((), a.dtype) / a, x, out)


@op(aten.square.default, kind=Kind.ELEMENTWISE)
def square(x: Array, *, out: TensorType) -> Array:
    return _unary(lambda a: a * a, x, out)


@op(aten.sin.default, kind=Kind.ELEMENTWISE, work=TRANSCENDENTAL)
def sin(x: Array, *, out: TensorType) -> Array:
    return _unary(jnp.sin, x, out)


@op(aten.cos.default, kind=Kind.ELEMENTWISE, work=TRANSCENDENTAL)
def cos(x: Array, *, out: TensorType) -> Array:
    return _unary(jnp.cos, x, out)


@op(aten.tan.default, kind=Kind.ELEMENTWISE, work=TRANSCENDENTAL)
def tan(x: Array, *, out: TensorType) -> Array:
    return _unary(jnp.tan, x, out)


@op(aten.asin.default, kind=Kind.ELEMENTWISE, work=TRANSCENDENTAL)
def asin(x: Array, *, out: TensorType) -> Array:
    return _unary(jnp.arcsin, x, out)


@op(aten.acos.default, kind=Kind.ELEMENTWISE, work=TRANSCENDENTAL)
def acos(x: Array, *, out: TensorType) -> Array:
    return _unary(jnp.arccos, x, out)


@op(aten.atan.default, kind=Kind.ELEMENTWISE, work=TRANSCENDENTAL)
def atan(x: Array, *, out: TensorType) -> Array:
    return _unary(jnp.arctan, x, out)


@op(aten.sinh.default, kind=Kind.ELEMENTWISE, work=TRANSCENDENTAL)
def sinh(x: Array, *, out: TensorType) -> Array:
    return _unary(jnp.sinh if out.dtype.is_complex else _sinh, x, out)


@op(aten.cosh.default, kind=Kind.ELEMENTWISE, work=TRANSCENDENTAL)
def cosh(x: Array, *, out: TensorType) -> Array:
    return _unary(jnp.cosh if out.dtype.is_complex else _cosh, x, out)


def _sinh(a: Array) -> Array:
    """Small arguments through expm1; large ones by squaring, which overflows only where the result does."""
    size = jnp.abs(a)
    less_one = jnp.expm1(jnp.minimum(size, jnp.ones((), a.dtype)))
    small = (less_one + less_one / (less_one + 1)) / 2
    return jnp.copysign(jnp.where(size < 1, small, _half_exponential(size) - _half_exponential(-size)), a)


def _cosh(a: Array) -> Array:
    size = jnp.abs(a)
    return _half_exponential(size) + _half_exponential(-size)


def _half_exponential(a: Array) -> Array:
    root = sealed(jnp.exp(a / 2))
    return root / 2 * root


@op(aten.tanh.default, kind=Kind.ELEMENTWISE, work=TRANSCENDENTAL)
def tanh(x: Array, *, out: TensorType) -> Array:
    return _unary(jnp.tanh, x, out)


@op(aten.asinh.default, kind=Kind.ELEMENTWISE, work=TRANSCENDENTAL)
def asinh(x: Array, *, out: TensorType) -> Array:
    return _unary(jnp.arcsinh, x, out)


@op(aten.acosh.default, kind=Kind.ELEMENTWISE, work=TRANSCENDENTAL)
def acosh(x: Array, *, out: TensorType) -> Array:
    return _unary(jnp.arccosh, x, out)


@op(aten.atanh.default, kind=Kind.ELEMENTWISE, work=TRANSCENDENTAL)
def atanh(x: Array, *, out: TensorType) -> Array:
    return _unary(jnp.arctanh, x, out)


@op(aten.abs.default, kind=Kind.ELEMENTWISE)
def abs_(x: Array, *, out: TensorType) -> Array:
    """Half precisions need no wider type; the lowest integer stays itself."""
    return x if dtype_of(x) is DType.BOOL else cast(jnp.abs(x), out.dtype)


@op(aten.neg.default, kind=Kind.ELEMENTWISE)
def neg(x: Array) -> Array:
    return -x


@op(aten.positive.default, kind=Kind.VIEW)
def positive(x: Array) -> Array:
    return x


@op(aten.sign.default, kind=Kind.ELEMENTWISE)
def sign(x: Array) -> Array:
    """NaN has sign 0."""
    if dtype_of(x) is DType.BOOL:
        return x
    zero = jnp.zeros((), x.dtype)
    return (x > zero).astype(x.dtype) - (x < zero).astype(x.dtype)


@op(aten.sgn.default, kind=Kind.ELEMENTWISE, work=per_element(flops=3))
def sgn(x: Array, *, out: TensorType) -> Array:
    """Of a complex number: the one of length 1 in its direction."""
    if not dtype_of(x).is_complex:
        return sign(x)
    length = jnp.abs(x)
    return jnp.where(length == 0, jnp.zeros((), x.dtype), x / length.astype(x.dtype))


@op(aten.signbit.default, kind=Kind.ELEMENTWISE)
def signbit(x: Array) -> Array:
    if dtype_of(x).is_floating:
        return jnp.signbit(x)
    return jnp.zeros(x.shape, np.bool_) if dtype_of(x) is DType.BOOL else x < 0


def _rounding(function: Callable[[Array], Array], x: Array) -> Array:
    """Integers are whole already."""
    return function(x) if dtype_of(x).is_floating else x


@op(aten.ceil.default, kind=Kind.ELEMENTWISE)
def ceil(x: Array) -> Array:
    return _rounding(lax.ceil, x)


@op(aten.floor.default, kind=Kind.ELEMENTWISE)
def floor(x: Array) -> Array:
    return _rounding(lax.floor, x)


def truncated(x: Array) -> Array:
    """The whole number next towards zero, with the sign of zero kept."""
    return jnp.copysign(lax.floor(jnp.abs(x)), x)


@op(aten.trunc.default, kind=Kind.ELEMENTWISE)
def trunc(x: Array) -> Array:
    return _rounding(truncated, x)


@op(aten.frac.default, kind=Kind.ELEMENTWISE)
def frac(x: Array) -> Array:
    return x - truncated(x)


@op(aten.round.default, kind=Kind.ELEMENTWISE)
def round_(x: Array) -> Array:
    """Halves go to the even neighbour."""
    return _rounding(lambda a: lax.round(a, lax.RoundingMethod.TO_NEAREST_EVEN), x)


@op(aten.round.decimals, kind=Kind.ELEMENTWISE, work=per_element(flops=3))
def round_decimals(x: Array, *, decimals: int = 0, out: TensorType) -> Array:
    if not dtype_of(x).is_floating or decimals == 0:
        return round_(x)
    (wide,) = working(out, x)
    power = constant(10.0 ** abs(decimals), dtype_of(wide))
    if decimals > 0:
        return narrow(quotient(round_(wide * power), power), out)
    return narrow(round_(quotient(wide, power)) * power, out)


@op(aten.isnan.default, kind=Kind.ELEMENTWISE)
def isnan(x: Array) -> Array:
    return x != x


@op(aten.isinf.default, kind=Kind.ELEMENTWISE)
def isinf(x: Array) -> Array:
    dtype = dtype_of(x)
    return jnp.isinf(x) if dtype.is_floating or dtype.is_complex else jnp.zeros(x.shape, np.bool_)


@op(aten.isfinite.default, kind=Kind.ELEMENTWISE)
def isfinite(x: Array) -> Array:
    dtype = dtype_of(x)
    return jnp.isfinite(x) if dtype.is_floating or dtype.is_complex else jnp.ones(x.shape, np.bool_)


@op(aten.isposinf.default, kind=Kind.ELEMENTWISE)
def isposinf(x: Array) -> Array:
    return x == jnp.inf if dtype_of(x).is_floating else jnp.zeros(x.shape, np.bool_)


@op(aten.isneginf.default, kind=Kind.ELEMENTWISE)
def isneginf(x: Array) -> Array:
    return x == -jnp.inf if dtype_of(x).is_floating else jnp.zeros(x.shape, np.bool_)


@op(aten.nan_to_num.default, kind=Kind.ELEMENTWISE, work=per_element(flops=3))
def nan_to_num(x: Array, nan: Any = None, posinf: Any = None, neginf: Any = None, *, out: TensorType) -> Array:
    dtype = dtype_of(x)
    if dtype.is_complex:
        part = TensorType(out.shape, dtype_of(x.real))
        return lax.complex(*(nan_to_num(p, nan, posinf, neginf, out=part) for p in (x.real, x.imag)))
    if not dtype.is_floating:
        return x
    info = jnp.finfo(x.dtype)
    high = jnp.asarray(info.max, x.dtype) if posinf is None else constant(posinf, dtype)
    low = jnp.asarray(info.min, x.dtype) if neginf is None else constant(neginf, dtype)
    middle = constant(0.0 if nan is None else nan, dtype)
    return jnp.where(x != x, middle, jnp.where(x == jnp.inf, high, jnp.where(x == -jnp.inf, low, x)))
