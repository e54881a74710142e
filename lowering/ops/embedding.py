"""Embedding tables: rows by number, bags of rows, and the gradients of both.

A bad index raises after the run, in ATen's words. Gradients of half precisions accumulate in float32.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from neuron_compiler.ir.graph import DType, TensorType, TupleType
from neuron_compiler.lowering import checks
from neuron_compiler.lowering.addressing import Rows, in_range, rows_of
from neuron_compiler.lowering.numeric import Array, cast, constant, dtype_of, dtypes, narrow, widen, widened
from neuron_compiler.lowering.ops.reduction import norm_of
from neuron_compiler.lowering.ops.scan import cumsum
from neuron_compiler.opdef import Call, Kind, Work, op, per_input_element

aten = torch.ops.aten

SUM, MEAN, MAX = 0, 1, 2  # modes of embedding_bag


@op(aten.embedding.default, kind=Kind.INDEXING)
def embedding(
    weight: Array,
    indices: Array,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Array:
    in_range(indices, weight.shape[0], "index out of range in self")
    return rows_of(weight.shape, (indices,)).read(weight)


@op(aten.embedding_renorm.default, kind=Kind.INDEXING, work=per_input_element(flops=2))
def embedding_renorm(weight: Array, indices: Array, max_norm: float, norm_type: float, *, out: TensorType) -> Array:
    """The rows that are named, scaled down where their norm is more than ``max_norm``."""
    in_range(indices, weight.shape[0], "index out of range in self")
    named = Rows(indices.reshape(-1), ()).write(jnp.zeros(weight.shape[:1], bool), jnp.ones(indices.size, bool))
    wide = widen(weight)
    norms = widen(narrow(norm_of(wide, float(norm_type), (1,)), out))
    scale = narrow(constant(max_norm, dtype_of(norms)) / (norms + constant(1e-7, dtype_of(norms))), out)
    scaled = narrow(wide * widen(scale)[:, None], out)
    return jnp.where((named & (norms > max_norm))[:, None], scaled, weight)


def _added_rows(grads: Array, indices: Array, count: int, skip: int, by_frequency: bool, out: TensorType) -> Array:
    """Rows [n, width] summed into a table by number; rows of number ``skip`` are left out."""
    table = jnp.zeros((count, grads.shape[-1]), dtypes.to_numpy(widened(out.dtype)))
    # An out-of-range number is left out by XLA's scatter.
    numbers = jnp.where((indices == skip) | (indices < 0), np.array(count, indices.dtype), indices)
    rows = Rows(numbers, (grads.shape[-1],))
    if by_frequency and indices.size:
        seen = Rows(numbers, ()).write(jnp.zeros(count, jnp.int64), jnp.ones(indices.shape, jnp.int64), "add")
        grads = grads / cast(seen[jnp.clip(indices, 0, count - 1)], dtype_of(grads))[:, None]
    return narrow(rows.write(table, grads, "add"), out).reshape(out.shape)


@op(aten.embedding_dense_backward.default, kind=Kind.INDEXING, work=per_input_element())
def embedding_dense_backward(
    grad: Array, indices: Array, num_weights: int, padding_idx: int, scale_grad_by_freq: bool, *, out: TensorType
) -> Array:
    if grad.size == 0:
        return jnp.zeros(out.shape, grad.dtype)
    rows = widen(grad).reshape(-1, grad.shape[-1])
    return _added_rows(rows, indices.reshape(-1), num_weights, padding_idx, scale_grad_by_freq, out)


def _bag_of(offsets: Array, bags: int, count: int) -> Array:
    """For each of ``count`` indices, its bag: how many bags after the first start at or before it."""
    if count == 0 or bags == 0:
        return jnp.zeros(count, jnp.int64)
    starts = Rows(offsets[1:bags], ()).write(jnp.zeros(count, jnp.int64), jnp.ones(bags - 1, jnp.int64), "add")
    return cumsum(starts, 0, out=TensorType((count,), DType.I64))


def _summed(rows: Array, bag: Array, bags: int, how: str = "add", start: float = 0.0) -> Array:
    return Rows(bag, tuple(rows.shape[1:])).write(jnp.full((bags, *rows.shape[1:]), start, rows.dtype), rows, how)


def _largest_of_bags(rows: Array, bag: Array, bags: int, indices: Array, present: Array) -> tuple[Array, Array]:
    """Per bag and column: the largest element, and the index of the first row that has it; zeros of empty bags."""
    candidates = jnp.where(present[:, None], rows, -np.inf)
    best = _summed(candidates, bag, bags, "max", -np.inf)
    place = lax.broadcasted_iota(np.int64, rows.shape, 0)
    none = rows.shape[0]
    hits = present[:, None] & (candidates == best[bag])
    first = Rows(bag, tuple(rows.shape[1:])).write(
        jnp.full((bags, rows.shape[1]), none, jnp.int64), jnp.where(hits, place, none), "min"
    )
    filled = first < none
    return jnp.where(filled, best, 0), jnp.where(filled, indices.astype(np.int64)[jnp.minimum(first, none - 1)], 0)


def _auxiliary(values: Array | None, type_: TensorType) -> Array:
    """A result beside the bags. ATen leaves some unfilled by mode, and their recorded shapes vary with its kernels."""
    empty = jnp.zeros(type_.shape, dtypes.to_numpy(type_.dtype))
    if values is None or type_.numel == 0 or values.ndim != len(type_.shape):
        return empty
    shared = tuple(min(a, b) for a, b in zip(values.shape, type_.shape, strict=True))
    return lax.dynamic_update_slice(
        empty, cast(lax.slice(values, (0,) * values.ndim, shared), type_.dtype), (0,) * values.ndim
    )


def _check_bags(weight: Array, indices: Array, offsets: Array) -> None:
    size = weight.shape[0]
    in_range(indices, size, f"an index of input is not in the valid range [0, {size})", RuntimeError)
    if offsets.size:
        checks.require(offsets[0] == 0, "offsets[0] has to be 0", RuntimeError)
        checks.require(
            offsets[-1] <= indices.size,
            f"offsets[-1] can not be greater than input's length {indices.size}",
            RuntimeError,
        )


def _bag_work(call: Call) -> Work:
    width = call.type(0).shape[-1]
    return Work(flops=call.type(1).numel * width)


@op(aten._embedding_bag.default, aten._embedding_bag_forward_only.default, kind=Kind.INDEXING, work=_bag_work)
def embedding_bag(
    weight: Array,
    indices: Array,
    offsets: Array,
    scale_grad_by_freq: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample_weights: Array | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
    *,
    out: TupleType,
) -> tuple[Array, ...]:
    _check_bags(weight, indices, offsets)
    result, bag_type, size_type, maximum_type = out.elements
    bags = result.shape[0]
    bag = _bag_of(offsets, bags, indices.size)
    rows = widen(rows_of(weight.shape, (indices,)).read(weight))
    present = indices != padding_idx
    sizes = _summed(present.astype(np.int64), bag, bags)
    if mode == MAX:
        found, maximum = _largest_of_bags(rows, bag, bags, indices, present)
        return (
            narrow(found, result),
            _auxiliary(bag, bag_type),
            _auxiliary(sizes, size_type),
            _auxiliary(maximum, maximum_type),
        )
    if per_sample_weights is not None:
        rows = rows * cast(per_sample_weights, dtype_of(rows))[:, None]
    total = _summed(jnp.where(present[:, None], rows, 0), bag, bags)
    if mode == SUM:
        return (
            narrow(total, result),
            _auxiliary(bag, bag_type),
            _auxiliary(None, size_type),
            _auxiliary(None, maximum_type),
        )
    mean = total / cast(jnp.maximum(sizes, 1), dtype_of(total))[:, None]
    return (
        narrow(mean, result),
        _auxiliary(bag, bag_type),
        _auxiliary(sizes, size_type),
        _auxiliary(sizes, maximum_type),
    )


def _unscaled(call: Call) -> str | None:
    """ATen's CPU kernel divides by the frequency of another index than the row's: not to be imitated."""
    by_frequency = call.op.operand(7 if "dense" not in call.op.kind else 6)
    return "scale_grad_by_freq of bags" if by_frequency else None


@op(aten._embedding_bag_dense_backward.default, kind=Kind.INDEXING, work=per_input_element(), when=_unscaled)
def embedding_bag_dense_backward(
    grad: Array,
    indices: Array,
    offset2bag: Array,
    bag_size: Array,
    maximum_indices: Array,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Array | None,
    padding_idx: int = -1,
    *,
    out: TensorType,
) -> Array:
    wide = widen(grad)
    if mode == MAX:
        columns = lax.broadcasted_iota(np.int64, wide.shape, 1)
        numbers = jnp.where((bag_size > 0)[:, None], maximum_indices * wide.shape[1] + columns, out.numel)
        table = jnp.zeros(out.numel, wide.dtype)
        return narrow(Rows(numbers, ()).write(table, wide, "add"), out).reshape(out.shape)
    rows = wide[offset2bag]
    if mode == MEAN:
        rows = rows / cast(jnp.maximum(bag_size, 1), dtype_of(wide))[offset2bag][:, None]
    if per_sample_weights is not None:
        rows = rows * cast(per_sample_weights, dtype_of(wide))[:, None]
    return _added_rows(rows, indices, num_weights, padding_idx, scale_grad_by_freq, out)


def _dense(call: Call) -> str | None:
    return "a sparse gradient" if call.op.operand(9) else _unscaled(call)


@op(aten._embedding_bag_backward.default, kind=Kind.INDEXING, work=per_input_element(), when=_dense)
def embedding_bag_backward(
    grad: Array,
    indices: Array,
    offsets: Array,
    offset2bag: Array,
    bag_size: Array,
    maximum_indices: Array,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Array | None,
    padding_idx: int = -1,
    *,
    out: TensorType,
) -> Array:
    bag = offset2bag if offset2bag.size else _bag_of(offsets, grad.shape[0], indices.size)
    return embedding_bag_dense_backward(
        grad,
        indices,
        bag,
        bag_size,
        maximum_indices,
        num_weights,
        scale_grad_by_freq,
        mode,
        per_sample_weights,
        padding_idx,
        out=out,
    )


@op(aten._embedding_bag_per_sample_weights_backward.default, kind=Kind.INDEXING, work=_bag_work)
def embedding_bag_per_sample_weights_backward(
    grad: Array,
    weight: Array,
    indices: Array,
    offsets: Array,
    offset2bag: Array,
    mode: int,
    padding_idx: int = -1,
    *,
    out: TensorType,
) -> Array:
    bag: Any = offset2bag if offset2bag.size else _bag_of(offsets, grad.shape[0], indices.size)
    rows = widen(rows_of(weight.shape, (indices,)).read(weight))
    products = jnp.sum(rows * widen(grad)[bag], axis=1)
    return narrow(jnp.where(indices != padding_idx, products, 0), out)
