"""Fourier transforms over any dimensions. XLA transforms up to three trailing ones at a time; jax moves them there."""

from __future__ import annotations

from collections.abc import Callable
from math import log2, prod, sqrt

import jax.numpy as jnp
import torch

from neuron_compiler.ir.graph import TensorType
from neuron_compiler.lowering.numeric import Array, narrow, scalar
from neuron_compiler.opdef import Call, Kind, Work, op

aten = torch.ops.aten

Ints = tuple[int, ...]

MOST_AXES = 3
"""Axes that one transform of XLA's takes."""


def _work(call: Call) -> Work:
    """5·n·log2 n flops for each line of n elements, the usual count for a complex transform."""
    dims = call.op.operand(1)
    larger = max(call.type(0), call.result_types[0], key=lambda t: t.numel)
    lines = [larger.shape[d] for d in dims if isinstance(d, int)] if isinstance(dims, tuple) else []
    return Work(int(5 * larger.numel * log2(max(prod(lines), 2))))


def _scaled(x: Array, normalization: int, count: int) -> Array:
    """``normalization``: 0 leaves the sum as it is, 1 divides by the root of the number of elements, 2 by it."""
    if normalization == 0:
        return x
    return x * scalar(1 / (sqrt(count) if normalization == 1 else count), x.real)


def _over_all(transform: Callable[..., Array], x: Array, dims: Ints, norm: str) -> Array:
    for start in range(0, len(dims), MOST_AXES):
        x = transform(x, axes=dims[start : start + MOST_AXES], norm=norm)
    return x


def _complex(x: Array, dims: Ints, forward: bool) -> Array:
    """Transform without a factor in either direction."""
    if x.size == 0:
        return x
    return _over_all(jnp.fft.fftn, x, dims, "backward") if forward else _over_all(jnp.fft.ifftn, x, dims, "forward")


@op(aten._fft_c2c.default, kind=Kind.OTHER, work=_work)
def fft_c2c(x: Array, dim: Ints, normalization: int, forward: bool, *, out: TensorType) -> Array:
    count = prod(x.shape[d] for d in dim)
    return narrow(_scaled(_complex(x, dim, forward), normalization, count), out)


@op(aten._fft_r2c.default, kind=Kind.OTHER, work=_work)
def fft_r2c(x: Array, dim: Ints, normalization: int, onesided: bool, *, out: TensorType) -> Array:
    """The last of ``dim`` is halved where ``onesided``."""
    count = prod(x.shape[d] for d in dim)
    if not onesided:
        return _scaled(_complex(narrow(x, out), dim, True), normalization, count)
    half = jnp.fft.rfft(x, axis=dim[-1], norm="backward") if x.size else narrow(jnp.zeros(out.shape), out)
    return narrow(_scaled(_complex(half, dim[:-1], True), normalization, count), out)


@op(aten._fft_c2r.default, kind=Kind.OTHER, work=_work)
def fft_c2r(x: Array, dim: Ints, normalization: int, last_dim_size: int, *, out: TensorType) -> Array:
    """The last of ``dim`` holds the first half of a line that the other half mirrors."""
    count = prod(out.shape[d] for d in dim)
    if out.numel == 0:
        return narrow(jnp.zeros(out.shape), out)
    half = _complex(x, dim[:-1], False)
    real = jnp.fft.irfft(half, n=last_dim_size, axis=dim[-1], norm="forward")
    return narrow(_scaled(real, normalization, count), out)
