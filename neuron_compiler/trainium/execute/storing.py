"""How a result is rounded into the type of the memory that it is stored in.

Engines compute in fp32. A store rounds to nearest, ties to even, or stochastically: up or down with the probability
of its distance, so that the mean of many stores is the number itself. Floats become whole numbers by rounding to
nearest, what is out of range the nearest that there is, NaN zero; no public source states that, it is assumed.
"""

from __future__ import annotations

import numpy as np

from neuron_compiler import dtypes
from neuron_compiler.ir.graph import DType

_TF32_DROPPED_BITS = 13


class Rounding:
    """How one run rounds what it stores.

    Args:
        stochastic: as the runtime's NEURON_RT_STOCHASTIC_ROUNDING_EN does it, for floats narrower than fp32.
        seed: of the stream of random numbers.
    """

    def __init__(self, stochastic: bool = False, seed: int = 0) -> None:
        self.generator = np.random.Generator(np.random.Philox(seed)) if stochastic else None

    def __call__(self, x: np.ndarray, dtype: DType) -> np.ndarray:
        """``x`` as an array of the numpy type that ``dtype`` lies in."""
        target = dtypes.to_numpy(dtype)
        if dtype is DType.TF32:
            return _to_tf32(x.astype(np.float32))
        if x.dtype == target:
            return x
        if dtype is DType.BOOL:
            return x != 0
        if dtype.is_integer:
            return _to_whole(x, target)
        if self.generator is None or dtype.itemsize >= DType.F32.itemsize:
            with np.errstate(over="ignore", invalid="ignore"):
                return x.astype(target)
        return _stochastic(x.astype(np.float32), target, self.generator)


def _to_whole(x: np.ndarray, target: np.dtype) -> np.ndarray:
    if x.dtype.kind in "iub":
        return x.astype(target)  # keeps the low bits
    limits = np.iinfo(target)
    whole = np.rint(np.nan_to_num(x.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf))
    return np.clip(whole, limits.min, limits.max).astype(target)


def _to_tf32(x: np.ndarray) -> np.ndarray:
    bits = x.view(np.uint32)
    half = np.uint32((1 << (_TF32_DROPPED_BITS - 1)) - 1)
    even = (bits >> np.uint32(_TF32_DROPPED_BITS)) & np.uint32(1)
    rounded = ((bits + half + even) & np.uint32(~((1 << _TF32_DROPPED_BITS) - 1) & 0xFFFFFFFF)).view(np.float32)
    return np.where(np.isfinite(x), rounded, x)


def _stochastic(x: np.ndarray, target: np.dtype, generator: np.random.Generator) -> np.ndarray:
    """The neighbour below or above, by chance; what has no neighbour, or is one, is rounded to nearest."""
    with np.errstate(over="ignore", invalid="ignore"):
        near = x.astype(target)
    near_value = near.astype(np.float32)
    # A zero takes the sign of the number, so that one step away from zero is the neighbour on its side.
    bits = np.copysign(near_value, x).astype(target).view(np.dtype(f"u{target.itemsize}"))
    outward = np.abs(near_value) < np.abs(x)
    other = np.where(outward, bits + bits.dtype.type(1), bits - bits.dtype.type(1)).astype(bits.dtype).view(target)
    other_value = other.astype(np.float32)
    with np.errstate(invalid="ignore", divide="ignore"):
        chance = np.abs(x - near_value) / np.abs(other_value - near_value)
    inexact = np.isfinite(near_value) & (near_value != x)
    taken = inexact & (generator.random(x.shape, np.float32) < chance)
    return np.where(taken, other, near)
