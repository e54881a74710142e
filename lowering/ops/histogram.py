"""Counts of elements, or of points, in bins: equal ones, or between given edges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch

from neuron_compiler.ir.graph import TensorType, TupleType
from neuron_compiler.lowering import checks
from neuron_compiler.lowering.addressing import Rows
from neuron_compiler.lowering.numeric import Array, cast, constant, dtype_of, narrow, quotient
from neuron_compiler.lowering.order import largest, smallest
from neuron_compiler.opdef import Kind, op, per_input_element

aten = torch.ops.aten


@op(aten.histc.default, kind=Kind.REDUCTION, work=per_input_element(flops=4))
def histc(x: Array, bins: int = 100, low: Any = 0, high: Any = 0, *, out: TensorType) -> Array:
    """Elements outside the range, and NaN, are in no bin; the last bin holds its upper edge, too.

    Half precisions round each step on the way to the bin, as ATen's kernel does, and not the result alone.
    """
    flat = x.reshape(-1)
    own = dtype_of(flat)
    first, last = constant(low, own), constant(high, own)
    if low == high and flat.size:
        first, last = smallest(flat, (0,)), largest(flat, (0,))
    finite = jnp.isfinite(first) & jnp.isfinite(last)
    checks.require(finite, "torch.histc: the range of the elements is not finite", RuntimeError)
    empty = first == last
    first, last = jnp.where(empty, first - 1, first), jnp.where(empty, last + 1, last)
    place = quotient((flat - first) * constant(bins, own), last - first)
    inside = (flat >= first) & (flat <= last)
    number = jnp.minimum(jnp.where(inside, place, 0).astype(np.int64), bins - 1)
    counts = Rows(jnp.where(inside, number, bins), ()).write(
        jnp.zeros(bins, jnp.int64), jnp.ones(flat.shape, jnp.int64), "add"
    )
    return narrow(cast(counts, own), out)


def _ends(x: Array, span: Any) -> tuple[Array, Array]:
    """First and last edge of the bins of [n] elements: as given, or their least and greatest; never equal."""
    own = dtype_of(x)
    if span is not None:
        first, last = (constant(end, own) for end in span)
    elif x.size == 0:
        first, last = constant(0.0, own), constant(1.0, own)
    else:
        first, last = smallest(x, (0,)), largest(x, (0,))
        finite = jnp.isfinite(first) & jnp.isfinite(last)
        checks.require(finite, "torch.histogramdd: the range of the elements is not finite", RuntimeError)
    half = jnp.where(first == last, constant(0.5, own), constant(0.0, own))
    return first - half, last + half


def _edges(first: Array, last: Array, bins: int) -> Array:
    """As ``linspace`` makes them: counted from the nearer end."""
    own = dtype_of(first)
    step = quotient(last - first, constant(bins, own))
    counted = jnp.arange(bins + 1, dtype=first.dtype)
    return jnp.where(jnp.arange(bins + 1) < (bins + 1) // 2, first + step * counted, last - step * (bins - counted))


def _by_search(x: Array, edges: Array) -> Array:
    return jnp.searchsorted(edges, x, side="right").astype(np.int64) - 1


def _by_division(x: Array, edges: Array) -> Array:
    first, last = edges[0], edges[-1]
    inside = (x >= first) & (x <= last)
    place = quotient((x - first) * constant(edges.size - 1, dtype_of(x)), last - first)
    return jnp.where(inside, place, 0).astype(np.int64)


def _counts(
    columns: Sequence[Array],
    edges: Sequence[Array],
    place: Callable[[Array, Array], Array],
    weight: Array | None,
    density: bool,
    out: TensorType,
) -> Array:
    """Weights of the points in each bin; a point outside the edges, or NaN, is in none; a last edge is in the last."""
    own = dtype_of(columns[0])
    number, inside = jnp.zeros(columns[0].shape, np.int64), jnp.ones(columns[0].shape, bool)
    for x, marks in zip(columns, edges, strict=True):
        inside &= (x >= marks[0]) & (x <= marks[-1])
        number = number * (marks.size - 1) + jnp.minimum(place(x, marks), marks.size - 2)
    weights = jnp.ones(columns[0].shape, columns[0].dtype) if weight is None else cast(weight.reshape(-1), own)
    total = Rows(jnp.where(inside, number, out.numel), ()).write(jnp.zeros(out.numel, weights.dtype), weights, "add")
    total = total.reshape(out.shape)
    if density:
        total = quotient(total, jnp.sum(total))
        for dim, marks in enumerate(edges):
            widths = marks[1:] - marks[:-1]
            total = total / widths.reshape(-1, *(1,) * (len(edges) - dim - 1))
    return narrow(total, out)


@op(aten.histogram.bin_ct, kind=Kind.REDUCTION, work=per_input_element(flops=4))
def histogram(
    x: Array,
    bins: int = 100,
    *,
    range: Any = None,
    weight: Array | None = None,
    density: bool = False,
    out: TupleType,
) -> tuple[Array, Array]:
    flat = x.reshape(-1)
    edges = _edges(*_ends(flat, range), bins)
    return _counts([flat], [edges], _by_search, weight, density, out.elements[0]), edges


@op(aten.histogram.bins_tensor, kind=Kind.REDUCTION, work=per_input_element(flops=4))
def histogram_of_bins(
    x: Array, bins: Array, *, weight: Array | None = None, density: bool = False, out: TupleType
) -> tuple[Array, Array]:
    return _counts([x.reshape(-1)], [bins], _by_search, weight, density, out.elements[0]), bins


def _columns(x: Array, dims: int) -> list[Array]:
    points = x.reshape(-1, dims)
    return [points[:, dim] for dim in range(dims)]


def _edges_of_columns(columns: Sequence[Array], bins: Sequence[int], span: Any) -> tuple[Array, ...]:
    spans = [None if span is None else span[2 * dim : 2 * dim + 2] for dim in range(len(bins))]
    return tuple(_edges(*_ends(x, s), count) for x, s, count in zip(columns, spans, bins, strict=True))


@op(aten._histogramdd_bin_edges.default, kind=Kind.REDUCTION)
def histogramdd_bin_edges(
    x: Array, bins: tuple[int, ...], *, range: Any = None, weight: Array | None = None, density: bool = False
) -> tuple[Array, ...]:
    return _edges_of_columns(_columns(x, len(bins)), bins, range)


@op(aten._histogramdd_from_bin_cts.default, kind=Kind.REDUCTION, work=per_input_element(flops=4))
def histogramdd(
    x: Array,
    bins: tuple[int, ...],
    *,
    range: Any = None,
    weight: Array | None = None,
    density: bool = False,
    out: TensorType,
) -> Array:
    columns = _columns(x, len(bins))
    return _counts(columns, _edges_of_columns(columns, bins, range), _by_division, weight, density, out)


@op(aten._histogramdd_from_bin_tensors.default, kind=Kind.REDUCTION, work=per_input_element(flops=4))
def histogramdd_of_bins(
    x: Array, bins: tuple[Array, ...], *, weight: Array | None = None, density: bool = False, out: TensorType
) -> Array:
    return _counts(_columns(x, len(bins)), bins, _by_search, weight, density, out)
