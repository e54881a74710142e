"""Special functions: error function, gamma and its derivatives, Bessel I, zeta.

Float32 and narrower are computed in float64: XLA's float32 series lose digits near the functions' zeros, and these
ops are too rare for the time to matter. Where XLA lacks a limit that ATen has (poles, infinities), it is put right.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import jax.scipy.special as jsp
import torch
from jax import lax

from neuron_compiler.ir.graph import DType, TensorType, TupleType
from neuron_compiler.lowering.numeric import Array, cast, narrow, sealed, working
from neuron_compiler.lowering.ops.unary import TRANSCENDENTAL
from neuron_compiler.opdef import Kind, op, per_element

aten = torch.ops.aten

SERIES = per_element(flops=20, transcendental=2)


def in_double(function: Callable[..., Array], out: TensorType, *operands: Any) -> Array:
    """The function of the operands, computed in float64 and rounded once."""
    wide = jnp.broadcast_arrays(*(cast(x, DType.F64) for x in operands))
    return narrow(function(*wide), out)


@op(aten.erf.default, kind=Kind.ELEMENTWISE, work=TRANSCENDENTAL)
def erf(x: Array, *, out: TensorType) -> Array:
    return narrow(lax.erf(working(out, x)[0]), out)


@op(aten.erfc.default, kind=Kind.ELEMENTWISE, work=TRANSCENDENTAL)
def erfc(x: Array, *, out: TensorType) -> Array:
    return narrow(lax.erfc(working(out, x)[0]), out)


@op(aten.erfinv.default, kind=Kind.ELEMENTWISE, work=SERIES)
def erfinv(x: Array, *, out: TensorType) -> Array:
    return in_double(_erfinv, out, x)


def _erfinv(x: Array) -> Array:
    """XLA's approximation and a Newton step; its residual by erfc, since erf has no digits left near 1."""
    first = lax.erf_inv(x)
    size, root = jnp.abs(x), jnp.abs(first)
    residual = jnp.where(size < 0.5, lax.erf(root) - size, (1 - size) - lax.erfc(root))
    slope = 2 / math.sqrt(math.pi) * jnp.exp(-root * root)
    better = root - sealed(residual / slope)
    return jnp.where((size < 1) & (size > 0), jnp.copysign(better, x), first)


@op(aten.special_erfcx.default, kind=Kind.ELEMENTWISE, work=SERIES)
def erfcx(x: Array, *, out: TensorType) -> Array:
    return in_double(scaled_erfc, out, x)


def scaled_erfc(x: Array) -> Array:
    """exp(x^2) erfc(x): as the product while both factors exist, then by its continued fraction."""
    near = jnp.minimum(x, 6.0)
    square = near * near
    # The product of the rounding error of the square with the result is put back.
    high = lax.bitcast_convert_type(
        lax.bitcast_convert_type(near, jnp.uint64) & jnp.uint64(0xFFFFFFFFF8000000), near.dtype
    )
    low = (near - high) * (near + high)
    product = jnp.exp(high * high) * jnp.exp(low) * lax.erfc(near)
    far = jnp.maximum(x, 6.0)
    fraction = far
    for k in range(40, 0, -1):
        fraction = far + (k / 2) / fraction
    tail = 1 / (math.sqrt(math.pi) * fraction)
    return jnp.where(x != x, x, jnp.where(x < 6, jnp.where(square == jnp.inf, jnp.inf, product), tail))


@op(aten.special_ndtri.default, kind=Kind.ELEMENTWISE, work=SERIES)
def ndtri(x: Array, *, out: TensorType) -> Array:
    return in_double(_ndtri, out, x)


def _ndtri(x: Array) -> Array:
    inside = jsp.ndtri(x)
    limit = jnp.where(x == 0, -jnp.inf, jnp.where(x == 1, jnp.inf, jnp.nan))
    return jnp.where((x > 0) & (x < 1), inside, limit)


@op(aten.special_log_ndtr.default, kind=Kind.ELEMENTWISE, work=SERIES)
def log_ndtr(x: Array, *, out: TensorType) -> Array:
    return in_double(_log_ndtr, out, x)


def _log_ndtr(x: Array) -> Array:
    t = x * math.sqrt(0.5)
    left = jnp.log(scaled_erfc(-t) / 2) - t * t
    return jnp.where(x < -1, left, jnp.log1p(-lax.erfc(t) / 2))


@op(aten.lgamma.default, kind=Kind.ELEMENTWISE, work=SERIES)
def lgamma(x: Array, *, out: TensorType) -> Array:
    return in_double(lax.lgamma, out, x)


@op(aten.digamma.default, kind=Kind.ELEMENTWISE, work=SERIES)
def digamma(x: Array, *, out: TensorType) -> Array:
    return in_double(_digamma, out, x)


def _digamma(x: Array) -> Array:
    """At zero an infinity of the sign opposite to zero's; no number at the other poles."""
    return jnp.where(x == 0, jnp.copysign(jnp.inf, -x), lax.digamma(x))


@op(aten.polygamma.default, kind=Kind.ELEMENTWISE, work=SERIES)
def polygamma(n: int, x: Array, *, out: TensorType) -> Array:
    return in_double(lambda a: _polygamma(n, a), out, x)


def _polygamma(n: int, x: Array) -> Array:
    if n == 0:
        return _digamma(x)
    if n == 1:
        return _trigamma(x)
    sign = 1.0 if n % 2 else -1.0
    return sign * math.exp(math.lgamma(n + 1)) * _zeta(jnp.full_like(x, n + 1.0), x)


def _trigamma(x: Array) -> Array:
    """Reflected to the right half, raised past 8 by its recurrence, then the asymptotic series."""
    left = x < 0.5
    a = jnp.where(left, 1 - x, x)
    total = jnp.zeros_like(a)
    for _ in range(8):
        total = total + jnp.where(a < 8, 1 / (a * a), 0)
        a = jnp.where(a < 8, a + 1, a)
    square = 1 / (a * a)
    series = 1 / 6 - square * (1 / 30 - square * (1 / 42 - square * (1 / 30 - square * (5 / 66 - square * 691 / 2730))))
    total = total + (1 + 0.5 / a + square * series) / a
    sine = jnp.sin(math.pi * x)
    return jnp.where(left, (math.pi / sine) ** 2 - total, total)


@op(
    aten.special_zeta.default,
    aten.special_zeta.self_scalar,
    aten.special_zeta.other_scalar,
    kind=Kind.ELEMENTWISE,
    work=SERIES,
)
def zeta(x: Any, q: Any, *, out: TensorType) -> Array:
    return in_double(_zeta, out, x, q)


# B(2j) / (2j)!, the coefficients of the Euler-Maclaurin sum.
_EULER_MACLAURIN = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000, 1 / 74724249600)


def _zeta(s: Array, q: Array) -> Array:
    """Hurwitz's sum of (q + k)^-s. XLA's fails for q < 0, where ATen has it for whole s only.

    The terms left of zero are a sum of their own, run through from the other end.
    """
    whole = s == lax.floor(s)
    count = lax.ceil(jnp.maximum(-q, 0.0))
    right = _zeta_right(s, q + count)
    left = _zeta_right(s, 1 - q - count) - _zeta_right(s, 1 - q)
    odd = jnp.abs(lax.rem(s, jnp.full_like(s, 2))) == 1
    total = jnp.where(q < 0, right + jnp.where(odd, -left, left), right)
    pole = jnp.where(q == lax.floor(q), jnp.inf, jnp.nan)
    total = jnp.where((q <= 0) & ((q == lax.floor(q)) | ~whole), pole, total)
    return jnp.where(s == 1, jnp.inf, jnp.where(s < 1, jnp.nan, total))


def _zeta_right(s: Array, q: Array) -> Array:
    """For q > 0: ten terms, then the Euler-Maclaurin tail."""
    total = jnp.zeros_like(q)
    for k in range(10):
        total = total + jnp.power(q + k, -s)
    a = q + 10
    power = jnp.power(a, -s)
    total = total + a * power / (s - 1) + power / 2
    factor = s * power / a
    for j, coefficient in enumerate(_EULER_MACLAURIN):
        total = total + coefficient * factor
        factor = factor * (s + (2 * j + 1)) * (s + (2 * j + 2)) / (a * a)
    return total


@op(aten.igamma.default, kind=Kind.ELEMENTWISE, work=SERIES)
def igamma(a: Array, x: Array, *, out: TensorType) -> Array:
    return in_double(lambda a, x: _incomplete_gamma(lax.igamma, 1.0, a, x), out, a, x)


@op(aten.igammac.default, kind=Kind.ELEMENTWISE, work=SERIES)
def igammac(a: Array, x: Array, *, out: TensorType) -> Array:
    return in_double(lambda a, x: _incomplete_gamma(lax.igammac, 0.0, a, x), out, a, x)


_GAMMA_LIMIT = 1e6


def _incomplete_gamma(function: Callable[[Array, Array], Array], at_infinity: float, a: Array, x: Array) -> Array:
    """XLA's series, whose loop would not end for huge arguments; there, Wilson and Hilferty's normal approximation."""
    plain = (a > 0) & (x > 0) & (a < _GAMMA_LIMIT) & (x < _GAMMA_LIMIT)
    series = function(jnp.where(plain, a, 1.0), jnp.where(plain, x, 1.0))
    deviate = (jnp.cbrt(x / a) - (1 - 1 / (9 * a))) * 3 * jnp.sqrt(a)
    normal = jsp.ndtr(deviate if at_infinity else -deviate)
    found = jnp.where(plain, series, normal)
    found = jnp.where((x != x) | (a != a), jnp.nan, found)
    found = jnp.where(jnp.isinf(x), at_infinity, found)
    found = jnp.where(jnp.isinf(a), jnp.where(jnp.isinf(x), jnp.nan, 1 - at_infinity), found)
    found = jnp.where(x == 0, 1 - at_infinity, found)
    found = jnp.where(a == 0, jnp.where(x > 0, at_infinity, jnp.nan), found)
    return jnp.where((x < 0) | (a < 0), jnp.nan, found)


@op(aten.i0.default, aten.special_modified_bessel_i0.default, kind=Kind.ELEMENTWISE, work=SERIES)
def i0(x: Array, *, out: TensorType) -> Array:
    return in_double(lambda a: _unscaled(jsp.i0e(a), a), out, x)


@op(aten.special_i0e.default, kind=Kind.ELEMENTWISE, work=SERIES)
def i0e(x: Array, *, out: TensorType) -> Array:
    return in_double(jsp.i0e, out, x)


@op(aten.special_i1.default, aten.special_modified_bessel_i1.default, kind=Kind.ELEMENTWISE, work=SERIES)
def i1(x: Array, *, out: TensorType) -> Array:
    return in_double(lambda a: _unscaled(jsp.i1e(a), a), out, x)


@op(aten.special_i1e.default, kind=Kind.ELEMENTWISE, work=SERIES)
def i1e(x: Array, *, out: TensorType) -> Array:
    return in_double(jsp.i1e, out, x)


def _unscaled(scaled: Array, x: Array) -> Array:
    return scaled * jnp.exp(jnp.abs(x))


@op(aten.frexp.Tensor, kind=Kind.ELEMENTWISE)
def frexp(x: Array, *, out: TupleType) -> tuple[Array, Array]:
    """Mantissa in [0.5, 1) and exponent; half precisions are exact in float32."""
    mantissa_type, exponent_type = out.elements
    wide = cast(x, DType.F64 if mantissa_type.dtype is DType.F64 else DType.F32)
    mantissa, exponent = jnp.frexp(wide)
    odd = (wide == 0) | ~jnp.isfinite(wide)
    return (
        cast(jnp.where(odd, wide, mantissa), mantissa_type.dtype),
        cast(jnp.where(odd, 0, exponent).astype(jnp.int32), exponent_type.dtype),
    )
