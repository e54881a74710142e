"""Elements of a constant: raw little-endian bytes to Python numbers and back.

Only types whose every finite value Python can hold are read; the 8-bit floats are not, and stay bytes.
``pack(dtype, unpack(dtype, data)) == data`` unless ``data`` holds a NaN with a payload or a bool that is not 0 or 1.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from neuron_compiler.ir.graph import DType

Number: TypeAlias = bool | int | float | complex

_CODES: Mapping[DType, str] = {
    DType.BOOL: "?",
    DType.U8: "B",
    DType.U16: "H",
    DType.U32: "I",
    DType.U64: "Q",
    DType.I8: "b",
    DType.I16: "h",
    DType.I32: "i",
    DType.I64: "q",
    DType.F16: "e",
    DType.F32: "f",
    DType.F64: "d",
    DType.C64: "f",
    DType.C128: "d",
}


def unpack(dtype: DType, data: bytes) -> tuple[Number, ...] | None:
    """The elements, or None for a type that has no Python number or for bytes that are not whole elements."""
    if len(data) % dtype.itemsize:
        return None
    count = len(data) // dtype.itemsize
    if dtype is DType.BF16:
        halves = struct.unpack(f"<{count}H", data)
        return struct.unpack(f"<{count}f", struct.pack(f"<{count}I", *(half << 16 for half in halves)))
    if dtype not in _CODES:
        return None
    if dtype.is_complex:
        parts = struct.unpack(f"<{2 * count}{_CODES[dtype]}", data)
        return tuple(complex(re, im) for re, im in zip(parts[::2], parts[1::2], strict=True))
    return struct.unpack(f"<{count}{_CODES[dtype]}", data)


def pack(dtype: DType, values: Sequence[Number]) -> bytes:
    """The elements as bytes, floats rounded to nearest; raises ValueError for a value that the type cannot hold."""
    try:
        if dtype is DType.BOOL:
            if not all(isinstance(v, bool) for v in values):
                raise ValueError(f"{next(v for v in values if not isinstance(v, bool))!r} is not true or false")
            return struct.pack(f"<{len(values)}?", *values)
        if dtype is DType.BF16:
            return struct.pack(f"<{len(values)}H", *map(_bfloat16, values))
        if dtype not in _CODES:
            raise ValueError(f"elements of {dtype.value} are given as bytes only")
        if dtype.is_complex:
            values = [part for v in values for part in (complex(v).real, complex(v).imag)]
        return struct.pack(f"<{len(values)}{_CODES[dtype]}", *values)
    except (struct.error, OverflowError, TypeError) as error:
        raise ValueError(f"{list(values)} does not fit {dtype.value}: {error}") from None


def _bfloat16(value: Number) -> int:
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    if value != value:
        return int(bits >> 16)
    return int((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)


def shortest(dtype: DType, value: float) -> float:
    """The float of fewest digits that rounds to ``value`` in ``dtype``: f32 0.1 prints as 0.1; whole numbers stay."""
    if dtype is DType.F64 or value != value or (abs(value) < 2**24 and value == int(value)):
        return value
    data = pack(dtype, (value,))
    for digits in range(1, 10):
        short = float(f"{value:.{digits}g}")
        try:
            if pack(dtype, (short,)) == data:
                return short
        except ValueError:  # rounded up past the largest finite value
            continue
    return value
