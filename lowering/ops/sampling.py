"""Sampling an image at given places (``grid_sample``), and the gradients by image and by place.

Coordinates are brought into the image as ATen does, with its rule that a clipped coordinate has no gradient; backward
is the derivative of the forward formula. An element outside the image counts 0.

Half precisions round each step, as ATen's kernel does: what they make of a coordinate decides which elements are read.
Backward, the kernel also adds to the image's gradient in the half, in an order of its vectors: that is left to it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from itertools import product
from math import prod

import jax
import jax.numpy as jnp
import torch

from neuron_compiler.ir.graph import TensorType, TupleType
from neuron_compiler.lowering.numeric import Array, narrow
from neuron_compiler.opdef import Call, Kind, Work, op

aten = torch.ops.aten

BILINEAR, NEAREST, BICUBIC = range(3)
ZEROS, BORDER, REFLECTION = range(3)


def _unnormalise(x: Array, size: int, align_corners: bool) -> Array:
    """From [-1, 1] to element positions."""
    return (x + 1) * ((size - 1) / 2) if align_corners else (x + 1) * (size / 2) - 0.5


def _clip(x: Array, size: int) -> Array:
    # Two selections, not a clip: at the border and beyond the gradient is 0. NaN goes to 0, as ATen's clip sends it.
    inside = jnp.where(x > 0, x, 0)
    return jnp.where(inside >= size - 1, size - 1, inside)


def _reflect(x: Array, low2: int, high2: int) -> Array:
    """Fold the line at ``low2 / 2`` and ``high2 / 2`` until ``x`` lies between."""
    if low2 == high2:
        return jnp.zeros_like(x)
    low, span = low2 / 2, (high2 - low2) / 2
    distance = jnp.abs(x - low)
    extra = jnp.fmod(distance, span)
    flips = jnp.floor(distance / span)
    return jnp.where(jnp.fmod(flips, 2) == 0, extra + low, span - extra + low)


def _place(x: Array, size: int, padding: int, align_corners: bool) -> Array:
    """Bring element positions into the image; with zero padding they stay where they are."""
    if padding == BORDER:
        return _clip(x, size)
    if padding == REFLECTION:
        return _clip(_reflect(x, 0, 2 * (size - 1)) if align_corners else _reflect(x, -1, 2 * size - 1), size)
    return x


def _fetch(image: Array, positions: list[Array]) -> Array:
    """Elements of ``image`` [N, C, *space] at integral ``positions`` [N, P] of each axis: [N, C, P]; 0 outside."""
    space = image.shape[2:]
    inside = jnp.ones(positions[0].shape, bool)
    flat = jnp.zeros(positions[0].shape, jnp.int32 if prod(space) < 2**31 else jnp.int64)
    for position, size in zip(positions, space, strict=True):
        inside &= (position >= 0) & (position <= size - 1)
        flat = flat * size + jnp.clip(position, 0, size - 1).astype(flat.dtype)
    taken = jax.vmap(lambda plane, at: plane.take(at, axis=1, mode="clip"))(image.reshape(*image.shape[:2], -1), flat)
    return jnp.where(inside[:, None], taken, 0)


def _cubic_weights(part: Array) -> list[Array]:
    """Weights of the elements at -1, 0, 1, 2 for a place ``part`` behind element 0."""
    a = -0.75

    def near(x: Array) -> Array:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: Array) -> Array:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return [far(part + 1), near(part), near(1 - part), far(1 - part + 1)]


def _interpolated(
    image: Array,
    low: list[Array],
    weights: list[list[Array]],
    place: Callable[[Array, int], Array],
    at: tuple[Array, ...],
) -> Array:
    """Sum over four taps of each axis that ``at`` has no position of, the last axis innermost: [N, C, P]."""
    axis = len(at)
    if axis == len(low):
        return _fetch(image, list(at))
    terms = (
        _interpolated(image, low, weights, place, (*at, place(low[axis] + tap - 1, axis))) * weight[:, None]
        for tap, weight in enumerate(weights[axis])
    )
    return reduce(jnp.add, terms)


def _sample(image: Array, grid: Array, mode: int, padding: int, align_corners: bool) -> Array:
    """``image`` [N, C, *space] at ``grid`` [N, *result, dimensions], its last axis first: [N, C, *result]."""
    space, result = image.shape[2:], grid.shape[1:-1]
    # The grid counts its dimensions from the last axis of the image.
    raw = [
        _unnormalise(grid[..., len(space) - 1 - axis].reshape(grid.shape[0], -1), size, align_corners)
        for axis, size in enumerate(space)
    ]
    placed = [_place(x, size, padding, align_corners) for x, size in zip(raw, space, strict=True)]
    if mode == NEAREST:
        values = _fetch(image, [jnp.round(jax.lax.stop_gradient(x)) for x in placed])
    elif mode == BILINEAR:
        low = [jax.lax.stop_gradient(jnp.floor(x)) for x in placed]
        part = [x - at for x, at in zip(placed, low, strict=True)]
        values = jnp.zeros((*image.shape[:2], prod(result)), image.dtype)
        for corner in product((0, 1), repeat=len(space)):
            weight = prod(p if side else 1 - p for p, side in reversed(list(zip(part, corner, strict=True))))
            values += _fetch(image, [at + side for at, side in zip(low, corner, strict=True)]) * weight[:, None]
    else:
        low = [jax.lax.stop_gradient(jnp.floor(x)) for x in raw]
        weights = [_cubic_weights(x - at) for x, at in zip(raw, low, strict=True)]
        values = _interpolated(image, low, weights, lambda x, axis: _place(x, space[axis], padding, align_corners), ())
    return values.reshape(*image.shape[:2], *result)


def _work(call: Call) -> Work:
    """Two flops for each image element that a result reads."""
    grid = call.type(1)
    taps = {BILINEAR: 2, NEAREST: 0, BICUBIC: 4}[int(str(call.op.operand(2)))] ** grid.shape[-1]
    return Work(2 * taps * prod(grid.shape[:-1]) * call.type(0).shape[1])


def _backward_work(call: Call) -> Work:
    """Twice forward's: once for the image, once for the grid."""
    grid = call.type(2)
    taps = {BILINEAR: 2, NEAREST: 0, BICUBIC: 4}[int(str(call.op.operand(3)))] ** grid.shape[-1]
    return Work(4 * taps * prod(grid.shape[:-1]) * call.type(1).shape[1])


def _half(call: Call) -> str | None:
    return "gradients of grid_sample in half precision" if call.type(1).dtype.itemsize < 4 else None


@op(aten.grid_sampler_2d.default, aten.grid_sampler_3d.default, kind=Kind.INDEXING, work=_work)
def grid_sampler(
    image: Array, grid: Array, interpolation_mode: int, padding_mode: int, align_corners: bool, *, out: TensorType
) -> Array:
    if out.numel == 0:
        return jnp.zeros(out.shape, image.dtype)
    return narrow(_sample(image, grid, interpolation_mode, padding_mode, align_corners), out)


@op(
    aten.grid_sampler_2d_backward.default,
    aten.grid_sampler_3d_backward.default,
    kind=Kind.INDEXING,
    work=_backward_work,
    when=_half,
)
def grid_sampler_backward(
    grad: Array,
    image: Array,
    grid: Array,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: tuple[bool, bool],
    *,
    out: TupleType,
) -> tuple[Array | None, Array | None]:
    def forward(image: Array, grid: Array) -> Array:
        return _sample(image, grid, interpolation_mode, padding_mode, align_corners)

    if grad.size == 0:
        by_image, by_grid = jnp.zeros_like(image), jnp.zeros_like(grid)
    else:
        by_image, by_grid = jax.vjp(forward, image, grid)[1](grad)
    # ATen gives the grid's gradient whether or not ``output_mask`` asks for it.
    wanted = zip((by_image, by_grid), out.elements, strict=True)
    found = [narrow(x, e) if isinstance(e, TensorType) else None for x, e in wanted]
    return found[0], found[1]
