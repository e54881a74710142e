"""Products of one matrix with several by groups of its rows: mixtures of experts.

ATen's own, and the two ops that the package transformers registers for element types that ATen's lacks; Dynamo leaves
those in the graph as they are.
"""

from __future__ import annotations

import jax.numpy as jnp
import torch
from jax import lax

from neuron_compiler import dtypes
from neuron_compiler.ir.graph import DType, TensorType, TupleType
from neuron_compiler.lowering import checks
from neuron_compiler.lowering.numeric import Array, dtype_of, narrow
from neuron_compiler.lowering.ops.contraction import accumulator, contract
from neuron_compiler.opdef import Call, Kind, Work, op

aten = torch.ops.aten

BLOCK = 64
"""Rows of one product inside a group."""


def _grouped_work(call: Call) -> Work:
    """2·m·k·n flops of each group; rows of all groups together are what one matrix has."""
    a, b = call.type(0), call.type(1)
    if a.rank == b.rank == 2:
        return Work(2 * a.numel * b.shape[1])
    return Work(2 * call.result_types[0].numel * a.shape[-1])


class _Blocks:
    """Blocks of rows that lie in one group each, where groups end at ``ends``: a group begins a block of its own."""

    def __init__(self, ends: Array, rows: int) -> None:
        self.ends, self.rows, self.size = ends, rows, min(BLOCK, rows)
        self.starts = jnp.concatenate([jnp.zeros(1, ends.dtype), ends[:-1]])
        self.last = jnp.cumsum(-(-(ends - self.starts) // self.size), dtype=ends.dtype)
        self.count = self.last[-1]

    def place(self, block: Array) -> tuple[Array, Array, Array]:
        """The block's group, its first row, and which of the ``size`` rows from there are the block's."""
        group = jnp.searchsorted(self.last, block.astype(self.last.dtype), side="right").astype(jnp.int32)
        before = jnp.where(group > 0, self.last[group - 1], 0)
        wanted = self.starts[group] + (block.astype(self.ends.dtype) - before) * self.size
        first = jnp.minimum(wanted, self.rows - self.size)
        row = first + jnp.arange(self.size, dtype=self.ends.dtype)
        return group, first, (row >= wanted) & (row < self.ends[group])


def _zeros(shape: tuple[int, ...], like: Array) -> Array:
    """What products of ``like``'s element type are summed on."""
    return jnp.zeros(shape, dtypes.to_numpy(accumulator(dtype_of(like))))


def _rows_by_group(x: Array, matrices: Array, ends: Array, over: int) -> Array:
    """Each group of rows of ``x`` [M, K] times its own matrix [G, ...], contracted over axis ``over``: [M, N], wide."""
    blocks = _Blocks(ends, x.shape[0])
    start = _zeros((x.shape[0], matrices.shape[3 - over]), x)

    def step(block: Array, result: Array) -> Array:
        group, first, mine = blocks.place(block)
        rows = lax.dynamic_slice_in_dim(x, first, blocks.size, 0)
        matrix = lax.dynamic_index_in_dim(matrices, group, 0, keepdims=False)
        product = contract(rows, matrix, ((1,), (over - 1,)))
        old = lax.dynamic_slice_in_dim(result, first, blocks.size, 0)
        return lax.dynamic_update_slice_in_dim(result, jnp.where(mine[:, None], product, old), first, 0)

    return lax.fori_loop(0, blocks.count, step, start)


def _sums_by_group(a: Array, b: Array, ends: Array) -> Array:
    """For each group of the shared axis, ``a`` [M, K] times ``b`` [K, N] over that group alone: [G, M, N], wide."""
    blocks = _Blocks(ends, b.shape[0])
    start = _zeros((ends.shape[0], a.shape[0], b.shape[1]), a)

    def step(block: Array, result: Array) -> Array:
        group, first, mine = blocks.place(block)
        left = jnp.where(mine, lax.dynamic_slice_in_dim(a, first, blocks.size, 1), 0)
        right = jnp.where(mine[:, None], lax.dynamic_slice_in_dim(b, first, blocks.size, 0), 0)
        old = lax.dynamic_index_in_dim(result, group, 0, keepdims=False)
        return lax.dynamic_update_index_in_dim(result, old + contract(left, right, ((1,), (0,))), group, 0)

    return lax.fori_loop(0, blocks.count, step, start)


def _not_grouped(call: Call) -> str | None:
    if call.op.operand(3) is not None:
        return "bias of a grouped product"
    return None if call.type(0).dtype.itemsize <= 4 else "double-precision grouped product"


@op(aten._grouped_mm.default, kind=Kind.CONTRACTION, work=_grouped_work, when=_not_grouped)
def grouped_mm(
    a: Array,
    b: Array,
    offs: Array | None = None,
    bias: Array | None = None,
    out_dtype: DType | None = None,
    *,
    out: TensorType,
) -> Array:
    """Products by groups that end at ``offs`` [G] along the axis of the two-dimensional operands."""
    if a.ndim == b.ndim == 3:
        return narrow(contract(a, b, ((2,), (1,)), ((0,), (0,))), out)
    if offs is None:
        raise ValueError("a grouped product of a two-dimensional matrix has no groups")
    if out.numel == 0 or a.size == 0 or b.size == 0:
        return narrow(jnp.zeros(out.shape), out)
    if a.ndim == b.ndim:
        return narrow(_sums_by_group(a, b, offs), out)
    if a.ndim == 2:
        return narrow(_rows_by_group(a, b, offs, 1), out)
    return narrow(_rows_by_group(b.T, a, offs, 2).T, out)


def _ends(offs: Array, rows: int) -> Array:
    """Ends of groups as transformers reads them: slices stop at the last row, and no row is in two groups."""
    ordered = jnp.all(offs[1:] >= offs[:-1]) & jnp.all(offs[:1] >= 0)
    checks.require(ordered, "groups of a grouped product have to end in ascending order", ValueError)
    return jnp.clip(offs, 0, rows)


def _fallback_work(call: Call) -> Work:
    """2·m·k·n flops of each group, for each product: one forward, two backward."""
    return Work(2 * call.type(0).numel * call.type(1).shape[2] * max(1, len(call.result_types)))


@op("transformers.grouped_mm_fallback.default", kind=Kind.CONTRACTION, work=_fallback_work)
def grouped_mm_fallback(x: Array, weight: Array, offs: Array, *, out: TensorType) -> Array:
    """Rows of ``x`` [S, K] up to ``offs`` [G] times ``weight`` [G, K, N]; rows of no group give 0."""
    if out.numel == 0 or x.size == 0 or offs.size == 0:
        return narrow(jnp.zeros(out.shape), out)
    return narrow(_rows_by_group(x, weight, _ends(offs, x.shape[0]), 1), out)


@op("transformers.grouped_mm_fallback_backward.default", kind=Kind.CONTRACTION, work=_fallback_work)
def grouped_mm_fallback_backward(
    x: Array, weight: Array, offs: Array, grad: Array, *, out: TupleType
) -> tuple[Array, Array]:
    """Gradients of ``x`` and of ``weight``."""
    rows, matrices = (kind for kind in out.elements if kind is not None)
    if x.size == 0 or weight.size == 0:
        return narrow(jnp.zeros(rows.shape), rows), narrow(jnp.zeros(matrices.shape), matrices)
    ends = _ends(offs, x.shape[0])
    by_row = _rows_by_group(grad, weight, ends, 2)
    return narrow(by_row, rows), narrow(_sums_by_group(x.T, grad, ends), matrices)
