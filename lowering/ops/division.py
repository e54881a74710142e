"""Division with its roundings, remainders, powers, common divisors.

XLA divides integers by zero without a word and simplifies quotients of quotients; PyTorch's meaning is restored here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from neuron_compiler.ir.graph import DType, TensorType
from neuron_compiler.lowering import checks
from neuron_compiler.lowering.numeric import (
    Array,
    cast,
    constant,
    dtype_of,
    is_array,
    is_float,
    narrow,
    quotient,
    result_dtype,
    rounded,
    sealed,
    widened,
    working,
    working_with_exact_factor,
)
from neuron_compiler.lowering.ops.unary import truncated
from neuron_compiler.lowering.transcendental import exp2
from neuron_compiler.opdef import Kind, op, per_element

aten = torch.ops.aten


@op(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor, kind=Kind.ELEMENTWISE)
def div(x: Any, y: Any, *, out: TensorType) -> Array:
    a, b = working_with_exact_factor(out, x, y)
    return narrow(quotient(a, b), out)


@op(aten.div.Tensor_mode, aten.div.Scalar_mode, kind=Kind.ELEMENTWISE, work=per_element(flops=2))
def div_mode(x: Any, y: Any, *, rounding_mode: str | None = None, out: TensorType) -> Array:
    if rounding_mode is None:
        return div(x, y, out=out)
    if rounding_mode == "floor":
        return floor_divide(x, y, out=out)
    a, b = working_with_exact_factor(out, x, y)
    if not is_float(a):
        return _integer_division(a, b)
    return narrow(truncated(_step_of(y, out)(quotient(a, b))), out)


def _step_of(divisor: Any, out: TensorType) -> Callable[[Array], Array]:
    """What follows each step: by a tensor, ATen's kernels compute in the narrow type, by one element in float32."""
    if not out.dtype.is_floating or not is_array(divisor) or divisor.size == 1:
        return lambda step: step
    return lambda step: rounded(step, out.dtype)


@op(aten.floor_divide.default, aten.floor_divide.Scalar, kind=Kind.ELEMENTWISE, work=per_element(flops=4))
def floor_divide(x: Any, y: Any, *, out: TensorType) -> Array:
    a, b = working_with_exact_factor(out, x, y)
    if not is_float(a):
        quotient = _integer_division(a, b)
        inexact = lax.rem(*jnp.broadcast_arrays(a, _nonzero(b))) != 0
        return jnp.where(inexact & ((a < 0) != (b < 0)), quotient - 1, quotient)
    return narrow(_floored(a, b, _step_of(y, out)), out)


def _floored(a: Array, b: Array, step: Callable[[Array], Array]) -> Array:
    """The floor of the exact quotient, as Python has it: the rounded quotient's floor may be one too high."""
    rest = step(lax.rem(*jnp.broadcast_arrays(a, b)))
    exact = step(quotient(step(a - rest), b))
    exact = jnp.where((rest != 0) & ((b < 0) != (rest < 0)), step(exact - 1), exact)
    whole = lax.floor(exact)
    whole = jnp.where(step(exact - whole) > 0.5, step(whole + 1), whole)
    signed_zero = jnp.copysign(jnp.zeros_like(whole), quotient(a, b))
    return jnp.where(b == 0, quotient(a, b), jnp.where(exact == 0, signed_zero, whole))


def _nonzero(b: Array) -> Array:
    return jnp.where(b == 0, jnp.ones((), b.dtype), b)


def _integer_division(a: Array, b: Array) -> Array:
    """Towards zero. Raises ZeroDivisionError's text as PyTorch does: a RuntimeError."""
    checks.require(b != 0, "ZeroDivisionError", RuntimeError)
    return lax.div(*jnp.broadcast_arrays(a, _nonzero(b)))


def _integer_rest(a: Array, b: Array) -> Array:
    checks.require(b != 0, "ZeroDivisionError", RuntimeError)
    return lax.rem(*jnp.broadcast_arrays(a, _nonzero(b)))


@op(aten.fmod.Tensor, aten.fmod.Scalar, kind=Kind.ELEMENTWISE, work=per_element(flops=3))
def fmod(x: Any, y: Any, *, out: TensorType) -> Array:
    """The rest has the dividend's sign."""
    a, b = working(out, x, y)
    return narrow(lax.rem(*jnp.broadcast_arrays(a, b)) if is_float(a) else _integer_rest(a, b), out)


@op(
    aten.remainder.Tensor,
    aten.remainder.Scalar,
    aten.remainder.Scalar_Tensor,
    kind=Kind.ELEMENTWISE,
    work=per_element(flops=4),
)
def remainder(x: Any, y: Any, *, out: TensorType) -> Array:
    """The rest has the divisor's sign, as in Python."""
    a, b = working(out, x, y)
    rest = lax.rem(*jnp.broadcast_arrays(a, b)) if is_float(a) else _integer_rest(a, b)
    return narrow(jnp.where((rest != 0) & ((b < 0) != (rest < 0)), rest + b, rest), out)


@op(aten.pow.Tensor_Tensor, aten.pow.Scalar, kind=Kind.ELEMENTWISE, work=per_element(flops=1, transcendental=2))
def pow_(x: Any, y: Array, *, out: TensorType) -> Array:
    a, b = working(out, x, y)
    if _is_whole(out.dtype):
        return narrow(_integer_power(a, b), out)
    if out.dtype.is_complex:
        return _complex_power(a, b)
    return narrow(sealed(jnp.power(a, b)), out)


def _complex_power(a: Array, b: Array) -> Array:
    """Of zero: zero to powers in the right half of the plane, otherwise no number; not even to the power zero."""
    none = lax.complex(*(jnp.full((), jnp.nan, b.real.dtype),) * 2)
    return jnp.where(a == 0, jnp.where(b.real > 0, jnp.zeros((), a.dtype), none), jnp.power(a, b))


def _is_whole(dtype: DType) -> bool:
    return dtype.is_integer or dtype is DType.BOOL


@op(aten.pow.Tensor_Scalar, kind=Kind.ELEMENTWISE, work=per_element(flops=1, transcendental=2))
def pow_scalar(x: Array, exponent: Any, *, out: TensorType) -> Array:
    """Small exponents are products and roots, as ATen computes them."""
    (a,) = working(out, x)
    if _is_whole(out.dtype):
        if exponent < 0:
            never = jnp.zeros((), bool)
            checks.require(never, "Integers to negative integer powers are not allowed.", RuntimeError)
        return narrow(_integer_power(a, constant(exponent, out.dtype)), out)
    if exponent == 0:
        return narrow(jnp.ones_like(a), out)
    if exponent in _PRODUCTS and (not dtype_of(a).is_complex or exponent in (1, 2, 3)):
        return narrow(sealed(_PRODUCTS[exponent](a)), out)
    return narrow(sealed(jnp.power(a, working(out, exponent)[0])), out)


_PRODUCTS: dict[float, Any] = {
    1: lambda a: a,
    2: lambda a: a * a,
    3: lambda a: a * a * a,
    0.5: jnp.sqrt,
    -0.5: lambda a: 1 / jnp.sqrt(a),
    -1: lambda a: 1 / a,
    -2: lambda a: 1 / (a * a),
}


def _integer_power(a: Array, b: Array) -> Array:
    """By squaring, wrapping around; a negative exponent leaves something only of 1 and -1."""
    a, b = jnp.broadcast_arrays(a, b)
    one, zero = jnp.ones((), a.dtype), jnp.zeros((), a.dtype)

    def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        result, base, left = state
        return jnp.where(left & 1 == 1, result * base, result), base * base, left >> 1

    power, _, _ = lax.while_loop(
        lambda state: jnp.any(state[2] > 0), step, (jnp.full(a.shape, one), a, jnp.maximum(b, zero))
    )
    if not np.issubdtype(a.dtype, np.signedinteger):
        return power
    negative = jnp.where(a == 1, one, jnp.where(a == -1, jnp.where(b & 1 == 1, -one, one), zero))
    return jnp.where(b < 0, negative, power)


@op(aten.gcd.default, kind=Kind.ELEMENTWISE, work=per_element(flops=16))
def gcd(x: Array, y: Array, *, out: TensorType) -> Array:
    a, b = (jnp.abs(v) for v in jnp.broadcast_arrays(*working(out, x, y)))

    def step(state: tuple[Array, Array]) -> tuple[Array, Array]:
        a, b = state
        return jnp.where(b == 0, a, b), jnp.where(b == 0, b, lax.rem(a, _nonzero(b)))

    found, _ = lax.while_loop(lambda state: jnp.any(state[1] != 0), step, (a, b))
    return found


@op(aten.lcm.default, kind=Kind.ELEMENTWISE, work=per_element(flops=18))
def lcm(x: Array, y: Array, *, out: TensorType) -> Array:
    a, b = jnp.broadcast_arrays(*working(out, x, y))
    common = gcd(a, b, out=out)
    return jnp.where(common == 0, jnp.zeros((), a.dtype), jnp.abs(lax.div(a, _nonzero(common)) * b))


@op(aten.ldexp.Tensor, kind=Kind.ELEMENTWISE, work=per_element(flops=2))
def ldexp(x: Array, exponent: Array, *, out: TensorType) -> Array:
    """``x * pow(2.0, exponent)``, of which the power has a type and a rounding of its own."""
    own = result_dtype(2.0, exponent)
    power = cast(exp2(cast(cast(exponent, own), widened(own))), own)
    a, b = working_with_exact_factor(out, x, power)
    return narrow(a * b, out)
