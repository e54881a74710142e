"""Bessel functions of the first and second kind, modified ones of the second, and Airy's function.

XLA has none of them. Each is computed in float64, near zero by its power series or by Bessel's integral, far out by its
asymptotic series. The integrals are of periodic or quickly decaying functions, for which the trapezoidal rule with a
few dozen points is exact to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax.numpy as jnp
import jax.scipy.special as jsp
import numpy as np
import torch

from neuron_compiler.ir.graph import TensorType
from neuron_compiler.lowering.numeric import Array
from neuron_compiler.lowering.ops.special import in_double
from neuron_compiler.opdef import Kind, op, per_element

aten = torch.ops.aten

_INTEGRAL = per_element(flops=200, transcendental=40)

_FAR = 25.0
"""From here on the asymptotic series of order 0 and 1 is exact to rounding."""

_SMALLEST = float(np.finfo(np.float64).tiny)

_POINTS = 128
"""Of the trapezoidal rule over a period, which is exact for integrands of fewer harmonics: about 25 + 30, twice."""


def _quarter() -> tuple[np.ndarray, np.ndarray]:
    """Angles of the first quarter of a period, and their weights in a mean over the whole, which is even in both."""
    angles = np.linspace(0.0, math.pi / 2, _POINTS // 4 + 1)
    weights = np.full(angles.shape, 4.0 / _POINTS)
    weights[[0, -1]] /= 2
    return angles, weights


_ANGLES, _WEIGHTS = _quarter()
_HARMONICS = 24
_SECOND = sum((-1) ** (k + 1) * np.cos(2 * k * _ANGLES) / k for k in range(1, _HARMONICS + 1))
"""Neumann's series of the second kind in functions of the first, summed at each angle."""


def _sum(weights: np.ndarray, terms: Array) -> Array:
    """Over the last axis, on which the points of an integral lie."""
    return jnp.sum(jnp.asarray(weights) * terms, axis=-1)


def _mean(x: Array, order: int, factors: np.ndarray | float = 1.0) -> Array:
    """Mean over a period of ``factors * cos(x sin t)``, for order 1 of ``factors * sin t * sin(x sin t)``."""
    sines = np.sin(_ANGLES)
    across = x[..., None] * jnp.asarray(sines)
    if order == 0:
        return _sum(_WEIGHTS * factors, jnp.cos(across))
    return _sum(_WEIGHTS * factors * sines, jnp.sin(across))


def _hankel(x: Array, order: int) -> tuple[Array, Array, Array]:
    """Of the asymptotic series: amplitude, and the two sums that go with cosine and sine of the phase."""
    ones = jnp.ones_like(x)
    even, odd, term = ones, jnp.zeros_like(x), ones
    for k in range(1, 18):
        term = term * (4 * order * order - (2 * k - 1) ** 2) / (k * 8 * x)
        if k % 2:
            odd = odd + (-1) ** (k // 2) * term
        else:
            even = even + (-1) ** (k // 2) * term
    return jnp.sqrt(2 / (math.pi * x)), even, odd


def _far(x: Array, order: int, second: bool) -> Array:
    """``cos(x - c)`` and ``sin(x - c)`` by the sum formulas: the difference would lose digits of a large ``x``."""
    amplitude, even, odd = _hankel(x, order)
    sine, cosine, root = jnp.sin(x), jnp.cos(x), math.sqrt(0.5)
    shifted_cosine = root * (cosine + sine if order == 0 else sine - cosine)
    shifted_sine = root * (sine - cosine if order == 0 else -(sine + cosine))
    if second:
        return amplitude * (even * shifted_sine + odd * shifted_cosine)
    return amplitude * (even * shifted_cosine - odd * shifted_sine)


def _first_kind(x: Array, order: int) -> Array:
    size = jnp.abs(x)
    near = _mean(jnp.minimum(size, _FAR), order)
    found = jnp.where(size < _FAR, near, _far(jnp.maximum(size, _FAR), order, second=False))
    return jnp.where(x < 0, -found, found) if order else found


def _second_kind(x: Array, order: int) -> Array:
    near = jnp.clip(x, _SMALLEST, _FAR)
    logarithm = (2 / math.pi) * (jnp.log(near) - math.log(2) + np.euler_gamma)
    found = logarithm * _mean(near, order) + (4 / math.pi) * _mean(near, order, _SECOND)
    if order:
        found = found - (2 / math.pi) * _mean(near, 0) / near
    found = jnp.where(x < _FAR, found, _far(jnp.maximum(x, _FAR), order, second=True))
    return jnp.where(x > 0, found, jnp.where(x == 0, -jnp.inf, jnp.nan))


@op(aten.special_bessel_j0.default, kind=Kind.ELEMENTWISE, work=_INTEGRAL)
def bessel_j0(x: Array, *, out: TensorType) -> Array:
    return in_double(lambda a: _first_kind(a, 0), out, x)


@op(aten.special_bessel_j1.default, kind=Kind.ELEMENTWISE, work=_INTEGRAL)
def bessel_j1(x: Array, *, out: TensorType) -> Array:
    return in_double(lambda a: _first_kind(a, 1), out, x)


@op(aten.special_bessel_y0.default, kind=Kind.ELEMENTWISE, work=_INTEGRAL)
def bessel_y0(x: Array, *, out: TensorType) -> Array:
    return in_double(lambda a: _second_kind(a, 0), out, x)


@op(aten.special_bessel_y1.default, kind=Kind.ELEMENTWISE, work=_INTEGRAL)
def bessel_y1(x: Array, *, out: TensorType) -> Array:
    return in_double(lambda a: _second_kind(a, 1), out, x)


_STEPS = np.arange(22) * 0.3
_DECAY = np.where(_STEPS == 0, 0.15, 0.3) * np.exp(-_STEPS * _STEPS)
"""Points, and weights for integrals of ``exp(-u*u)`` times a smooth even function, from zero on."""


def _modified_integral(x: Array, weigh: Callable[[Array], Array]) -> Array:
    """exp(x) times the integral over t from zero on of ``weigh(t) exp(-x cosh t)``, for x of 2 or more.

    With u = sqrt(2x) sinh(t/2) the exponential becomes exp(-u*u).
    """
    scale = jnp.sqrt(2 * x)
    half = jnp.arcsinh(jnp.asarray(_STEPS) / scale[..., None])
    return 2 * _sum(_DECAY, weigh(2 * half) / jnp.cosh(half)) / scale


def _modified_series(x: Array, order: int) -> Array:
    """For x below 2."""
    square = x * x / 4
    term, total = jnp.ones_like(x), jnp.zeros_like(x)
    harmonic = 0.0
    for k in range(18):
        digammas = 2 * (harmonic - np.euler_gamma) + (1 / (k + 1) if order else 0)
        total = total + term * (digammas / 2)
        term = term * square / ((k + 1) * (k + 1 + order))
        harmonic += 1 / (k + 1)
    logarithm = jnp.log(x) - math.log(2)
    if order == 0:
        return total - logarithm * jsp.i0(x)
    return 1 / x + logarithm * jsp.i1(x) - x / 2 * total


def _modified_second_kind(x: Array, order: int, scaled: bool) -> Array:
    near, far = jnp.clip(x, _SMALLEST, 2.0), jnp.maximum(x, 2.0)
    below = _modified_series(near, order) * (jnp.exp(near) if scaled else 1.0)
    above = _modified_integral(far, jnp.ones_like if order == 0 else jnp.cosh)
    found = jnp.where(x <= 2, below, above if scaled else above * jnp.exp(-far))
    return jnp.where(x > 0, found, jnp.where(x == 0, jnp.inf, jnp.nan))


@op(aten.special_modified_bessel_k0.default, kind=Kind.ELEMENTWISE, work=_INTEGRAL)
def modified_bessel_k0(x: Array, *, out: TensorType) -> Array:
    return in_double(lambda a: _modified_second_kind(a, 0, scaled=False), out, x)


@op(aten.special_modified_bessel_k1.default, kind=Kind.ELEMENTWISE, work=_INTEGRAL)
def modified_bessel_k1(x: Array, *, out: TensorType) -> Array:
    return in_double(lambda a: _modified_second_kind(a, 1, scaled=False), out, x)


@op(aten.special_scaled_modified_bessel_k0.default, kind=Kind.ELEMENTWISE, work=_INTEGRAL)
def scaled_modified_bessel_k0(x: Array, *, out: TensorType) -> Array:
    return in_double(lambda a: _modified_second_kind(a, 0, scaled=True), out, x)


@op(aten.special_scaled_modified_bessel_k1.default, kind=Kind.ELEMENTWISE, work=_INTEGRAL)
def scaled_modified_bessel_k1(x: Array, *, out: TensorType) -> Array:
    return in_double(lambda a: _modified_second_kind(a, 1, scaled=True), out, x)


@op(aten.special_spherical_bessel_j0.default, kind=Kind.ELEMENTWISE, work=per_element(flops=10, transcendental=1))
def spherical_bessel_j0(x: Array, *, out: TensorType) -> Array:
    return in_double(_spherical, out, x)


def _spherical(x: Array) -> Array:
    found = jnp.where(x == 0, 1.0, jnp.sin(x) / jnp.where(x == 0, 1.0, x))
    return jnp.where(jnp.isinf(x), 0.0, found)


_AIRY_AT_ZERO = 1 / (3 ** (2 / 3) * math.gamma(2 / 3))
_AIRY_SLOPE = 1 / (3 ** (1 / 3) * math.gamma(1 / 3))


@op(aten.special_airy_ai.default, kind=Kind.ELEMENTWISE, work=_INTEGRAL)
def airy_ai(x: Array, *, out: TensorType) -> Array:
    return in_double(_airy, out, x)


def _airy(x: Array) -> Array:
    """Oscillating by its asymptotic series below -8, its power series up to 2.5, an integral of K above."""
    left, right = jnp.maximum(-x, 8.0), jnp.clip(x, 2.5, 200.0)
    phase = 2 / 3 * right * jnp.sqrt(right)
    decaying = jnp.sqrt(right / 3) / math.pi * jnp.exp(-phase)
    above = decaying * _modified_integral(phase, lambda t: jnp.cosh(t / 3))
    found = jnp.where(x < -8, _airy_far_left(left), jnp.where(x > 2.5, above, _airy_series(jnp.clip(x, -8.0, 2.5))))
    return jnp.where(jnp.isinf(x) | (x != x), jnp.nan, found)


def _airy_series(x: Array) -> Array:
    cube = x * x * x
    even, odd = jnp.ones_like(x), x
    value, slope = even, odd
    for k in range(1, 45):
        even = even * cube / ((3 * k - 1) * (3 * k))
        odd = odd * cube / ((3 * k) * (3 * k + 1))
        value, slope = value + even, slope + odd
    return _AIRY_AT_ZERO * value - _AIRY_SLOPE * slope


def _airy_far_left(size: Array) -> Array:
    phase = 2 / 3 * size * jnp.sqrt(size)
    even, odd, term = jnp.ones_like(size), jnp.zeros_like(size), jnp.ones_like(size)
    for k in range(1, 18):
        term = term * ((6 * k - 5) * (6 * k - 3) * (6 * k - 1) / ((2 * k - 1) * 216 * k)) / phase
        if k % 2:
            odd = odd + (-1) ** (k // 2) * term
        else:
            even = even + (-1) ** (k // 2) * term
    angle = phase - math.pi / 4
    return (jnp.cos(angle) * even + jnp.sin(angle) * odd) / (math.sqrt(math.pi) * jnp.sqrt(jnp.sqrt(size)))
