"""Exponentials, logarithms and the inverse root over the whole range of their type, subnormal numbers included.

XLA's own give zero for an exponential below the smallest normal number, take the logarithm of no smaller one, and an
infinite inverse root of what is smaller.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from neuron_compiler.lowering.numeric import Array, sealed

_UP = 24
"""Powers of two that lift a subnormal float32 among the normal ones."""


def exp(x: Array) -> Array:
    """e to the power of real or complex numbers."""
    return _lowest_as_square(jnp.exp, x, _ln(x.dtype))


def exp2(x: Array) -> Array:
    """2 to the power of real numbers."""
    return _lowest_as_square(jnp.exp2, x, np.finfo(x.dtype).minexp + 1)


def log(x: Array) -> Array:
    """Natural logarithm of real or complex numbers."""
    return _lowest_lifted(jnp.log, x, _UP * math.log(2))


def log2(x: Array) -> Array:
    """Logarithm to base 2 of real or complex numbers."""
    return _lowest_lifted(jnp.log2, x, _UP)


def log10(x: Array) -> Array:
    """Logarithm to base 10 of real or complex numbers."""
    return _lowest_lifted(jnp.log10, x, _UP * math.log10(2))


def rsqrt(x: Array) -> Array:
    """1 / sqrt of real or complex numbers, as ATen computes it: a root and a quotient."""
    return 1 / sealed(jnp.sqrt(x))


def _ln(dtype: np.dtype) -> float:
    """Above the logarithm of the smallest normal number."""
    return (np.finfo(dtype).minexp + 1) * math.log(2)


def _lowest_as_square(power: Callable[[Array], Array], x: Array, limit: float) -> Array:
    """``power(x)``; below ``limit`` as the square of the power of half of it, which is exact."""
    if jnp.iscomplexobj(x):
        return power(x)
    low = x < jnp.asarray(limit, x.dtype)
    found = sealed(power(jnp.where(low, x / 2, x)))
    return jnp.where(low, found * found, found)


def _lowest_lifted(logarithm: Callable[[Array], Array], x: Array, lifted: float) -> Array:
    """``logarithm(x)``; of a subnormal float32, that of a larger number, less the difference of the two."""
    if x.dtype != np.float32:
        return logarithm(x)
    low = x < np.finfo(x.dtype).smallest_normal
    found = logarithm(jnp.where(low, x * np.float32(2.0**_UP), x))
    return jnp.where(low, found - np.float32(lifted), found)
