"""Convolutions and their gradients, in any number of dimensions, logically N, C, then space.

A convolution and the two halves of its gradient are one linear map and its adjoints, so a transposed convolution is
``spread`` forward and ``correlate`` backward. XLA's own convolution re-lays every weight on each call and runs groups
one element at a time; where the shape allows it the same sum is written as matrix products over the weight as it lies,
or as shifted multiply-adds. Halves are computed in float32 and rounded once, but where eager adds up in the half: see
``halves.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

import jax.numpy as jnp
import torch
from jax import lax

from neuron_compiler.ir.graph import TensorType, TupleType
from neuron_compiler.lowering.halves import adds_in_half
from neuron_compiler.lowering.numeric import Array, cast, dtype_of, narrow, rounded, widen, widened
from neuron_compiler.lowering.ops.contraction import contract
from neuron_compiler.opdef import Call, Kind, Work, op

aten = torch.ops.aten

Ints = tuple[int, ...]

MOST_TAPS = 64
"""Kernel elements up to which a depthwise convolution is written as one multiply-add for each of them."""
MOST_UNROLLED = 8
"""Samples or groups up to which each is a product (or convolution) of its own instead of one batched operation."""
LARGE_WEIGHT = 1 << 20
"""Elements from which XLA's re-laying of a weight costs more than gathering the windows of a small image."""
MOST_GATHERED = 1 << 24
"""Elements of gathered windows above which memory matters more than speed."""


@dataclass(frozen=True)
class Window:
    """How a kernel moves over an image: per spatial dimension its size, stride, zeros before the image and dilation."""

    size: Ints
    stride: Ints
    pad: Ints
    dilation: Ints
    groups: int

    @property
    def is_tiling(self) -> bool:
        """No image element is read by two windows, and windows read what lies together."""
        steps = zip(self.size, self.stride, self.pad, self.dilation, strict=True)
        return self.groups == 1 and all(p == 0 and (k == 1 or (k == s and d == 1)) for k, s, p, d in steps)

    @property
    def reach(self) -> Ints:
        """Image elements from the first to the last that a window reads."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.size, self.dilation, strict=True))

    def per_group(self) -> Window:
        return replace(self, groups=1)


def padded(x: Array, w: Window, positions: Ints) -> Array:
    """The image with zeros around it, as far as the windows at ``positions`` reach (cropped where they do not)."""
    needed = ((n - 1) * s + r for n, s, r in zip(positions, w.stride, w.reach, strict=True))
    config = [(p, n - i - p, 0) for i, p, n in zip(x.shape[2:], w.pad, needed, strict=True)]
    return lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), (0, 0, 0), *config]) if any(map(any, config)) else x


def shifted(x: Array, w: Window, positions: Ints) -> list[Array]:
    """For each kernel element, in row-major order, what it meets in a ``padded`` image: [N, C, *positions]."""
    slices = []
    for tap in product(*(range(k) for k in w.size)):
        start = [t * d for t, d in zip(tap, w.dilation, strict=True)]
        limit = [b + (n - 1) * s + 1 for b, n, s in zip(start, positions, w.stride, strict=True)]
        slices.append(lax.slice(x, (0, 0, *start), (*x.shape[:2], *limit), (1, 1, *w.stride)))
    return slices


def gathered(x: Array, w: Window, positions: Ints) -> Array:
    """What each window reads: [N, groups, C / groups * kernel, positions]."""
    batch, channels = x.shape[:2]
    if w.is_tiling:
        x = _strided(x, w, positions)
        split = [size for n, k in zip(positions, w.size, strict=True) for size in (n, k)]
        axes = range(len(positions))
        order = (0, 1, *(3 + 2 * a for a in axes), *(2 + 2 * a for a in axes))
        windows = x.reshape(batch, channels, *split).transpose(order)
    else:
        windows = jnp.stack(shifted(padded(x, w, positions), w, positions), axis=2)
    return windows.reshape(batch, w.groups, channels // w.groups * prod(w.size), prod(positions))


def _strided(x: Array, w: Window, positions: Ints) -> Array:
    """What the windows of a tiling read, without what lies between or after them."""
    steps = [s if k == 1 else 1 for k, s in zip(w.size, w.stride, strict=True)]
    limit = [(n - 1) * s + k for n, s, k in zip(positions, w.stride, w.size, strict=True)]
    return lax.slice(x, (0,) * x.ndim, (*x.shape[:2], *limit), (1, 1, *steps))


def _unstrided(x: Array, w: Window, positions: Ints, image: Ints) -> Array:
    """Adjoint of ``_strided``: zeros where no window reads."""
    config = []
    for size, n, k, s in zip(image, positions, w.size, w.stride, strict=True):
        config.append((0, size - (n - 1) * s - k, s - 1 if k == 1 else 0))
    return lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), (0, 0, 0), *config])


def _per_group(w: Window, function: Callable[..., Array], *operands: tuple[Array, int], axis: int) -> Array:
    """``function`` of each group's part of the operands (array, axis split into groups), side by side again."""
    parts = [jnp.split(x, w.groups, axis=split) for x, split in operands]
    return jnp.concatenate([function(*part) for part in zip(*parts, strict=True)], axis=axis)


def _spatial(rank: int) -> str:
    return "DHW"[3 - rank :] if rank <= 3 else "".join(map(str, range(rank)))


def _gathers(w: Window, images: int, positions: Ints, weight: Array) -> bool:
    """Whether the windows are worth gathering for a product with the weight as it lies."""
    if w.is_tiling:
        return True
    small = weight.size // weight.shape[0] * w.groups * images * prod(positions) <= MOST_GATHERED
    if w.groups > 1:
        return small
    return small and weight.size >= LARGE_WEIGHT and images * prod(positions) < weight.shape[0]


def _by_sample(weight: Array, x: Array, over: int) -> Array:
    """Product of a matrix, contracted over its axis ``over``, with each sample's matrix [N, k, positions]."""
    if x.shape[0] <= MOST_UNROLLED:
        return jnp.stack([contract(weight, sample, ((over,), (0,))) for sample in x])
    weight = jnp.broadcast_to(weight, (x.shape[0], *weight.shape))
    return contract(weight, x, ((1 + over,), (1,)), ((0,), (0,)))


def correlate(x: Array, weight: Array, w: Window, positions: Ints) -> Array:
    """Slide ``weight`` [O, C / groups, *kernel] over ``x`` [N, C, *image]: [N, O, *positions]."""
    images, features = x.shape[0], weight.shape[0]
    if weight.shape[1] == 1 and w.groups > 1 and prod(w.size) <= MOST_TAPS:
        taps = widen(weight).reshape(w.groups, features // w.groups, -1, *(1,) * len(positions))
        slices = (s[:, :, None] for s in shifted(padded(widen(x), w, positions), w, positions))
        return sum(taps[:, :, i] * s for i, s in enumerate(slices)).reshape(images, features, *positions)
    if 1 < w.groups <= MOST_UNROLLED:
        one = w.per_group()
        return _per_group(w, lambda a, b: correlate(a, b, one, positions), (x, 1), (weight, 0), axis=1)
    if _gathers(w, images, positions, weight):
        windows = gathered(x, w, positions)
        if w.groups == 1:
            result = _by_sample(weight.reshape(features, -1), windows[:, 0], 1)
        else:
            by_group = weight.reshape(w.groups, features // w.groups, -1)
            result = contract(by_group, windows, ((2,), (2,)), ((0,), (1,))).transpose(2, 0, 1, 3)
        return result.reshape(images, features, *positions)
    space = _spatial(len(positions))
    needed = ((n - 1) * s + r for n, s, r in zip(positions, w.stride, w.reach, strict=True))
    return lax.conv_general_dilated(
        widen(x),
        widen(weight),
        w.stride,
        [(p, n - i - p) for i, p, n in zip(x.shape[2:], w.pad, needed, strict=True)],
        rhs_dilation=w.dilation,
        dimension_numbers=(f"NC{space}", f"OI{space}", f"NC{space}"),
        feature_group_count=w.groups,
    )


def spread(y: Array, weight: Array, w: Window, image: Ints) -> Array:
    """Adjoint of ``correlate`` by its image: ``y`` [N, O, *positions] to [N, C, *image]."""
    positions = y.shape[2:]
    if w.is_tiling:
        windows = _by_sample(weight.reshape(weight.shape[0], -1), y.reshape(*y.shape[:2], -1), 0)
        axes = range(len(positions))
        order = (0, 1, *(2 + a + side * len(positions) for a in axes for side in (1, 0)))
        windows = windows.reshape(y.shape[0], weight.shape[1], *w.size, *positions).transpose(order)
        joined = windows.reshape(*windows.shape[:2], *(n * k for n, k in zip(positions, w.size, strict=True)))
        return _unstrided(joined, w, positions, image)
    rank = len(image)
    space = _spatial(rank)
    flipped = lax.rev(widen(weight), tuple(range(2, 2 + rank)))
    pads = []
    for size, n, s, r, p in zip(image, positions, w.stride, w.reach, w.pad, strict=True):
        pads.append((r - 1 - p, size + p - (n - 1) * s - 1))
    if w.groups > 1:
        by_group = flipped.reshape(w.groups, -1, *flipped.shape[1:])
        flipped = jnp.swapaxes(by_group, 1, 2).reshape(-1, by_group.shape[1], *w.size)
        config = [(0, 0, 0), (0, 0, 0), *((lo, hi, s - 1) for (lo, hi), s in zip(pads, w.stride, strict=True))]
        full = lax.pad(widen(y), jnp.zeros((), flipped.dtype), config)
        ones = (1,) * rank
        return correlate(full, flipped, Window(w.size, ones, (0,) * rank, w.dilation, w.groups), image)
    return lax.conv_general_dilated(
        widen(y),
        flipped,
        (1,) * rank,
        pads,
        lhs_dilation=w.stride,
        rhs_dilation=w.dilation,
        dimension_numbers=(f"NC{space}", f"IO{space}", f"NC{space}"),
    )


def weight_gradient(x: Array, y: Array, w: Window) -> Array:
    """Adjoint of ``correlate`` by its weight, for image ``x`` and gradient ``y``: [O, C / groups, *kernel]."""
    positions, channels, features = y.shape[2:], x.shape[1] // w.groups, y.shape[1]
    if channels == 1 and w.groups > 1 and prod(w.size) <= MOST_TAPS:
        y = widen(y).reshape(y.shape[0], w.groups, -1, *positions)
        summed = (0, *range(3, y.ndim))
        taps = [jnp.sum(y * s[:, :, None], summed) for s in shifted(padded(widen(x), w, positions), w, positions)]
        return jnp.stack(taps, axis=-1).reshape(features, 1, *w.size)
    if w.is_tiling:
        windows = gathered(x, w, positions)[:, 0]
        return contract(y.reshape(*y.shape[:2], -1), windows, ((0, 2), (0, 2))).reshape(features, channels, *w.size)
    if w.groups > 1:
        if w.groups <= MOST_UNROLLED or x.size * prod(w.size) > MOST_GATHERED:
            one = w.per_group()
            return _per_group(w, lambda a, b: weight_gradient(a, b, one), (x, 1), (y, 1), axis=0)
        windows = gathered(x, w, positions)
        by_group = y.reshape(y.shape[0], w.groups, -1, prod(positions))
        return contract(by_group, windows, ((0, 3), (0, 3)), ((1,), (1,))).reshape(features, channels, *w.size)
    space = _spatial(len(positions))
    reads = ((k - 1) * d + (n - 1) * s + 1 for k, d, n, s in zip(w.size, w.dilation, positions, w.stride, strict=True))
    return lax.conv_general_dilated(
        widen(x),
        widen(y),
        w.dilation,
        [(p, n - i - p) for i, p, n in zip(x.shape[2:], w.pad, reads, strict=True)],
        rhs_dilation=w.stride,
        dimension_numbers=(f"CN{space}", f"IO{space}", f"CN{space}"),
    )


def _spread(y: Array, weight: Array, w: Window, image: Ints) -> Array:
    """``spread``, to eager's roundings: what each kernel element contributes is added in the half."""
    if not adds_in_half(dtype_of(y)):
        return spread(y, weight, w, image)
    images, channels, positions = y.shape[0], weight.shape[1] * w.groups, y.shape[2:]
    by_group = weight.reshape(w.groups, weight.shape[0] // w.groups, -1)
    grouped = y.reshape(images, w.groups, -1, prod(positions))
    taps = rounded(contract(by_group, grouped, ((1,), (2,)), ((0,), (1,))), dtype_of(y))
    taps = jnp.moveaxis(taps.reshape(channels, prod(w.size), images, *positions), 1, 0)
    between = [(0, 0, s - 1) for s in w.stride]
    taps = lax.pad(taps, jnp.zeros((), taps.dtype), [(0, 0, 0)] * 3 + between)
    starts = jnp.asarray(
        [[t * d for t, d in zip(tap, w.dilation, strict=True)] for tap in product(*map(range, w.size))]
    )

    def add(index: Array, total: Array) -> Array:
        corner = (0, 0, *starts[index])
        there = lax.dynamic_slice(total, corner, taps.shape[1:])
        return lax.dynamic_update_slice(total, rounded(there + taps[index], dtype_of(y)), corner)

    extent = [r + size - 1 for r, size in zip(w.reach, taps.shape[3:], strict=True)]
    total = lax.fori_loop(0, prod(w.size), add, jnp.zeros((channels, images, *extent), taps.dtype))
    crop = [(-p, size + p - n, 0) for size, p, n in zip(image, w.pad, extent, strict=True)]
    return jnp.swapaxes(lax.pad(total, jnp.zeros((), total.dtype), [(0, 0, 0), (0, 0, 0), *crop]), 0, 1)


def _weight_gradient(x: Array, y: Array, w: Window) -> Array:
    """``weight_gradient``, to eager's roundings: samples are added one after the other, in the half."""
    if not adds_in_half(dtype_of(x)):
        return weight_gradient(x, y, w)

    def of_sample(index: Any) -> Array:
        return weight_gradient(*(lax.dynamic_slice_in_dim(a, index, 1) for a in (x, y)), w)

    def add(index: Array, total: Array) -> Array:
        return rounded(total + of_sample(index), dtype_of(x))

    return lax.fori_loop(1, x.shape[0], add, rounded(of_sample(0), dtype_of(x)))


def _window(weight: Array, stride: Ints, padding: Ints, dilation: Ints, groups: int) -> Window:
    size = tuple(weight.shape[2:])
    stride, padding, dilation = (tuple(v) * (len(size) // len(v)) for v in (stride, padding, dilation))
    return Window(size, stride, padding, dilation, groups)


def _work(call: Call) -> Work:
    """Two flops for each weight element at each position of the smaller of image and result."""
    transposed = bool(call.op.operand(6))
    image = call.type(0) if transposed else call.result_types[0]
    return Work(2 * image.shape[0] * prod(image.shape[2:]) * call.type(1).numel)


def _backward_work(call: Call) -> Work:
    """What forward does, once for the gradient by image and once for the one by weight."""
    transposed, mask = bool(call.op.operand(7)), call.op.operand(10)
    image = call.type(1) if transposed else call.type(0)
    wanted = sum(map(bool, mask[:2])) if isinstance(mask, tuple) else 2
    return Work(2 * image.shape[0] * prod(image.shape[2:]) * call.type(2).numel * wanted)


@op(aten.convolution.default, kind=Kind.CONVOLUTION, work=_work)
def convolution(
    x: Array,
    weight: Array,
    bias: Array | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
    *,
    out: TensorType,
) -> Array:
    """``x`` [N, C, *image]; ``weight`` [O, C / groups, *kernel], or [C, O / groups, *kernel] where transposed."""
    w, space = _window(weight, stride, padding, dilation, groups), out.shape[2:]
    if x.size == 0 or out.numel == 0:
        result = jnp.zeros(out.shape, widen(x).dtype)
    elif transposed:
        result = _spread(x, weight, w, space)
    else:
        result = correlate(x, weight, w, space)
    if bias is not None:
        result = result + cast(bias, dtype_of(result)).reshape(-1, *(1,) * len(space))
    return narrow(result, out)


@op(aten.convolution_backward.default, kind=Kind.CONVOLUTION, work=_backward_work)
def convolution_backward(
    grad: Array,
    x: Array,
    weight: Array,
    bias_sizes: Ints | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
    output_mask: Sequence[bool],
    *,
    out: TupleType,
) -> tuple[Array | None, ...]:
    w, dtype = _window(weight, stride, padding, dilation, groups), widened(dtype_of(x))
    empty = grad.size == 0 or x.size == 0

    def of_image() -> Array:
        if empty:
            return jnp.zeros(x.shape, widen(x).dtype)
        return correlate(grad, weight, w, x.shape[2:]) if transposed else _spread(grad, weight, w, x.shape[2:])

    def of_weight() -> Array:
        if empty:
            return jnp.zeros(weight.shape, widen(x).dtype)
        return _weight_gradient(grad, x, w) if transposed else _weight_gradient(x, grad, w)

    def of_bias() -> Array:
        return jnp.sum(cast(grad, dtype), axis=(0, *range(2, grad.ndim)))

    wanted: list[Any] = [of_image, of_weight, of_bias]
    return tuple(
        narrow(gradient(), element) if mask and isinstance(element, TensorType) else None
        for gradient, mask, element in zip(wanted, output_mask, out.elements, strict=True)
    )
