"""Reductions of runs of slices along an axis, of given lengths or between given offsets, and their gradient."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from neuron_compiler.ir.graph import TensorType
from neuron_compiler.lowering import checks
from neuron_compiler.lowering.addressing import Rows
from neuron_compiler.lowering.numeric import Array, constant, dtype_of, narrow, widen
from neuron_compiler.opdef import Kind, op, per_input_element

aten = torch.ops.aten

_START = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -np.inf, "min": np.inf}
_COMBINE = {"sum": "add", "mean": "add", "prod": "mul", "max": "max", "min": "min"}


@dataclass(frozen=True)
class _Segments:
    """Rows of a flattened operand [rows, width], and to which row of the flattened result each belongs.

    Attributes:
        owner: number of the result's row; that of no row where no segment has the operand's row.
        lengths: of each segment, [rows of the result, 1].
        width: elements of a row.
    """

    owner: Array
    lengths: Array
    width: int

    @property
    def count(self) -> int:
        return int(self.lengths.shape[0])

    def reduce(self, rows: Array, start: Any, how: str) -> Array:
        filled = jnp.broadcast_to(constant(start, dtype_of(rows)), (self.count, self.width))
        return Rows(self.owner, (self.width,)).write(filled, rows, how)

    def spread(self, results: Array) -> Array:
        """Each segment's row at all of its operand's rows."""
        return Rows(jnp.minimum(self.owner, max(self.count - 1, 0)), (self.width,)).read(results)

    @property
    def owned(self) -> Array:
        return (self.owner < self.count)[:, None]


def _segments(x: Array, lengths: Array | None, offsets: Array | None, axis: int, unsafe: bool) -> _Segments:
    axis %= x.ndim
    batch, size = prod(x.shape[:axis]), x.shape[axis]
    if offsets is None:
        counts = jnp.asarray(lengths).astype(np.int64).reshape(batch, -1)
        if not unsafe and counts.size:
            checks.require(counts >= 0, "lengths contains negative value!", RuntimeError)
            message = "Expected all rows of lengths along axis to sum to data.size(lengths.dim()-1) when !unsafe."
            checks.require(jnp.sum(counts, 1) == size, message, RuntimeError)
        ends = jnp.cumsum(counts, 1)
        starts = ends - counts
    else:
        marks = offsets.astype(np.int64).reshape(batch, -1)
        starts, ends = marks[:, :-1], marks[:, 1:]
        counts = ends - starts
    number = counts.shape[1]
    places = jnp.arange(size)
    found = jax.vmap(lambda one: jnp.searchsorted(one, places, side="right"))(ends).astype(np.int64)
    inside = (found < number) & (places >= starts[:, :1])
    owner = jnp.where(inside, found + jnp.arange(batch)[:, None] * number, batch * number)
    return _Segments(owner.reshape(-1), counts.reshape(-1, 1), prod(x.shape[axis + 1 :]))


def _start(reduce: str, initial: Any) -> Any:
    return _START[reduce] if initial is None else initial


@op(aten.segment_reduce.default, kind=Kind.REDUCTION)
def segment_reduce(
    x: Array,
    reduce: str,
    *,
    lengths: Array | None = None,
    indices: Array | None = None,
    offsets: Array | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Any = None,
    out: TensorType,
) -> Array:
    if out.numel == 0 or x.size == 0:
        empty = np.nan if reduce == "mean" and initial is None else _start(reduce, initial)
        return narrow(jnp.full(out.shape, empty, np.float64), out)
    segments = _segments(x, lengths, offsets, axis, unsafe)
    rows = widen(x).reshape(-1, segments.width)
    found = segments.reduce(rows, _start(reduce, initial), _COMBINE[reduce])
    if reduce == "mean":
        divisor = segments.lengths.astype(found.dtype)
        empty = found if initial is not None else jnp.full_like(found, np.nan)
        found = jnp.where(segments.lengths > 0, found / jnp.maximum(divisor, 1), empty)
    return narrow(found.reshape(out.shape), out)


@op(aten._segment_reduce_backward.default, kind=Kind.INDEXING, work=per_input_element(flops=4))
def segment_reduce_backward(
    grad: Array,
    output: Array,
    x: Array,
    reduce: str,
    *,
    lengths: Array | None = None,
    offsets: Array | None = None,
    axis: int = 0,
    initial: Any = None,
    out: TensorType,
) -> Array:
    if x.size == 0 or grad.size == 0:
        return jnp.zeros(out.shape, x.dtype)
    segments = _segments(x, lengths, offsets, axis, unsafe=True)
    rows = widen(x).reshape(-1, segments.width)
    grads, results = (widen(a).reshape(-1, segments.width) for a in (grad, output))
    own = segments.spread(grads)
    if reduce in ("max", "min"):
        chosen = (rows != rows) | (rows == segments.spread(results))
        shares = segments.spread(segments.reduce(chosen.astype(rows.dtype), 0.0, "add"))
        found = jnp.where(chosen, own / jnp.maximum(shares, 1), 0)
    elif reduce == "mean":
        found = own / segments.spread(jnp.broadcast_to(segments.lengths.astype(rows.dtype), grads.shape))
    elif reduce == "sum":
        found = own
    else:
        found = own * _of_others(segments, rows, results, _start(reduce, initial))
    return narrow(jnp.where(segments.owned, found, 0).reshape(out.shape), out)


def _of_others(segments: _Segments, rows: Array, results: Array, initial: Any) -> Array:
    """Product of a segment without each of its elements: by division, but where an element is zero or NaN."""
    zero, unknown = rows == 0, rows != rows
    kind = rows.dtype
    plain = segments.spread(segments.reduce(jnp.where(zero | unknown, 1, rows), initial, "mul"))
    zeros, unknowns = (segments.spread(segments.reduce(mask.astype(kind), 0.0, "add")) for mask in (zero, unknown))
    left = jnp.where(zeros - zero.astype(kind) > 0, plain * 0, plain)
    left = jnp.where(unknowns - unknown.astype(kind) > 0, jnp.full_like(plain, np.nan), left)
    ordinary = ~(zero | unknown)
    return jnp.where(ordinary, segments.spread(results) / jnp.where(ordinary, rows, 1), left)
