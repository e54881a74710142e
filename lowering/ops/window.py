"""Window functions and frequencies: small vectors known at compile time, computed in float64 and rounded once."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import torch

from neuron_compiler.ir.graph import TensorType
from neuron_compiler.lowering.numeric import Array, cast
from neuron_compiler.opdef import Kind, op

aten = torch.ops.aten


def _places(length: int, periodic: bool) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Positions in [0, 1]; a periodic window leaves out the last, which is the next period's first."""
    last = length if periodic else length - 1
    return np.arange(length) / max(last, 1)


def _vector(values: np.ndarray[Any, Any], out: TensorType) -> Array:
    return cast(jnp.asarray(np.ones(out.shape) if out.numel == 1 else values), out.dtype)


@op(aten.bartlett_window.default, aten.bartlett_window.periodic, kind=Kind.CREATION)
def bartlett_window(length: int, periodic: bool = True, *, dtype: Any = None, out: TensorType) -> Array:
    return _vector(1 - np.abs(2 * _places(length, periodic) - 1), out)


@op(
    aten.hamming_window.default,
    aten.hamming_window.periodic,
    aten.hamming_window.periodic_alpha,
    aten.hamming_window.periodic_alpha_beta,
    kind=Kind.CREATION,
)
def hamming_window(
    length: int,
    periodic: bool = True,
    alpha: float = 0.54,
    beta: float = 0.46,
    *,
    dtype: Any = None,
    out: TensorType,
) -> Array:
    return _vector(alpha - beta * np.cos(2 * np.pi * _places(length, periodic)), out)


@op(aten.hann_window.default, aten.hann_window.periodic, kind=Kind.CREATION)
def hann_window(length: int, periodic: bool = True, *, dtype: Any = None, out: TensorType) -> Array:
    return hamming_window(length, periodic, 0.5, 0.5, out=out)


@op(aten.blackman_window.default, aten.blackman_window.periodic, kind=Kind.CREATION)
def blackman_window(length: int, periodic: bool = True, *, dtype: Any = None, out: TensorType) -> Array:
    angle = 2 * np.pi * _places(length, periodic)
    return _vector(0.42 - 0.5 * np.cos(angle) + 0.08 * np.cos(2 * angle), out)


@op(aten.kaiser_window.default, aten.kaiser_window.periodic, aten.kaiser_window.beta, kind=Kind.CREATION)
def kaiser_window(
    length: int, periodic: bool = True, beta: float = 12.0, *, dtype: Any = None, out: TensorType
) -> Array:
    distance = 2 * _places(length, periodic) - 1
    return _vector(np.i0(beta * np.sqrt(np.maximum(1 - distance * distance, 0))) / np.i0(beta), out)


@op(aten.fft_fftfreq.default, kind=Kind.CREATION)
def fftfreq(n: int, spacing: float = 1.0, *, dtype: Any = None, out: TensorType) -> Array:
    return cast(jnp.asarray(np.fft.fftfreq(n, spacing)), out.dtype)


@op(aten.fft_rfftfreq.default, kind=Kind.CREATION)
def rfftfreq(n: int, spacing: float = 1.0, *, dtype: Any = None, out: TensorType) -> Array:
    return cast(jnp.asarray(np.fft.rfftfreq(n, spacing)), out.dtype)
