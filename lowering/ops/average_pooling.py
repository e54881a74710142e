"""Average pooling over regular and adaptive windows, and its gradients: summed in float32, rounded once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from neuron_compiler.ir.graph import TensorType
from neuron_compiler.lowering.numeric import Array, narrow, widen
from neuron_compiler.lowering.ops.pooling import (
    Ints,
    Windows,
    adaptive_windows,
    expand,
    regular,
    sum_windows,
    window_work,
)
from neuron_compiler.opdef import Kind, op

aten = torch.ops.aten


def _covered(windows: Sequence[Windows], padding: Ints, include_pad: bool) -> np.ndarray:
    """Elements that each window covers, [*windows]; those of the padding count only where ``include_pad``."""
    sizes = []
    for w, pad in zip(windows, padding, strict=True):
        # A window that ceil_mode lets hang over the end covers no more than the padding there.
        within = w.position < w.size + pad if include_pad else w.valid
        sizes.append(np.maximum(within.sum(axis=0), 1))
    return reduce(np.multiply.outer, sizes)


def _divide(x: Array, divisor: np.ndarray) -> Array:
    if (divisor == divisor.flat[0]).all():
        divisor = divisor.flat[0]
    by = jnp.broadcast_to(jnp.asarray(divisor, x.dtype), x.shape)
    return lax.div(x, by)


def _average(x: Array, windows: Sequence[Windows], divisor: np.ndarray, out: TensorType) -> Array:
    total = widen(x)
    for back, w in enumerate(reversed(windows)):
        total = sum_windows(total, x.ndim - 1 - back, w)
    return narrow(_divide(total, divisor), out)


def _average_backward(grad: Array, windows: Sequence[Windows], divisor: np.ndarray, out: TensorType) -> Array:
    """Each image element gets its share of every window that read it."""
    share = _divide(widen(grad), divisor)
    for back, w in enumerate(reversed(windows)):
        share = sum_windows(share, grad.ndim - 1 - back, w.inverse())
    return narrow(share, out)


def _plan(
    image: Ints,
    counts: Ints,
    kernel_size: Ints,
    stride: Ints,
    padding: Ints,
    count_include_pad: bool,
    divisor_override: int | None,
) -> tuple[list[Windows], np.ndarray]:
    windows = regular(image, counts, kernel_size, stride, padding)
    if divisor_override is not None:
        return windows, np.full((1,) * len(image), divisor_override)
    return windows, _covered(windows, expand(padding, len(image)), count_include_pad)


def _pool(rank: int, x: Array, out: TensorType, *how: object) -> Array:
    windows, divisor = _plan(x.shape[-rank:], out.shape[-rank:], *how)
    return _average(x, windows, divisor, out)


def _pool_backward(rank: int, grad: Array, out: TensorType, *how: object) -> Array:
    windows, divisor = _plan(out.shape[-rank:], grad.shape[-rank:], *how)
    return _average_backward(grad, windows, divisor, out)


@op(aten.avg_pool1d.default, kind=Kind.POOLING, work=window_work)
def avg_pool1d(
    x: Array,
    kernel_size: Ints,
    stride: Ints = (),
    padding: Ints = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    *,
    out: TensorType,
) -> Array:
    return _pool(1, x, out, kernel_size, stride, padding, count_include_pad, None)


@op(aten.avg_pool2d.default, kind=Kind.POOLING, work=window_work)
def avg_pool2d(
    x: Array,
    kernel_size: Ints,
    stride: Ints = (),
    padding: Ints = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    out: TensorType,
) -> Array:
    return _pool(2, x, out, kernel_size, stride, padding, count_include_pad, divisor_override)


@op(aten.avg_pool3d.default, kind=Kind.POOLING, work=window_work)
def avg_pool3d(
    x: Array,
    kernel_size: Ints,
    stride: Ints = (),
    padding: Ints = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    out: TensorType,
) -> Array:
    return _pool(3, x, out, kernel_size, stride, padding, count_include_pad, divisor_override)


@op(aten.avg_pool2d_backward.default, kind=Kind.POOLING)
def avg_pool2d_backward(
    grad: Array,
    x: Array,
    kernel_size: Ints,
    stride: Ints,
    padding: Ints,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
    *,
    out: TensorType,
) -> Array:
    return _pool_backward(2, grad, out, kernel_size, stride, padding, count_include_pad, divisor_override)


@op(aten.avg_pool3d_backward.default, kind=Kind.POOLING)
def avg_pool3d_backward(
    grad: Array,
    x: Array,
    kernel_size: Ints,
    stride: Ints,
    padding: Ints,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
    *,
    out: TensorType,
) -> Array:
    return _pool_backward(3, grad, out, kernel_size, stride, padding, count_include_pad, divisor_override)


def _adaptive(image: Ints, counts: Ints) -> tuple[list[Windows], np.ndarray]:
    windows = [adaptive_windows(size, count) for size, count in zip(image, counts, strict=True)]
    return windows, _covered(windows, (0,) * len(image), False)


@op(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default, kind=Kind.POOLING)
def adaptive_avg_pool(x: Array, output_size: Ints, *, out: TensorType) -> Array:
    if out.numel == 0:
        return jnp.zeros(out.shape, x.dtype)
    rank = len(output_size)
    windows, divisor = _adaptive(x.shape[-rank:], out.shape[-rank:])
    return _average(x, windows, divisor, out)


def _adaptive_backward(grad: Array, rank: int, out: TensorType) -> Array:
    if grad.size == 0:
        return jnp.zeros(out.shape, grad.dtype)
    windows, divisor = _adaptive(out.shape[-rank:], grad.shape[-rank:])
    return _average_backward(grad, windows, divisor, out)


@op(aten._adaptive_avg_pool2d_backward.default, kind=Kind.POOLING)
def adaptive_avg_pool2d_backward(grad: Array, x: Array, *, out: TensorType) -> Array:
    return _adaptive_backward(grad, 2, out)


@op(aten._adaptive_avg_pool3d_backward.default, kind=Kind.POOLING)
def adaptive_avg_pool3d_backward(grad: Array, x: Array, *, out: TensorType) -> Array:
    return _adaptive_backward(grad, 3, out)
