"""Products of 8-bit matrices with scales, and products of one matrix with several by groups of its rows."""

from __future__ import annotations

import jax.numpy as jnp
import torch
from jax import lax

from neuron_compiler.ir.graph import DType, TensorType
from neuron_compiler.lowering.numeric import Array, cast, narrow, widen
from neuron_compiler.lowering.ops.contraction import contract, product_work
from neuron_compiler.opdef import Call, Kind, Work, op

aten = torch.ops.aten

BLOCK = 64
"""Rows of one product inside a group."""


@op(aten._int_mm.default, kind=Kind.CONTRACTION, work=product_work(0, 1))
def int_mm(a: Array, b: Array, *, out: TensorType) -> Array:
    return narrow(contract(a, b, ((1,), (0,))), out)


@op(aten._weight_int8pack_mm.default, kind=Kind.CONTRACTION, work=product_work(0, 1))
def weight_int8pack_mm(x: Array, weight: Array, scales: Array, *, out: TensorType) -> Array:
    """``x`` [M, K], ``weight`` int8 [N, K] with one scale a row."""
    product = contract(widen(x), cast(weight, DType.F32), ((1,), (1,)))
    return narrow(product * widen(scales), out)


@op(aten._scaled_mm.default, kind=Kind.CONTRACTION, work=product_work(0, 1))
def scaled_mm(
    a: Array,
    b: Array,
    scale_a: Array,
    scale_b: Array,
    bias: Array | None = None,
    scale_result: Array | None = None,
    out_dtype: DType | None = None,
    use_fast_accum: bool = False,
    *,
    out: TensorType,
) -> Array:
    """fp8 ``a`` [M, K] and ``b`` [K, N]; a scale is one number, [M, 1] of ``a`` or [1, N] of ``b``.

    As in ATen's CPU kernel, ``scale_result`` is not used.
    """
    product = contract(widen(a), widen(b), ((1,), (0,)))
    scales = (s.reshape(()) if s.size == 1 else s for s in (scale_a, scale_b))
    for scale in scales:
        product = product * scale
    if bias is not None:
        product = product + widen(bias)
    return narrow(product, out)


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


def _rows_by_group(x: Array, matrices: Array, ends: Array, over: int) -> Array:
    """Each group of rows of ``x`` [M, K] times its own matrix [G, ...], contracted over axis ``over``: [M, N], f32."""
    blocks = _Blocks(ends, x.shape[0])
    start = jnp.zeros((x.shape[0], matrices.shape[3 - over]), jnp.float32)

    def step(block: Array, result: Array) -> Array:
        group, first, mine = blocks.place(block)
        rows = lax.dynamic_slice_in_dim(x, first, blocks.size, 0)
        matrix = lax.dynamic_index_in_dim(matrices, group, 0, keepdims=False)
        product = contract(rows, matrix, ((1,), (over - 1,)))
        old = lax.dynamic_slice_in_dim(result, first, blocks.size, 0)
        return lax.dynamic_update_slice_in_dim(result, jnp.where(mine[:, None], product, old), first, 0)

    return lax.fori_loop(0, blocks.count, step, start)


def _sums_by_group(a: Array, b: Array, ends: Array) -> Array:
    """For each group of the shared axis, ``a`` [M, K] times ``b`` [K, N] over that group alone: [G, M, N], f32."""
    blocks = _Blocks(ends, b.shape[0])
    start = jnp.zeros((ends.shape[0], a.shape[0], b.shape[1]), jnp.float32)

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
