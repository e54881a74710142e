"""Pooling over windows, one axis after the other, and its gradients.

An axis is folded by one slice (or gather) for each window element. A maximum keeps ATen's index: the first of equal
elements, the last NaN. Averages are summed in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from neuron_compiler import dtypes
from neuron_compiler.ir.graph import DType, TensorType, TupleType
from neuron_compiler.lowering.numeric import Array, dtype_of, narrow, widen
from neuron_compiler.opdef import Call, Kind, Work, op

aten = torch.ops.aten

Ints = tuple[int, ...]

MOST_TAPS = 32
"""Window elements along one axis up to which each is an operation of its own; above, a loop goes over them."""


@dataclass(frozen=True, eq=False)
class Windows:
    """The windows along one axis of an image.

    Attributes:
        size: elements of the image along the axis.
        position: what element each window reads, [window elements, windows]; may lie outside the image.
        valid: where it does not, and the window has that element.
        stride: distance of neighbouring windows, or None where it varies.
    """

    size: int
    position: np.ndarray
    valid: np.ndarray
    stride: int | None

    @property
    def count(self) -> int:
        return self.position.shape[1]

    def inverse(self, by_tap: bool = False) -> Windows:
        """For each image element, the windows that read it; ``by_tap``, as (window element, window) in one number."""
        readers: list[list[int]] = [[] for _ in range(self.size)]
        for tap, window in np.argwhere(self.valid):
            readers[self.position[tap, window]].append(int(tap * self.count + window if by_tap else window))
        most = max(map(len, readers), default=0)
        table = np.array([r + [-1] * (most - len(r)) for r in readers], dtype=np.int64).reshape(self.size, most).T
        return Windows(self.count * (len(self.position) if by_tap else 1), table, table >= 0, None)


def regular_windows(size: int, count: int, kernel: int, stride: int, pad: int, dilation: int = 1) -> Windows:
    position = np.arange(kernel)[:, None] * dilation + np.arange(count) * stride - pad
    return Windows(size, position, (position >= 0) & (position < size), stride)


def adaptive_windows(size: int, count: int) -> Windows:
    """``count`` windows that cover the axis, as even as can be; neighbours may share an element."""
    first = np.arange(count) * size // count
    last = -(-(np.arange(1, count + 1) * size) // count)
    position = first + np.arange(max(last - first))[:, None]
    even = size % count == 0
    return Windows(size, position, position < last, size // count if even else None)


def _reader(x: Array, axis: int, w: Windows, fill: Array) -> Callable[[int], Array]:
    """A function that gives what all windows read at one window element, ``fill`` where that is nothing."""
    if w.stride is None or w.count == 0:

        def gather(tap: int) -> Array:
            values = x.take(jnp.asarray(np.clip(w.position[tap], 0, w.size - 1)), axis=axis, mode="clip")
            return values if w.valid[tap].all() else jnp.where(_along(w.valid[tap], x.ndim, axis), values, fill)

        return gather
    low, high = max(0, -int(w.position.min())), max(0, int(w.position.max()) + 1 - w.size)
    if low or high:
        x = lax.pad(x, fill, [(low, high, 0) if a == axis else (0, 0, 0) for a in range(x.ndim)])

    def take(tap: int) -> Array:
        start = int(w.position[tap, 0]) + low
        return lax.slice_in_dim(x, start, start + (w.count - 1) * w.stride + 1, w.stride, axis)

    return take


def _along(values: np.ndarray, rank: int, axis: int) -> Array:
    """A vector as an array that broadcasts along ``axis``."""
    return jnp.asarray(values.reshape(*(len(values) if a == axis else 1 for a in range(rank))))


def _looping_reader(x: Array, axis: int, w: Windows, fill: Array) -> Callable[[Array], Array]:
    """Like ``_reader``, for a window element that is known only inside a loop."""
    position, valid = jnp.asarray(np.clip(w.position, 0, max(w.size - 1, 0))), jnp.asarray(w.valid)
    shape = [w.count if a == axis else 1 for a in range(x.ndim)]
    return lambda tap: jnp.where(valid[tap].reshape(shape), x.take(position[tap], axis=axis, mode="clip"), fill)


def sum_windows(x: Array, axis: int, w: Windows) -> Array:
    """Sum of what each window reads along one axis."""
    zero = jnp.zeros((), x.dtype)
    taps = len(w.position)
    if taps == 0:
        return jnp.zeros([w.count if a == axis else n for a, n in enumerate(x.shape)], x.dtype)
    if taps > MOST_TAPS:
        read = _looping_reader(x, axis, w, zero)
        return lax.fori_loop(1, taps, lambda tap, total: total + read(tap), read(jnp.asarray(0)))
    return reduce(jnp.add, map(_reader(x, axis, w, zero), range(taps)))


def max_windows(x: Array, windows: Sequence[Windows]) -> tuple[Array, Array]:
    """Greatest element that each window reads in the last axes, and its int64 index in the flattened image."""
    fill = jnp.asarray(_lowest(dtype_of(x)), x.dtype)
    inner = 1
    index = jnp.zeros((), jnp.int64 if prod(w.size for w in windows) > 2**31 - 1 else jnp.int32)
    for back, w in enumerate(reversed(windows)):
        axis = x.ndim - 1 - back
        x, index = _max_axis(x, index, axis, w, fill, inner)
        inner *= w.size
    return x, index.astype(jnp.int64)


def _max_axis(x: Array, index: Array, axis: int, w: Windows, fill: Array, inner: int) -> tuple[Array, Array]:
    """One axis of ``max_windows``: ``index`` counts in the axes behind, which hold ``inner`` elements."""
    nothing = jnp.zeros((), index.dtype)
    first = w.valid & (np.cumsum(w.valid, axis=0) == 1)
    offsets = np.asarray(w.position * inner, dtype=index.dtype)
    floating = jnp.issubdtype(x.dtype, jnp.floating)

    def better(best: Array, value: Array, is_first: Array | None) -> Array:
        take = (value > best) | (value != value) if floating else value > best
        return take if is_first is None else take | is_first

    def pick(state: tuple[Array, Array], value: Array, where: Array, is_first: Array | None) -> tuple[Array, Array]:
        take = better(state[0], value, is_first)
        return jnp.where(take, value, state[0]), jnp.where(take, where, state[1])

    taps = len(w.position)
    if taps > MOST_TAPS:
        values = _looping_reader(x, axis, w, fill)
        places = _looping_reader(index, axis, w, nothing) if index.ndim else lambda tap: nothing
        shape = [w.count if a == axis else 1 for a in range(x.ndim)]
        firsts, starts = jnp.asarray(first), jnp.asarray(offsets)

        def step(tap: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
            where = places(tap) + starts[tap].reshape(shape)
            return pick(state, values(tap), where, firsts[tap].reshape(shape))

        zero = jnp.asarray(0)
        start = values(zero), jnp.broadcast_to(places(zero) + starts[0].reshape(shape), values(zero).shape)
        return lax.fori_loop(1, taps, step, start)

    read = _reader(x, axis, w, fill)
    place = _reader(index, axis, w, nothing) if index.ndim else lambda tap: nothing
    state: tuple[Array, Array] | None = None
    for tap in range(taps):
        value, where = read(tap), place(tap) + _along(offsets[tap], x.ndim, axis)
        is_first = _along(first[tap], x.ndim, axis) if first[tap].any() else None
        state = (value, jnp.broadcast_to(where, value.shape)) if state is None else pick(state, value, where, is_first)
    if state is None:
        raise ValueError("a window without elements")
    return state


def _lowest(dtype: DType) -> float | int:
    return -np.inf if dtype.is_floating else int(np.iinfo(dtypes.to_numpy(dtype)).min)


def expand(values: Sequence[int], rank: int) -> Ints:
    return tuple(values) * (rank // len(values)) if len(values) == 1 else tuple(values)


def regular(
    image: Ints, counts: Ints, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints = (1,)
) -> list[Windows]:
    rank = len(image)
    kernel = expand(kernel, rank)
    stride = expand(stride, rank) if stride else kernel
    return [
        regular_windows(*axis)
        for axis in zip(image, counts, kernel, stride, expand(padding, rank), expand(dilation, rank), strict=True)
    ]


def _element(out: TupleType, index: int) -> TensorType:
    element = out.elements[index]
    if element is None:
        raise TypeError(f"result {index} is not a tensor")
    return element


def window_work(call: Call) -> Work:
    """One flop for each window element of each result."""
    kernel = call.op.operand(1)
    result = call.result_types[0]
    rank = result.rank - 1 if isinstance(kernel, tuple) and len(kernel) == result.rank - 1 else result.rank - 2
    return Work(result.numel * prod(expand(kernel, rank) if isinstance(kernel, tuple) else (1,)))


@op(aten.max_pool2d_with_indices.default, kind=Kind.POOLING, work=window_work)
def max_pool2d(
    x: Array,
    kernel_size: Ints,
    stride: Ints = (),
    padding: Ints = (0,),
    dilation: Ints = (1,),
    ceil_mode: bool = False,
    *,
    out: TupleType,
) -> tuple[Array, Array]:
    return _max_pool(x, 2, out, kernel_size, stride, padding, dilation)


@op(aten.max_pool3d_with_indices.default, kind=Kind.POOLING, work=window_work)
def max_pool3d(
    x: Array,
    kernel_size: Ints,
    stride: Ints = (),
    padding: Ints = (0,),
    dilation: Ints = (1,),
    ceil_mode: bool = False,
    *,
    out: TupleType,
) -> tuple[Array, Array]:
    return _max_pool(x, 3, out, kernel_size, stride, padding, dilation)


def _max_pool(x: Array, rank: int, out: TupleType, *window: Ints) -> tuple[Array, Array]:
    return max_windows(x, regular(x.shape[-rank:], _element(out, 0).shape[-rank:], *window))


@op(aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default, kind=Kind.POOLING)
def adaptive_max_pool(x: Array, output_size: Ints, *, out: TupleType) -> tuple[Array, Array]:
    rank, shape = len(output_size), _element(out, 0).shape
    if prod(shape) == 0:
        return jnp.zeros(shape, x.dtype), jnp.zeros(shape, jnp.int64)
    return max_windows(x, [adaptive_windows(*axis) for axis in zip(x.shape[-rank:], shape[-rank:], strict=True)])


@op(aten.fractional_max_pool2d.default, aten.fractional_max_pool3d.default, kind=Kind.POOLING, work=window_work)
def fractional_max_pool(
    x: Array, kernel_size: Ints, output_size: Ints, samples: Array, *, out: TupleType
) -> tuple[Array, Array]:
    """Windows whose places depend on ``samples`` [N, C, dimensions], drawn by the caller."""
    rank = len(output_size)
    image = x.shape[-rank:]
    planes = x.reshape(-1, *image)
    # Two-dimensional samples are ordered width first, three-dimensional ones depth first.
    drawn = samples.reshape(-1, rank)[:, ::-1] if rank == 2 else samples.reshape(-1, rank)
    index = jnp.zeros((planes.shape[0], *(1,) * (2 * rank)), jnp.int64)
    for axis, (size, count, kernel) in enumerate(zip(image, output_size, kernel_size, strict=True)):
        start = _fractional_starts(drawn[:, axis], size, count, kernel)
        position = start[:, :, None] + jnp.arange(kernel, dtype=jnp.int64)
        shape = [planes.shape[0], *(1,) * (2 * rank)]
        shape[1 + axis], shape[1 + rank + axis] = count, kernel
        index = index * size + position.reshape(shape)
    index = index.reshape(planes.shape[0], prod(output_size), prod(kernel_size))
    flat = planes.reshape(planes.shape[0], -1)
    values = jnp.take_along_axis(flat, index.reshape(planes.shape[0], -1), axis=1).reshape(index.shape)
    best, where = values[..., 0], index[..., 0]
    for tap in range(1, index.shape[-1]):
        take = (values[..., tap] > best) | (values[..., tap] != values[..., tap])
        best, where = jnp.where(take, values[..., tap], best), jnp.where(take, index[..., tap], where)
    shape = _element(out, 0).shape
    return best.reshape(shape), where.reshape(shape)


def _fractional_starts(sample: Array, size: int, count: int, kernel: int) -> Array:
    """First element of each window, [planes, count]; the last window ends with the image."""
    last = jnp.full((sample.shape[0], 1), size - kernel, jnp.int64)
    if count == 1:
        return last
    step = jnp.asarray(size - kernel, sample.dtype) / jnp.asarray(count - 1, sample.dtype)
    shifted = (jnp.arange(count - 1, dtype=sample.dtype) + sample[:, None]) * step
    return jnp.concatenate([shifted.astype(jnp.int64) - (sample[:, None] * step).astype(jnp.int64), last], axis=1)


def _scatter(grad: Array, index: Array, out: TensorType, rank: int) -> Array:
    """Add each element of ``grad`` to the image element that ``index`` names in its plane."""
    planes, inside = prod(out.shape[:-rank]), prod(out.shape[-rank:])
    kind = jnp.int64 if out.numel > 2**31 - 1 else jnp.int32
    place = index.reshape(planes, -1).astype(kind) + jnp.arange(planes, dtype=kind)[:, None] * inside
    wide = widen(grad).reshape(-1)
    return narrow(jnp.zeros(out.numel, wide.dtype).at[place.reshape(-1)].add(wide).reshape(out.shape), out)


@op(aten.max_pool2d_with_indices_backward.default, kind=Kind.POOLING)
def max_pool2d_backward(
    grad: Array,
    x: Array,
    kernel_size: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    ceil_mode: bool,
    indices: Array,
    *,
    out: TensorType,
) -> Array:
    return _scatter(grad, indices, out, 2)


@op(aten.max_pool3d_with_indices_backward.default, kind=Kind.POOLING)
def max_pool3d_backward(
    grad: Array,
    x: Array,
    kernel_size: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    ceil_mode: bool,
    indices: Array,
    *,
    out: TensorType,
) -> Array:
    return _scatter(grad, indices, out, 3)


@op(aten.adaptive_max_pool2d_backward.default, kind=Kind.POOLING)
def adaptive_max_pool2d_backward(grad: Array, x: Array, indices: Array, *, out: TensorType) -> Array:
    return _scatter(grad, indices, out, 2)


@op(aten.adaptive_max_pool3d_backward.default, kind=Kind.POOLING)
def adaptive_max_pool3d_backward(grad: Array, x: Array, indices: Array, *, out: TensorType) -> Array:
    return _scatter(grad, indices, out, 3)


@op(
    aten.fractional_max_pool2d_backward.default,
    aten.fractional_max_pool3d_backward.default,
    kind=Kind.POOLING,
)
def fractional_max_pool_backward(
    grad: Array, x: Array, kernel_size: Ints, output_size: Ints, indices: Array, *, out: TensorType
) -> Array:
    return _scatter(grad, indices, out, len(output_size))
