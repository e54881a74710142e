"""Element types inside rules: PyTorch's promotion, and the precision an op computes in.

Rules see jax arrays and Python scalars. jax's own promotion differs from PyTorch's, so a rule casts its operands
itself, computes, and casts to its result type; the emitter checks that type.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import torch

from neuron_compiler import dtypes
from neuron_compiler.ir.graph import DType, TensorType

Array = jax.Array
Scalar = bool | int | float | complex


def is_array(x: object) -> bool:
    return isinstance(x, jax.Array)


def dtype_of(x: Array) -> DType:
    return dtypes.from_numpy(x.dtype)


def cast(x: Any, dtype: DType) -> Array:
    """The array or Python scalar in another element type, with PyTorch's meaning of the conversion.

    XLA saturates out-of-range floats and maps NaN to 0 when it converts to an integer; ATen on x86 truncates through
    int64 instead, so the common narrow types wrap. Complex to real takes the real part.
    """
    target = dtypes.to_numpy(dtype)
    if not is_array(x):
        return jnp.asarray(x, dtype=target)
    source = dtype_of(x)
    if source is dtype:
        return x
    if source.is_complex and not dtype.is_complex and dtype is not DType.BOOL:
        x, source = x.real, dtype_of(x.real)
    if dtype is DType.BOOL:
        return x != 0
    return x.astype(target)


def promote_types(a: DType, b: DType) -> DType:
    """PyTorch's lattice of element types, without regard to ranks."""
    return dtypes.from_torch(torch.promote_types(dtypes.to_torch(a), dtypes.to_torch(b)))


_SCALAR_RANK = (bool, int, float, complex)


def _category(dtype: DType) -> int:
    return 0 if dtype is DType.BOOL else 1 if dtype.is_integer else 2 if dtype.is_floating else 3


def result_dtype(*operands: Any) -> DType:
    """``torch.result_type`` of arrays and Python scalars (default dtype float32).

    Tensors with dimensions go before 0-dim tensors, which go before Python scalars, unless a later class is of a
    higher category (bool, integer, float, complex).
    """
    dims: DType | None = None
    zeros: DType | None = None
    scalars: DType | None = None
    for x in operands:
        if x is None:
            continue
        if is_array(x):
            if x.ndim:
                dims = dtype_of(x) if dims is None else promote_types(dims, dtype_of(x))
            else:
                zeros = dtype_of(x) if zeros is None else promote_types(zeros, dtype_of(x))
        else:
            own = {bool: DType.BOOL, int: DType.I64, float: DType.F32, complex: DType.C64}[type(x)]
            scalars = own if scalars is None else promote_types(scalars, own)
    found: DType | None = None
    for candidate in (dims, zeros, scalars):
        if candidate is None:
            continue
        if found is None:
            found = candidate
        elif _category(candidate) > _category(found):
            found = promote_types(found, candidate) if candidate.is_complex and found.is_floating else candidate
    if found is None:
        raise TypeError("no operand has a type")
    return found


def widened(dtype: DType) -> DType:
    """The type ATen's CPU kernels compute in: half precisions in float32, the rest as they are."""
    return DType.F32 if dtype.is_floating and dtype.itemsize < 4 else dtype


def widen(x: Array) -> Array:
    """The array in the type that its op computes in; only the op's result is rounded back."""
    return cast(x, widened(dtype_of(x)))


def scalar(value: Scalar, like: Array) -> Array:
    """A Python scalar as a 0-dim array of ``like``'s type."""
    return jnp.asarray(value, dtype=like.dtype)


def narrow(x: Any, out: TensorType) -> Array:
    """A result rounded to the op's recorded type."""
    return cast(x, out.dtype)


def dims_of(dim: Any, rank: int) -> tuple[int, ...]:
    """PyTorch's ``dim`` argument (None, int, tuple; negative counts from the end) as sorted axes.

    None and the empty tuple mean all dimensions.
    """
    if dim is None or dim == ():
        return tuple(range(rank))
    given = (dim,) if isinstance(dim, int) else tuple(dim)
    return tuple(sorted(d % rank if rank else 0 for d in given)) if rank else ()
