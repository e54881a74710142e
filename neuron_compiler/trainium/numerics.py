"""The chip's arithmetic: in which type an engine computes, in which it accumulates, and how it rounds.

Every engine converts its operands to fp32, computes, and rounds its result to the type it is stored in; TensorE
multiplies what it is given and accumulates in fp32. What has no place on the chip (64-bit types) is computed as such on
the host. Plain functions over anything that has ``astype`` and ``dtype``: numpy's arrays and jax's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from neuron_compiler import dtypes
from neuron_compiler.ir.graph import DType


def compute_type(dtype: DType) -> DType:
    """The type that an engine computes in for a result of ``dtype``: fp32 for narrower floats, else the type itself."""
    return DType.F32 if dtype.is_floating and dtype.itemsize < DType.F32.itemsize else dtype


def accumulation_type(dtype: DType) -> DType:
    """The type that products of ``dtype`` are summed in: fp32 in PSUM; 64-bit floats and integers as they are.

    Integers wrap to the same value whether they wrap at each step or at the end, so their own type is exact.
    """
    return compute_type(dtype)


def round_to(x: Any, dtype: DType) -> Any:
    """A result rounded to the nearest value of ``dtype``, ties to even, as it is written to SBUF or PSUM.

    ``x`` holds floats and ``dtype`` is a float type, or both are the same; conversions to integers are the cast's.
    """
    target = dtypes.to_numpy(dtype)
    return x if x.dtype == target else x.astype(target)


def lowest_integer_bits(dtype: DType) -> DType:
    """The integer type that a float is truncated to on its way to ``dtype``, which then keeps the low bits."""
    wide = dtype in (DType.I64, DType.U64, DType.U32)
    return DType.I64 if wide else DType.I32


def integer_range(dtype: DType) -> tuple[float, float]:
    """The floats that truncate into a signed integer type: from the first, up to but not including the second."""
    bits = 8 * dtype.itemsize
    return -(2.0 ** (bits - 1)), 2.0 ** (bits - 1)


def promoted(a: DType, b: DType) -> DType:
    """The type that two tensors of these types are compared or combined in."""
    if a is b:
        return a
    if _category(a) != _category(b):
        return max(a, b, key=_category)
    if a.is_floating:
        wider = max(a, b, key=lambda d: d.itemsize)
        return wider if a.itemsize != b.itemsize else DType.F32  # fp16 and bf16
    found = np.promote_types(dtypes.to_numpy(a), dtypes.to_numpy(b))
    return DType.I64 if found.kind == "f" else dtypes.from_numpy(found)


def _category(dtype: DType) -> int:
    return 0 if dtype is DType.BOOL else 1 if dtype.is_integer else 2 if dtype.is_floating else 3
