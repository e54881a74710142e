"""Padding with the tensor's own elements: reflected or repeated, in one to three dimensions, and the gradients.

Gradients are the transposes of the forward functions, taken by jax; a pad of slices stays a sum of slices.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import torch

from neuron_compiler.ir.graph import TensorType
from neuron_compiler.lowering.numeric import Array, narrow, working
from neuron_compiler.opdef import Kind, no_work, op, per_input_element

aten = torch.ops.aten


def _padded(mode: str, padding: tuple[int, ...], x: Array) -> Array:
    """Pairs of (before, after) from the last dimension on; a negative one cuts off."""
    pairs = [(0, 0)] * (x.ndim - len(padding) // 2)
    pairs += [(padding[i], padding[i + 1]) for i in range(len(padding) - 2, -2, -2)]
    grown = jnp.pad(x, [(max(before, 0), max(after, 0)) for before, after in pairs], mode=mode)
    kept = (slice(max(-b, 0), n - max(-a, 0)) for (b, a), n in zip(pairs, grown.shape, strict=True))
    return grown[tuple(kept)]


def _forward(mode: str, x: Array, padding: tuple[int, ...], out: TensorType) -> Array:
    if x.size == 0:
        return jnp.zeros(out.shape, x.dtype)
    return _padded(mode, padding, x)


def _backward(mode: str, grad: Array, x: Array, padding: tuple[int, ...], out: TensorType) -> Array:
    wide_grad, wide_x = working(out, grad, x)
    if x.size == 0:
        return jnp.zeros(out.shape, x.dtype)
    pad: Callable[[Array], Array] = lambda a: _padded(mode, padding, a)  # noqa: E731
    (of_x,) = jax.linear_transpose(pad, jax.ShapeDtypeStruct(wide_x.shape, wide_x.dtype))(wide_grad)
    return narrow(of_x, out)


@op(
    aten.reflection_pad1d.default,
    aten.reflection_pad2d.default,
    aten.reflection_pad3d.default,
    kind=Kind.OTHER,
    work=no_work,
)
def reflection_pad(x: Array, padding: tuple[int, ...], *, out: TensorType) -> Array:
    return _forward("reflect", x, padding, out)


@op(
    aten.replication_pad1d.default,
    aten.replication_pad2d.default,
    aten.replication_pad3d.default,
    kind=Kind.OTHER,
    work=no_work,
)
def replication_pad(x: Array, padding: tuple[int, ...], *, out: TensorType) -> Array:
    return _forward("edge", x, padding, out)


@op(
    aten.reflection_pad1d_backward.default,
    aten.reflection_pad2d_backward.default,
    aten.reflection_pad3d_backward.default,
    kind=Kind.OTHER,
    work=per_input_element(),
)
def reflection_pad_backward(grad: Array, x: Array, padding: tuple[int, ...], *, out: TensorType) -> Array:
    return _backward("reflect", grad, x, padding, out)


@op(
    aten.replication_pad1d_backward.default,
    aten.replication_pad2d_backward.default,
    aten.replication_pad3d_backward.default,
    kind=Kind.OTHER,
    work=per_input_element(),
)
def replication_pad_backward(grad: Array, x: Array, padding: tuple[int, ...], *, out: TensorType) -> Array:
    return _backward("edge", grad, x, padding, out)
