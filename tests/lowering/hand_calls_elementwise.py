"""Calls that the op database does not make, of elementwise ops, views and creation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch._inductor.inductor_prims  # declares prims.fma

Call = tuple[tuple[Any, ...], dict[str, Any]]

FLOATS = (torch.float32, torch.bfloat16, torch.float64)
INTEGERS = (torch.int64, torch.uint8, torch.int16)


def _x(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    count = 1
    for size in shape:
        count *= size
    return (torch.arange(count).reshape(shape) % 7 - 3).to(dtype)


def _each(dtypes: tuple[torch.dtype, ...], *scalars: Any, **kwargs: Any) -> tuple[Call, ...]:
    return tuple(((_x(3, 4, dtype=d), *scalars), kwargs) for d in dtypes)


def _bits(*scalars: Any) -> tuple[Call, ...]:
    return _each((*INTEGERS, torch.int32), *scalars)


def _scalar_first(scalar: Any, dtypes: tuple[torch.dtype, ...] = FLOATS) -> tuple[Call, ...]:
    return tuple(((scalar, _x(3, 4, dtype=d) + 4), {}) for d in dtypes)


def _shifts() -> Iterator[Call]:
    for dtype in (*INTEGERS, torch.int32, torch.int8):
        yield (_x(5, 1, dtype=dtype) * 13, torch.tensor([0, 1, 7, 8, 31, 63], dtype=dtype)), {}


def _divisions(*modes: str | None) -> tuple[Call, ...]:
    return tuple(
        ((_x(3, 4, dtype=d), s), {"rounding_mode": m}) for d in (*FLOATS, *INTEGERS) for s in (2, 3) for m in modes
    )


def _reinterpreted() -> Iterator[Call]:
    """Element types of the same, half and double size."""
    for source, target in (
        (torch.float32, torch.int32),
        (torch.float32, torch.int16),
        (torch.int16, torch.float32),
        (torch.uint8, torch.int64),
        (torch.int8, torch.uint8),
        (torch.int64, torch.bool),
        (torch.bfloat16, torch.float16),
    ):
        yield (_x(3, 8, dtype=source), target), {}
    yield (_x(3, 8) > 0, torch.uint8), {}


_WINDOWS = ("bartlett", "hamming", "hann", "blackman", "kaiser")


def _windows() -> dict[str, tuple[Call, ...]]:
    lengths = (0, 1, 2, 7, 8)
    return {
        "default": tuple(((n,), {}) for n in lengths),
        "periodic": tuple(((n, p), {"dtype": torch.float64}) for n in lengths for p in (False, True)),
    }


CALLS: dict[str, tuple[Call, ...]] = {
    "aten.__lshift__.Scalar": _each((torch.int64, torch.uint8), 3),
    "aten.__lshift__.Tensor": tuple(_shifts()),
    "aten.__rshift__.Scalar": _each((torch.int64, torch.uint8), 1),
    "aten.__rshift__.Tensor": tuple(_shifts()),
    "aten.bitwise_left_shift.Tensor": tuple(_shifts()),
    "aten.bitwise_right_shift.Tensor": tuple(_shifts()),
    "aten.bitwise_left_shift.Tensor_Scalar": _bits(3),
    "aten.bitwise_left_shift.Scalar_Tensor": _scalar_first(5, (torch.int64, torch.int16)),
    "aten.bitwise_right_shift.Tensor_Scalar": _bits(2),
    "aten.bitwise_right_shift.Scalar_Tensor": _scalar_first(500, (torch.int64, torch.int16)),
    "aten.bitwise_and.Scalar": _bits(6),
    "aten.bitwise_and.Scalar_Tensor": _scalar_first(6, (torch.int64, torch.uint8)),
    "aten.bitwise_or.Scalar": _bits(6),
    "aten.bitwise_or.Scalar_Tensor": _scalar_first(6, (torch.int64, torch.uint8)),
    "aten.bitwise_xor.Scalar": _bits(6),
    "aten.bitwise_xor.Scalar_Tensor": _scalar_first(6, (torch.int64, torch.uint8)),
    "aten._conj_copy.default": _each((torch.complex64,)),
    "aten.conj_physical.default": _each((torch.complex64, torch.float32)),
    "aten.narrow.default": _each((torch.float32,), 1, -3, 2),
    "aten.conj.default": _each((torch.complex64, torch.float32)),
    "aten._neg_view.default": _each((torch.float32, torch.int64)),
    "aten.resolve_conj.default": _each((torch.complex64,)),
    "aten.resolve_neg.default": _each((torch.float32,)),
    "aten.real.default": _each((torch.complex64, torch.float32)),
    "aten.imag.default": _each((torch.complex64,)),
    "aten.clamp_max.default": (*_each(FLOATS, 1.5), *_each(INTEGERS, 2)),
    "aten.div.Scalar_mode": _divisions(None, "floor", "trunc"),
    "aten.div.Tensor_mode": tuple(
        ((_x(3, 4, dtype=d), _x(4, dtype=d) + 5), {"rounding_mode": m})
        for d in (*FLOATS, *INTEGERS)
        for m in ("floor", "trunc")
    ),
    "aten.floor_divide.Scalar": (*_each(FLOATS, 0.75), *_each(INTEGERS, 2), *_each((torch.int64,), -2)),
    "aten.fmod.Scalar": (*_each(FLOATS, 0.75), *_each(INTEGERS, 2), *_each((torch.int64,), -2)),
    "aten.remainder.Scalar_Tensor": (*_scalar_first(2.5), *_scalar_first(-7, (torch.int64,))),
    "aten.true_divide.Tensor": tuple(((_x(3, 4, dtype=d), _x(4, dtype=d) + 5), {}) for d in (*FLOATS, *INTEGERS)),
    "prims.convert_element_type.default": (
        *_each(FLOATS, torch.int32),
        *_each(INTEGERS, torch.bfloat16),
        *_each(FLOATS, torch.float16),
    ),
    "aten.isfinite.default": _each((torch.float32, torch.int64, torch.complex64)),
    "aten.positive.default": _each((torch.float32, torch.int64)),
    "aten.square.default": _each((torch.float32, torch.bfloat16, torch.int64, torch.complex64)),
    "aten.xlogy.Scalar_Self": (*_scalar_first(2.5), *_scalar_first(0)),
    "aten.xlogy.Scalar_Other": (*_each(FLOATS, 2.5), *_each((torch.int64,), 0)),
    "aten.special_xlog1py.self_scalar": (*_scalar_first(2.5), *_scalar_first(0)),
    "aten.special_xlog1py.other_scalar": (*_each(FLOATS, 2.5), *_each((torch.int64,), 0)),
    "aten.special_zeta.self_scalar": _scalar_first(2.5, FLOATS[::2]),
    "aten.special_zeta.other_scalar": tuple(((_x(3, 4, dtype=d).abs() + 1.5, 2.5), {}) for d in FLOATS[::2]),
    "aten.fill.Tensor": tuple(((_x(3, dtype=d), torch.tensor(2.5)), {}) for d in (torch.float32, torch.int64)),
    "aten._reshape_alias.default": (((_x(3, 4), (2, 6), (6, 1)), {}),),
    "aten.chunk.default": (((_x(7, 2), 3), {}), ((_x(2, 7), 3, 1), {})),
    "aten.contiguous.default": (((_x(3, 4).t(),), {}),),
    "aten._efficientzerotensor.default": ((((2, 3),), {"dtype": torch.float32}),),
    "aten.lift.default": (((_x(3, 4),), {}),),
    "aten.lift_fresh_copy.default": (((_x(3, 4),), {}),),
    "aten.tile.default": (((_x(3, 4), (2,)), {}), ((_x(3, 4), (2, 1, 2)), {}), ((_x(3), (0,)), {})),
    "aten._reshape_copy.default": (((_x(3, 4), (2, -1)), {}),),
    "aten._reshape_alias_copy.default": (((_x(3, 4), (2, 6), (6, 1)), {}),),
    "aten.detach_copy.default": _each((torch.float32,)),
    "aten.select_copy.int": _each((torch.float32,), 1, -2),
    "aten.slice_copy.Tensor": _each((torch.float32,), 1, 1, 9, 2),
    "aten.narrow_copy.default": _each((torch.float32,), 1, 1, 2),
    "aten.split_copy.Tensor": _each((torch.float32,), 3, 1),
    "aten.split_with_sizes_copy.default": _each((torch.float32,), (1, 3), 1),
    "aten.unsafe_split.Tensor": _each((torch.float32,), 2, 0),
    "aten.unsafe_split_with_sizes.default": _each((torch.float32,), (1, 2), 0),
    "aten.view_as_real_copy.default": _each((torch.complex64,)),
    "aten.view_as_complex_copy.default": (((_x(3, 2),), {}),),
    "aten._neg_view_copy.default": _each((torch.float32, torch.int64)),
    "aten.view.dtype": tuple(_reinterpreted()),
    "aten.view_copy.dtype": tuple(_reinterpreted()),
    "aten.range.default": ((((0, 5)), {}), ((1.5, 4), {"dtype": torch.float64})),
    "aten.range.step": (((0, 9, 2), {}), ((5, -1, -1.5), {})),
    **{f"aten.{name}_window.{overload}": calls for name in _WINDOWS for overload, calls in _windows().items()},
    "aten.hamming_window.periodic_alpha": (((7, True, 0.6), {}),),
    "aten.hamming_window.periodic_alpha_beta": (((7, False, 0.6, 0.3), {}),),
    "aten.kaiser_window.beta": (((7, False, 4.5), {}), ((8, True, 14.0), {"dtype": torch.float64})),
    "aten.fft_fftfreq.default": (((7,), {}), ((8, 0.5), {"dtype": torch.float64})),
    "aten.fft_rfftfreq.default": (((7,), {}), ((8, 0.5), {"dtype": torch.float64})),
    "prims.fma.default": (((_x(3, 4), _x(3, 4) + 0.5, _x(4)), {}),),
}
