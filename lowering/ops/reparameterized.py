"""How a random draw changes with the parameter of its distribution.

ATen approximates the derivative of a gamma sample in three ranges; so does this, in double precision as there, since
the exact derivative would differ from ATen's by more than a rounding.
"""

from __future__ import annotations

import jax.numpy as jnp
import torch
from jax import lax

from neuron_compiler.ir.graph import TensorType
from neuron_compiler.lowering.numeric import Array
from neuron_compiler.lowering.ops.special import in_double
from neuron_compiler.opdef import Kind, op, per_element

aten = torch.ops.aten

SMALL, LARGE = 0.8, 8.0
"""Samples below the one are in the first range, shapes above the other in the second."""

# From PyTorch's Distributions.h: rows by the power of the logarithm of sample over shape, columns by that of shape's.
_NUMERATOR = (
    (0.16009398, -0.094634809, 0.025146376, -0.0030648343),
    (0.53487893, 0.1298071, 0.065735949, -0.0015649758),
    (0.040121004, -0.0065914022, -0.0026286047, -0.0013441777),
)
_DENOMINATOR = (
    (1.0, 0.32668115, 0.10406089, 0.0014179084),
    (0.16639465, 0.020070113, -0.0035938915, -0.00058392623),
    (0.017050642, -0.0021309326, 0.00085092367, -1.5247877e-07),
)


def _polynomial(table: tuple[tuple[float, ...], ...], u: Array, v: Array) -> Array:
    rows = [sum(c * v**power for power, c in enumerate(row)) for row in table]
    return rows[0] + u * (rows[1] + u * rows[2])


def _by_series(shape: Array, x: Array) -> Array:
    """Taylor series of the distribution function and of its derivative by the shape."""
    term, first, second = jnp.ones_like(x), 1 / shape, 1 / (shape * shape)
    for n in range(1, 6):
        term = term * -x / n
        first, second = first + term / (shape + n), second + term / ((shape + n) * (shape + n))
    power = jnp.power(x, shape)
    change = (jnp.log(x) - lax.digamma(shape)) * power * first - power * second
    found = -change / (jnp.power(x, shape - 1) * jnp.exp(-x))
    return jnp.where(jnp.isnan(found), 0.0, found)


def _by_saddle_point(shape: Array, x: Array) -> Array:
    """Rice's expansion, and near its pole, where the sample is the shape, a polynomial."""
    square = shape * shape
    near = (1 + 24 * shape * (1 + 12 * shape)) * (
        1440 * square + 6 * x * (53 - 120 * x) - 65 * x * x / shape + shape * (107 + 3600 * x)
    )
    root, ratio = jnp.sqrt(8 * shape), jnp.log(x / shape)
    apart, curve = root / (shape - x), jnp.power(x - shape - shape * ratio, -1.5)
    slope = ratio * jnp.where(x < shape, apart - curve, apart + curve)
    slope = slope - jnp.sqrt(2 / shape) * (shape + x) / ((shape - x) * (shape - x))
    stirling = 1 + 1 / (12 * shape) * (1 + 1 / (24 * shape))
    is_near = (0.9 * shape <= x) & (x <= 1.1 * shape)
    return jnp.where(is_near, near / (1244160 * square * square), -stirling * x * slope / root)


def _between(shape: Array, x: Array) -> Array:
    u, v = jnp.log(x / shape), jnp.log(shape)
    return jnp.exp(_polynomial(_NUMERATOR, u, v) / _polynomial(_DENOMINATOR, u, v))


def _gamma_slope(shape: Array, x: Array) -> Array:
    rest = jnp.where(shape > LARGE, _by_saddle_point(shape, x), _between(shape, x))
    return jnp.where(x < SMALL, _by_series(shape, x), rest)


@op(aten._standard_gamma_grad.default, kind=Kind.ELEMENTWISE, work=per_element(flops=80, transcendental=12))
def standard_gamma_grad(shape: Array, sample: Array, *, out: TensorType) -> Array:
    return in_double(_gamma_slope, out, shape, sample)
