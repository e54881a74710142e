"""Windows of an image as columns (``unfold``), and their sum back into an image (``fold``)."""

from __future__ import annotations

import jax.numpy as jnp
import torch

from neuron_compiler.ir.graph import TensorType
from neuron_compiler.lowering.numeric import Array, narrow, widen
from neuron_compiler.lowering.ops.convolution import Ints, Window, padded, shifted
from neuron_compiler.lowering.ops.pooling import regular_windows, sum_windows
from neuron_compiler.opdef import Kind, op, per_input_element

aten = torch.ops.aten


def _positions(image: Ints, w: Window) -> Ints:
    steps = zip(image, w.pad, w.reach, w.stride, strict=True)
    return tuple((size + 2 * pad - reach) // stride + 1 for size, pad, reach, stride in steps)


@op(aten.im2col.default, kind=Kind.INDEXING)
def im2col(x: Array, kernel_size: Ints, dilation: Ints, padding: Ints, stride: Ints, *, out: TensorType) -> Array:
    """``x`` [N, C, H, W] or [C, H, W] to [N, C * kernel, windows]."""
    w = Window(*(tuple(v) * (2 // len(v)) for v in (kernel_size, stride, padding, dilation)), 1)
    if x.size == 0:
        return jnp.zeros(out.shape, x.dtype)
    image = x.reshape(-1, *x.shape[-3:])
    positions = _positions(image.shape[2:], w)
    return jnp.stack(shifted(padded(image, w, positions), w, positions), axis=2).reshape(out.shape)


@op(aten.col2im.default, kind=Kind.INDEXING, work=per_input_element())
def col2im(
    x: Array,
    output_size: Ints,
    kernel_size: Ints,
    dilation: Ints,
    padding: Ints,
    stride: Ints,
    *,
    out: TensorType,
) -> Array:
    """``x`` [N, C * kernel, windows] to [N, C, *output_size]; where windows overlap, what they hold is added."""
    w = Window(*(tuple(v) * (2 // len(v)) for v in (kernel_size, stride, padding, dilation)), 1)
    if x.size == 0:
        return jnp.zeros(out.shape, x.dtype)
    positions = _positions(output_size, w)
    rows, columns = (
        regular_windows(*axis).inverse(by_tap=True)
        for axis in zip(output_size, positions, w.size, w.stride, w.pad, w.dilation, strict=True)
    )
    # Kernel element and window of an axis side by side, so that one table says what is added where.
    taps = widen(x).reshape(-1, *w.size, *positions).transpose(0, 1, 3, 2, 4)
    wide = sum_windows(taps.reshape(*taps.shape[:3], -1), 3, columns)
    return narrow(sum_windows(wide.reshape(wide.shape[0], -1, wide.shape[-1]), 1, rows).reshape(out.shape), out)
