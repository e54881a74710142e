"""Element types inside rules: PyTorch's promotion, and the precision an op computes in.

Rules see jax arrays and Python scalars. jax's own promotion differs from PyTorch's, so a rule casts its operands
itself, computes, and casts to its result type; the emitter checks that type. Two more things are restored here:
ATen's conversions between element types, and the order of floating-point operations, which XLA's algebraic
simplifier changes even without fast-math (``(x + 1e8) - 1e8`` becomes ``x``).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from neuron_compiler import dtypes
from neuron_compiler.ir.graph import DType, TensorType

Array = jax.Array
Scalar = bool | int | float | complex


def is_array(x: object) -> bool:
    return isinstance(x, jax.Array)


def dtype_of(x: Array) -> DType:
    return dtypes.from_numpy(x.dtype)


def constant(value: Scalar, dtype: DType) -> Array:
    """A Python scalar as a 0-dim array, with ATen's conversion of it.

    XLA's simplifier folds chains of operations with constants (``(x * 1e30) * 1e-30`` becomes ``x``, ``x / 3`` becomes
    ``x * 0.333``) unless it cannot see that they are constants. The barrier is on the scalar alone, so it hinders
    neither fusion nor the code generator, which sees the constant again.
    """
    target = dtypes.to_numpy(dtype)
    if dtype is DType.BOOL:
        return jnp.asarray(bool(value), dtype=target)
    if dtype.is_integer:
        whole = int(value.real if isinstance(value, complex) else value)
        return jnp.asarray(np.array(whole & (2 ** (8 * dtype.itemsize) - 1), np.uint64).astype(target))
    if dtype.is_floating and isinstance(value, complex):
        value = value.real
    with np.errstate(over="ignore"):
        wide = np.asarray(value, dtype=np.complex128 if dtype.is_complex else np.float64)
        if _is_small_float(dtype):
            wide = wide.astype(np.float32)  # as c10's conversions do: through float
        exact = jnp.asarray(wide.astype(target))
    return lax.optimization_barrier(exact)


def sealed(x: Array) -> Array:
    """The array unchanged, behind something that XLA's simplifier cannot see through.

    It rewrites pairs of operations whatever their operands (``exp(a) * exp(b)`` to ``exp(a + b)``, ``log(exp(a))`` to
    ``a``, ``(a / b) / c`` to ``a / (b * c)``), which overflow elsewhere than PyTorch's. The code generator drops the
    multiplication by one. Complex numbers stay as they are: multiplied by one, infinities would turn into NaN.
    """
    return x if dtype_of(x).is_complex else x * constant(1.0, dtype_of(x))


def quotient(a: Array, b: Array) -> Array:
    """``a / b``, rounded once. XLA divides by a broadcast scalar by multiplying with its rounded inverse."""
    shape = jnp.broadcast_shapes(a.shape, b.shape)
    return sealed(a / lax.optimization_barrier(jnp.broadcast_to(b, shape)))


def cast(x: Any, dtype: DType) -> Array:
    """The array or Python scalar in another element type, with PyTorch's meaning of the conversion.

    XLA saturates out-of-range floats and maps NaN to 0 when it converts to an integer; ATen on x86 truncates through
    int32 (int64 for int64 and the wide unsigned types), with the lowest integer for what does not fit, and wraps from
    there. Floats wider than 32 bits reach half precision through float32. Complex to real takes the real part.
    """
    if not is_array(x):
        return constant(x, dtype)
    source = dtype_of(x)
    if source is dtype:
        return x
    if dtype is DType.BOOL:
        return x != jnp.zeros((), x.dtype)
    if source.is_complex and not dtype.is_complex:
        return cast(x.real, dtype)
    if source.is_floating and dtype.is_integer:
        return _float_to_integer(x, dtype)
    if _is_small_float(source) or (_is_small_float(dtype) and source is not DType.F32):
        x = x.astype(np.float32)
    if dtype is DType.F8E8M0FNU:
        return _nearest_power_of_two(x)
    if dtype is DType.F8E4M3FN:
        limit = jnp.copysign(np.float32(448), x)  # ATen saturates here, infinities too; XLA gives NaN
        x = jnp.where(jnp.abs(x) > 448, limit, x)
    if dtype is DType.BF16:
        # XLA's library kernels for sums (YNN) drop a conversion to bfloat16 and back, whatever the options say.
        x = lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)
    if dtype is DType.F16:
        x = _rounded_to_half(x)
    return x.astype(dtypes.to_numpy(dtype))


def _rounded_to_half(x: Array) -> Array:
    """float32 rounded to what float16 holds, in a way that the code generator cannot undo.

    For processors that compute with halves it makes one instruction of a product, its rounding and a sum (AVX512-FP16),
    in which the product is not rounded. XLA's own rounding loses float16's subnormals, which are multiples of 2^-24.
    """
    steps = constant(0.75, DType.F32)  # from 0.5 to 1, float32's own steps are 2^-24
    subnormal = jnp.copysign((x + steps) - steps, x)
    normal = lax.reduce_precision(x, exponent_bits=5, mantissa_bits=10)
    return jnp.where(jnp.abs(x) < np.float32(2.0**-14), subnormal, normal)


def _is_small_float(dtype: DType) -> bool:
    return dtype.is_floating and dtype.itemsize < 4


def _nearest_power_of_two(x: Array) -> Array:
    """float32 as its exponent alone, without regard to sign; zero becomes the lowest power, as in ATen."""
    bits = lax.bitcast_convert_type(x, np.uint32)
    exponent = (bits >> 23) & 0xFF
    half, rest = (bits & 0x400000) != 0, (bits & 0x3FFFFF) != 0
    up = half & (rest | (exponent > 0)) & (exponent < 0xFF)
    return lax.bitcast_convert_type((exponent + up).astype(np.uint8), dtypes.to_numpy(DType.F8E8M0FNU))


def _float_to_integer(x: Array, dtype: DType) -> Array:
    """Truncation as x86's conversion instructions do it, then wrap-around to the narrower type."""
    if dtype_of(x).itemsize < 4:
        x = x.astype(np.float32)
    if dtype is DType.U64:
        top = jnp.asarray(2.0**63, x.dtype)
        high = (x - top).astype(np.int64).astype(np.uint64) + jnp.asarray(2**63, np.uint64)
        return jnp.where(x >= top, high, _truncated(x, np.int64).astype(np.uint64))
    through = np.int64 if dtype in (DType.I64, DType.U32) else np.int32
    return _truncated(x, through).astype(dtypes.to_numpy(dtype))


def _truncated(x: Array, integer: type[np.signedinteger[Any]]) -> Array:
    """``cvttss2si``: XLA saturates, so only what is too high, and NaN, must be put right."""
    info = np.iinfo(integer)
    fits = x < jnp.asarray(2.0 ** (info.bits - 1), x.dtype)
    return jnp.where(fits, x.astype(integer), jnp.asarray(info.min, integer))


def promote_types(a: DType, b: DType) -> DType:
    """PyTorch's lattice of element types, without regard to ranks."""
    return dtypes.from_torch(torch.promote_types(dtypes.to_torch(a), dtypes.to_torch(b)))


_COMPLEX_OF = {DType.BF16: DType.C64, DType.F32: DType.C64, DType.F64: DType.C128}


def _combined(higher: DType | None, lower: DType | None) -> DType | None:
    """The type of two classes of operands, of which the first goes before the second within a category."""
    if higher is None or lower is None:
        return lower if higher is None else higher
    if higher.is_complex:
        return higher
    if higher.is_floating:
        return _COMPLEX_OF[higher] if lower.is_complex else higher
    if higher is DType.BOOL or lower.is_floating or lower.is_complex:
        return promote_types(higher, lower)
    return higher


def _scalar_dtype(value: Scalar) -> DType:
    if isinstance(value, complex):
        return promote_types(dtypes.from_torch(torch.get_default_dtype()), DType.C64)
    if isinstance(value, float):
        return dtypes.from_torch(torch.get_default_dtype())
    return DType.BOOL if isinstance(value, bool) else DType.I64


def result_dtype(*operands: Any) -> DType:
    """``torch.result_type`` of arrays and Python scalars.

    Tensors with dimensions go before 0-dim tensors, which go before Python scalars, unless a later class is of a
    higher category (bool, integer, float, complex).
    """
    classes: list[DType | None] = [None, None, None]
    for x in operands:
        if x is None:
            continue
        place = 2 if not is_array(x) else 0 if x.ndim else 1
        own = dtype_of(x) if is_array(x) else _scalar_dtype(x)
        held = classes[place]
        classes[place] = own if held is None else promote_types(held, own)
    dims, zeros, scalars = classes
    found = _combined(dims, _combined(zeros, scalars))
    if found is None:
        raise TypeError("no operand has a type")
    return found


def widened(dtype: DType) -> DType:
    """The type ATen's CPU kernels compute in: half precisions in float32, the rest as they are."""
    return DType.F32 if _is_small_float(dtype) else dtype


def widen(x: Array) -> Array:
    """The array in the type that its op computes in; only the op's result is rounded back."""
    return cast(x, widened(dtype_of(x)))


def scalar(value: Scalar, like: Array) -> Array:
    """A Python scalar as a 0-dim array of ``like``'s type."""
    return constant(value, dtype_of(like))


def narrow(x: Any, out: TensorType) -> Array:
    """A result rounded to the op's recorded type."""
    return cast(x, out.dtype)


def rounded(x: Array, dtype: DType) -> Array:
    """``x`` rounded to a narrower type, in its own type: a step that ATen computes in the narrower one."""
    return cast(cast(x, dtype), dtype_of(x))


def working(out: TensorType, *operands: Any) -> tuple[Array, ...]:
    """The operands in the type that an op of this result type computes in.

    ATen brings them to the result's type first: a number and a 0-dim tensor of a wider type are rounded to it.
    """
    return tuple(cast(_rounded(x, out.dtype), widened(out.dtype)) for x in operands)


def working_with_exact_factor(out: TensorType, x: Any, factor: Any) -> tuple[Array, Array]:
    """``working`` for products and quotients: ATen does not round the second operand where it is a number or 0-dim."""
    (a,) = working(out, x)
    return a, cast(factor, widened(out.dtype))


def _rounded(x: Any, dtype: DType) -> Any:
    """A number or a 0-dim tensor in a narrow type that it was not in; everything else as it is."""
    wide = not is_array(x) or (x.ndim == 0 and dtype_of(x) is not dtype)
    return cast(x, dtype) if wide and _is_small_float(dtype) else x


def is_float(x: Array) -> bool:
    """Whether the elements are floating-point numbers: not integer, not complex."""
    return dtype_of(x).is_floating


def dims_of(dim: Any, rank: int) -> tuple[int, ...]:
    """PyTorch's ``dim`` argument (None, int, tuple; negative counts from the end) as sorted axes.

    None and the empty tuple mean all dimensions.
    """
    if dim is None or dim == ():
        return tuple(range(rank))
    given = (dim,) if isinstance(dim, int) else tuple(dim)
    return tuple(sorted(d % rank if rank else 0 for d in given)) if rank else ()
