"""Resizing by nearest, linear, cubic and antialiased interpolation, and the gradients.

Every mode reads, along each axis, a few elements for each result with weights that depend on sizes alone. So an axis is
a static table of places and weights, and its gradient is the table read the other way. Tables are made in the precision
that ATen computes its coordinates in; halves are computed in float32 and rounded once.

One difference is meant: ATen's antialiased kernels repeat the first row where the result is one element wide and rows
lie together; the rule resizes the height there too, as ATen does for every other width and layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch

from neuron_compiler import dtypes
from neuron_compiler.ir.graph import TensorType
from neuron_compiler.lowering.numeric import Array, dtype_of, narrow, widen, widened
from neuron_compiler.opdef import Call, Kind, Work, op

aten = torch.ops.aten

Ints = tuple[int, ...]
Float = Any
"""A numpy floating type: coordinates are rounded as ATen rounds them."""


@dataclass(frozen=True, eq=False)
class Axis:
    """How one axis is resized.

    Attributes:
        size: elements of the image along the axis.
        place: what each result reads, [taps, results].
        weight: what that is multiplied by; None where every weight is 1.
        valid: where a result has that tap at all; None where results all read as many elements.
    """

    size: int
    place: np.ndarray
    weight: np.ndarray | None = None
    valid: np.ndarray | None = None

    def apply(self, x: Array, axis: int) -> Array:
        taps, results = self.place.shape
        shape = [results if a == axis else 1 for a in range(x.ndim)]
        total: Array | None = None
        for tap in range(taps):
            part = x.take(jnp.asarray(self.place[tap]), axis=axis, mode="clip")
            if self.weight is not None:
                part = part * jnp.asarray(self.weight[tap].reshape(shape), x.dtype)
            if self.valid is not None and not self.valid[tap].all():
                part = jnp.where(jnp.asarray(self.valid[tap].reshape(shape)), part, 0)
            total = part if total is None else total + part
        if total is None:
            return jnp.zeros([results if a == axis else n for a, n in enumerate(x.shape)], x.dtype)
        return total

    def transposed(self) -> Axis:
        """The table of the gradient: for each element of the image, the results that read it."""
        taps, results = self.place.shape
        weight = np.ones((taps, results)) if self.weight is None else self.weight
        readers: list[list[tuple[int, float]]] = [[] for _ in range(self.size)]
        for result in range(results):
            for tap in range(taps):
                if self.valid is None or self.valid[tap, result]:
                    readers[self.place[tap, result]].append((result, weight[tap, result]))
        most = max(map(len, readers), default=0)
        place, new_weight, valid = (np.zeros((most, self.size), kind) for kind in (np.int64, weight.dtype, bool))
        for element, read in enumerate(readers):
            for tap, (result, value) in enumerate(read):
                place[tap, element], new_weight[tap, element], valid[tap, element] = result, value, True
        return Axis(results, place, None if self.weight is None else new_weight, valid)


def _step(size: int, count: int, scale: float | None, real: Float) -> Float:
    """Image elements from one result to the next; ``scale`` is the factor that the user gave."""
    if scale is not None and scale > 0:
        return real(1.0 / scale)
    return real(size) / real(count)


def _centre_step(size: int, count: int, align_corners: bool, scale: float | None, real: Float) -> Float:
    if not align_corners:
        return _step(size, count, scale, real)
    return real(size - 1) / real(count - 1) if count > 1 else real(0)


def _coordinates(size: int, count: int, align_corners: bool, scale: float | None, real: Float) -> np.ndarray:
    """Where in the image each result lies; before the first element it is negative."""
    step = _centre_step(size, count, align_corners, scale, real)
    result = np.arange(count).astype(real)
    return step * result if align_corners else step * (result + real(0.5)) - real(0.5)


def nearest(size: int, count: int, scale: float | None, real: Float) -> Axis:
    result = np.arange(count)
    if count == size:
        place = result
    elif count == 2 * size:
        place = result >> 1
    else:
        place = np.floor(result.astype(np.float32) * _step(size, count, scale, np.float32)).astype(np.int64)
    return Axis(size, np.minimum(place, size - 1)[None])


def nearest_exact(size: int, count: int, scale: float | None, real: Float) -> Axis:
    middle = np.arange(count).astype(np.float32) + np.float32(0.5)
    place = np.floor(middle * _step(size, count, scale, np.float32)).astype(np.int64)
    return Axis(size, np.minimum(place, size - 1)[None])


def linear(size: int, count: int, align_corners: bool, scale: float | None, real: Float) -> Axis:
    if size == count:
        result = np.arange(count)
        above = np.minimum(result + 1, size - 1)
        return Axis(size, np.stack([result, above]), np.stack([np.ones(count, real), np.zeros(count, real)]))
    x = np.maximum(_coordinates(size, count, align_corners, scale, real), real(0))
    low = np.minimum(x.astype(np.int64), size - 1)
    part = np.clip(x - low.astype(real), real(0), real(1))
    return Axis(size, np.stack([low, np.minimum(low + 1, size - 1)]), np.stack([real(1) - part, part]))


def _cubic(distance: np.ndarray, a: float) -> np.ndarray:
    """Keys' kernel with parameter ``a``, for distances up to 2."""
    x, a = np.abs(distance), distance.dtype.type(a)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0)).astype(distance.dtype)


def cubic(size: int, count: int, align_corners: bool, scale: float | None, real: Float) -> Axis:
    x = _coordinates(size, count, align_corners, scale, real)
    low = np.floor(x)
    part = x - low
    offset = np.arange(-1, 3)[:, None]
    place = np.clip(low.astype(np.int64) + offset, 0, size - 1)
    return Axis(size, place, _cubic(part - offset.astype(real), -0.75))


def _triangle(x: np.ndarray) -> np.ndarray:
    return np.maximum(1 - np.abs(x), 0).astype(x.dtype)


def _lanczos(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0).astype(x.dtype)


def _antialiased(
    size: int, count: int, align_corners: bool, scale: float | None, real: Float, reach: int, kernel: Callable[..., Any]
) -> Axis:
    """Windows as wide as the image is shrunk; ``reach`` is the kernel's width at no shrinking."""
    step = _centre_step(size, count, align_corners, scale, real)
    half = real(reach * 0.5) * step if step >= 1 else real(reach * 0.5)
    most = ceil(half) * 2 + 1
    centre = step * (np.arange(count).astype(real) + real(0.5))
    first = np.maximum((centre - half + real(0.5)).astype(np.int64), 0)
    length = np.clip(np.minimum((centre + half + real(0.5)).astype(np.int64), size) - first, 0, most)
    tap = np.arange(max(length, default=0))[:, None]
    valid = tap < length
    shrink = real(1) / step if step >= 1 else real(1)
    weight = kernel(((tap + first).astype(real) - centre + real(0.5)) * shrink)
    weight = np.where(valid, weight, real(0))
    total = weight.sum(axis=0, dtype=real)
    return Axis(size, np.minimum(first + tap, size - 1), weight / np.where(total == 0, real(1), total), valid)


def linear_aa(size: int, count: int, align_corners: bool, scale: float | None, real: Float) -> Axis:
    return _antialiased(size, count, align_corners, scale, real, 2, _triangle)


def cubic_aa(size: int, count: int, align_corners: bool, scale: float | None, real: Float) -> Axis:
    return _antialiased(size, count, align_corners, scale, real, 4, lambda x: _cubic(x, -0.5))


def lanczos_aa(size: int, count: int, align_corners: bool, scale: float | None, real: Float) -> Axis:
    return _antialiased(size, count, align_corners, scale, real, 6, _lanczos)


def _work(call: Call) -> Work:
    """Two flops for each of the taps that interpolation without antialiasing has."""
    name = call.op.kind
    taps = 0 if "nearest" in name else 4 if "cubic" in name else 2
    rank = call.result_types[0].rank - 2
    larger = max(call.result_types[0].numel, call.type(0).numel)
    return Work(2 * larger * taps * rank)


def _integers(call: Call) -> str | None:
    if call.type(0).dtype.is_floating or "nearest" in call.op.kind:
        return None
    return "integer images are interpolated in fixed point"


Maker = Callable[..., Axis]


def _tables(
    maker: Maker, images: Ints, counts: Ints, real: Float, aligned: tuple[bool, ...], scales: Any
) -> list[Axis]:
    given = [*scales, *(None,) * (len(images) - len(scales))]
    return [maker(*axis, *aligned, scale, real) for *axis, scale in zip(images, counts, given, strict=True)]


def _resize(x: Array, tables: Sequence[Axis | None], out: TensorType) -> Array:
    wide = widen(x)
    if out.numel == 0:
        return jnp.zeros(out.shape, x.dtype)
    for back, table in enumerate(reversed(tables)):
        if table is not None:
            wide = table.apply(wide, x.ndim - 1 - back)
    return narrow(wide, out)


def _real(x: Array) -> Float:
    dtype = widened(dtype_of(x))
    return dtypes.to_numpy(dtype).type if dtype.is_floating else np.float32


def register(forward: object, backward: object, maker: Maker, *, aligned: bool) -> None:
    """Register a mode and its gradient; ``aligned`` modes have an ``align_corners`` argument before the scales."""

    def resize(x: Array, output_size: Ints, *rest: Any, out: TensorType) -> Array:
        first = rest[:1] if aligned else ()
        tables: list[Axis | None] = []
        tables += _tables(maker, x.shape[2:], output_size, _real(x), first, rest[len(first) :])
        if "_aa." in str(forward):
            # ATen's antialiasing leaves an axis that keeps its size, whatever the scale; its gradient does not.
            kept = [size == count for size, count in zip(x.shape[2:], output_size, strict=True)]
            tables = [None if same else table for same, table in zip(kept, tables, strict=True)]
        return _resize(x, tables, out)

    def resize_backward(grad: Array, output_size: Ints, input_size: Ints, *rest: Any, out: TensorType) -> Array:
        first = rest[:1] if aligned else ()
        tables = _tables(maker, input_size[2:], output_size, _real(grad), first, rest[len(first) :])
        return _resize(grad, [table.transposed() for table in tables], out)

    op(forward, kind=Kind.OTHER, work=_work, when=_integers)(resize)
    op(backward, kind=Kind.OTHER, work=_work, when=_integers)(resize_backward)


for _rank in ("1d", "2d", "3d"):
    for _name, _maker in (("upsample_nearest", nearest), ("_upsample_nearest_exact", nearest_exact)):
        _forward, _backward = getattr(aten, _name + _rank), getattr(aten, f"{_name}{_rank}_backward")
        register(_forward.default, _backward.default, _maker, aligned=False)
for _name, _maker in (
    ("upsample_linear1d", linear),
    ("upsample_bilinear2d", linear),
    ("upsample_trilinear3d", linear),
    ("upsample_bicubic2d", cubic),
    ("_upsample_bilinear2d_aa", linear_aa),
    ("_upsample_bicubic2d_aa", cubic_aa),
    ("_upsample_lanczos2d_aa", lanczos_aa),
):
    register(getattr(aten, _name).default, getattr(aten, _name + "_backward").default, _maker, aligned=True)
