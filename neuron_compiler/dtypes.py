"""The one table between torch, numpy (jax) and IR element types. An unknown dtype is an error, never a default."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import ml_dtypes
import numpy as np
import torch

from neuron_compiler.errors import CaptureError
from neuron_compiler.ir.graph import DType, TensorType

TORCH: Mapping[torch.dtype, DType] = {
    torch.bool: DType.BOOL,
    torch.uint8: DType.U8,
    torch.uint16: DType.U16,
    torch.uint32: DType.U32,
    torch.uint64: DType.U64,
    torch.int8: DType.I8,
    torch.int16: DType.I16,
    torch.int32: DType.I32,
    torch.int64: DType.I64,
    torch.float8_e4m3fn: DType.F8E4M3FN,
    torch.float8_e4m3fnuz: DType.F8E4M3FNUZ,
    torch.float8_e5m2: DType.F8E5M2,
    torch.float8_e5m2fnuz: DType.F8E5M2FNUZ,
    torch.float8_e8m0fnu: DType.F8E8M0FNU,
    torch.float16: DType.F16,
    torch.bfloat16: DType.BF16,
    torch.float32: DType.F32,
    torch.float64: DType.F64,
    torch.complex64: DType.C64,
    torch.complex128: DType.C128,
}
_TO_TORCH = {dtype: torch_dtype for torch_dtype, dtype in TORCH.items()}

_NUMPY: Mapping[DType, np.dtype] = {
    DType.BOOL: np.dtype(np.bool_),
    DType.U8: np.dtype(np.uint8),
    DType.U16: np.dtype(np.uint16),
    DType.U32: np.dtype(np.uint32),
    DType.U64: np.dtype(np.uint64),
    DType.I8: np.dtype(np.int8),
    DType.I16: np.dtype(np.int16),
    DType.I32: np.dtype(np.int32),
    DType.I64: np.dtype(np.int64),
    DType.F8E3M4: np.dtype(ml_dtypes.float8_e3m4),
    DType.F8E4M3: np.dtype(ml_dtypes.float8_e4m3),
    DType.F8E4M3FN: np.dtype(ml_dtypes.float8_e4m3fn),
    DType.F8E4M3FNUZ: np.dtype(ml_dtypes.float8_e4m3fnuz),
    DType.F8E5M2: np.dtype(ml_dtypes.float8_e5m2),
    DType.F8E5M2FNUZ: np.dtype(ml_dtypes.float8_e5m2fnuz),
    DType.F8E8M0FNU: np.dtype(ml_dtypes.float8_e8m0fnu),
    DType.F16: np.dtype(np.float16),
    DType.BF16: np.dtype(ml_dtypes.bfloat16),
    DType.F32: np.dtype(np.float32),
    DType.F64: np.dtype(np.float64),
    DType.C64: np.dtype(np.complex64),
    DType.C128: np.dtype(np.complex128),
}
_FROM_NUMPY = {numpy_dtype: dtype for dtype, numpy_dtype in _NUMPY.items()}
# Numbers of TF32 are those of float32 with 13 bits zero; no numpy dtype says so.
_IN_FLOAT32 = (DType.TF32,)


def from_torch(dtype: torch.dtype) -> DType:
    """The IR element type of a torch dtype; raises CaptureError for those that have none (quantised, sub-byte)."""
    try:
        return TORCH[dtype]
    except KeyError:
        raise CaptureError(f"{dtype} has no IR element type", hint=f"known: {', '.join(map(str, TORCH))}") from None


def to_torch(dtype: DType) -> torch.dtype:
    """The torch dtype; raises CaptureError for a type that only the chip has."""
    try:
        return _TO_TORCH[dtype]
    except KeyError:
        raise CaptureError(f"{dtype.value} is a type of the chip alone; PyTorch has none") from None


def to_numpy(dtype: DType) -> np.dtype:
    """The numpy dtype, which is also jax's; bf16 and fp8 are ml_dtypes' extension types, TF32 lies in float32."""
    return _NUMPY[DType.F32 if dtype in _IN_FLOAT32 else dtype]


@cache
def from_numpy(dtype: np.dtype) -> DType:
    try:
        return _FROM_NUMPY[np.dtype(dtype)]
    except KeyError:
        raise CaptureError(f"numpy dtype {dtype} has no IR element type") from None


def type_of(tensor: torch.Tensor, shape: tuple[int, ...] | None = None) -> TensorType:
    """IR type of a (fake) tensor; ``shape`` overrides its symbolic one."""
    return TensorType(tuple(map(int, tensor.shape)) if shape is None else shape, from_torch(tensor.dtype))
