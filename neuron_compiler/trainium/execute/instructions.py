"""What each instruction computes, on whole tiles.

One function an opcode. A tile comes as [partition, free], a column as [partition, 1], a number as itself; all of them
in the type they lie in. What is returned is rounded by the store. Engines convert to fp32, compute and round at the
end; whole numbers stay such where the instruction has a way for them (bits on every engine, arithmetic on GpSimd).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuron_compiler.errors import RuntimeFault
from neuron_compiler.ir.kernel import Engine
from neuron_compiler.trainium import isa
from neuron_compiler.trainium.execute.alu import BINARY, FLOAT, INTEGER, REDUCE, UNARY

Array = np.ndarray
Operand = Any
"""A tile, a column, or a number."""


@dataclass(frozen=True)
class Work:
    """One execution of an instruction.

    Attributes:
        call: the instruction with its buffers.
        attrs: with defaults, indices as their numbers in this iteration.
        src: what is read.
        prior: what lies where results go, for those that update it.
    """

    call: isa.Call
    attrs: Mapping[str, Any]
    src: list[Operand]
    prior: list[Array]

    @property
    def free(self) -> tuple[int, ...]:
        """Free extents of the first result."""
        return self.call.dst[0].shape[1:]

    @property
    def partitions(self) -> int:
        return self.call.dst[0].access.partitions


def f32(x: Operand) -> Any:
    return x.astype(FLOAT) if isinstance(x, Array) else FLOAT(x)


def _alu(work: Work, op: str, a: Operand, b: Operand) -> Array:
    whole = all(x.dtype.kind in "iub" if isinstance(x, Array) else isinstance(x, int) for x in (a, b))
    exact = op in isa.BITWISE or (work.call.instruction.engine is Engine.GPSIMD and op in INTEGER)
    if op in isa.BITWISE and not whole:
        raise RuntimeFault(f"{op} takes whole numbers", op=work.call.instruction.opcode)
    if whole and exact:
        return BINARY[op](*(np.asarray(x).astype(np.int64) for x in (a, b)))
    with np.errstate(all="ignore"):
        return BINARY[op](f32(a), f32(b))


def nc_matmul(work: Work) -> list[Array]:
    stationary, moving = map(f32, work.src)
    if work.attrs["performance_mode"] == "double_row":  # pairs of rows lie behind each other in a partition
        stationary, moving = (np.concatenate(np.split(x, 2, axis=1)) for x in (stationary, moving))
    product = stationary.T @ moving
    return [f32(work.prior[0]) + product if work.attrs["accumulate"] else product]


def nc_transpose(work: Work) -> list[Array]:
    return [work.src[0].T]


def activation(work: Work) -> list[Array]:
    x, scale, bias = (*work.src, *(1.0, 0.0)[len(work.src) - 1 :])
    with np.errstate(all="ignore"):
        found = UNARY[work.attrs["op"]](f32(x) * f32(scale) + f32(bias))
    if len(work.call.dst) == 1:
        return [found]
    total = found.sum(axis=1, keepdims=True, dtype=FLOAT)
    return [found, f32(work.prior[1]) + total if work.attrs["accumulate"] else total]


def tensor_copy(work: Work) -> list[Array]:
    return [work.src[0]]


def tensor_copy_predicated(work: Work) -> list[Array]:
    source, predicate = work.src
    return [np.where(predicate != 0, f32(source), f32(work.prior[0]))]


def tensor_tensor(work: Work) -> list[Array]:
    return [_alu(work, work.attrs["op"], *work.src)]


def _ordered(work: Work, index: int, a: Operand, b: Operand) -> Array:
    if work.attrs[f"reverse{index}"]:
        a, b = b, a
    return _alu(work, work.attrs[f"op{index}"], a, b)


def tensor_scalar(work: Work) -> list[Array]:
    found = _ordered(work, 0, work.src[0], work.src[1])
    return [found if work.attrs["op1"] == "none" else _ordered(work, 1, found, work.src[2])]


def scalar_tensor_tensor(work: Work) -> list[Array]:
    return [_ordered(work, 1, _ordered(work, 0, work.src[0], work.src[1]), work.src[2])]


def select_reduce(work: Work) -> list[Array]:
    predicate, on_true, on_false = work.src
    found = np.where(predicate != 0, f32(on_true), f32(on_false))
    return [found, *([found.max(axis=1, keepdims=True)] if len(work.call.dst) > 1 else [])]


def tensor_reduce(work: Work) -> list[Array]:
    x = f32(work.src[0])
    found = REDUCE[work.attrs["op"]](x.reshape(x.shape[0], int(np.prod(work.free)), -1), axis=2)
    return [-found if work.attrs["negate"] else found]


def tensor_partition_reduce(work: Work) -> list[Array]:
    return [REDUCE[work.attrs["op"]](f32(work.src[0]), axis=0, keepdims=True)]


def tensor_tensor_scan(work: Work) -> list[Array]:
    data0, data1, initial = work.src
    a, b = f32(data0), f32(data1)
    last = np.broadcast_to(f32(initial), (a.shape[0], 1))[:, 0]
    found = np.empty_like(a)
    for i in range(a.shape[1]):
        last = found[:, i] = _alu(work, work.attrs["op1"], _alu(work, work.attrs["op0"], last, a[:, i]), b[:, i])
    return [found]


def reciprocal(work: Work) -> list[Array]:
    with np.errstate(all="ignore"):
        return [UNARY["reciprocal"](f32(work.src[0]))]


def memset(work: Work) -> list[Array]:
    dtype = np.int64 if work.call.dst[0].dtype.is_integer else FLOAT
    return [np.full((work.partitions, int(np.prod(work.free))), work.src[0], dtype)]


def _affine(work: Work) -> Array:
    """offset + channel_multiplier * partition + step * index, of every element."""
    found = np.asarray(work.attrs["offset"], np.int64)
    steps = (work.attrs["channel_multiplier"], *work.attrs["steps"])
    for index, step in zip(np.indices((work.partitions, *work.free), sparse=True), steps, strict=True):
        found = found + index * step
    return np.broadcast_to(found, (work.partitions, *work.free)).reshape(work.partitions, -1)


def iota(work: Work) -> list[Array]:
    return [_affine(work)]


def affine_select(work: Work) -> list[Array]:
    kept = BINARY[work.attrs["cmp_op"]](_affine(work), np.int64(0)) != 0
    return [np.where(kept, f32(work.src[0]), f32(work.src[1]))]


def bn_stats(work: Work) -> list[Array]:
    """Count, mean, and variance times count, of the elements at even places and of those at odd ones."""
    x = f32(work.src[0])
    halves = (x[:, ::2], x[:, 1::2])
    found = np.zeros((x.shape[0], 6), FLOAT)
    for i, half in enumerate(halves):
        if half.shape[1]:
            mean = half.mean(axis=1, dtype=FLOAT)
            found[:, 3 * i] = half.shape[1]
            found[:, 3 * i + 1] = mean
            found[:, 3 * i + 2] = np.square(half - mean[:, None]).sum(axis=1, dtype=FLOAT)
    return [found]


def bn_aggr(work: Work) -> list[Array]:
    """Mean and variance of what several ``bn_stats`` saw."""
    count, mean, spread = (f32(work.src[0])[:, i::3] for i in range(3))
    total = count.sum(axis=1)
    with np.errstate(all="ignore"):
        overall = (count * mean).sum(axis=1) / total
        variance = (spread + count * np.square(mean - overall[:, None])).sum(axis=1) / total
    return [np.stack([overall, variance], axis=1)]


def max8(work: Work) -> list[Array]:
    return [-np.sort(-f32(work.src[0]), axis=1, kind="stable")[:, :8]]


def _places_of(x: Array, values: Array) -> Array:
    """Where each of the values stands, equal ones one after the other; the length where it does not."""
    found = np.full(values.shape, x.shape[1], np.int64)
    for row in range(x.shape[0]):
        taken = np.zeros(x.shape[1], bool)
        for i, wanted in enumerate(values[row]):
            at = np.flatnonzero((x[row] == wanted) & ~taken)
            if at.size:
                found[row, i] = at[0]
                taken[at[0]] = True
    return found


def nc_find_index8(work: Work) -> list[Array]:
    return [_places_of(f32(work.src[0]), f32(work.src[1]))]


def nc_match_replace8(work: Work) -> list[Array]:
    x = f32(work.src[0]).copy()
    places = _places_of(x, f32(work.src[1]))
    for row, at in enumerate(places):
        x[row, at[at < x.shape[1]]] = work.src[2]
    return [x]


def dma_copy(work: Work) -> list[Array]:
    source = work.src[0]
    if work.attrs["accumulate"]:
        return [f32(work.prior[0]) + f32(source).reshape(work.prior[0].shape)]
    return [source]


def dma_transpose(work: Work) -> list[Array]:
    source = work.call.src[0]
    columns = source.shape[-1] if source is not None else 1
    return [work.src[0].reshape(-1, columns).T]


def dma_gather(work: Work) -> list[Array]:
    table, index = work.src
    rows = _rows(work, table, index)
    return [table.reshape(table.shape[0], -1)[rows]]


def dma_scatter(work: Work) -> list[Array]:
    source, index = work.src
    table = work.prior[0].copy()
    rows = _rows(work, table, index)
    flat = table.reshape(table.shape[0], -1)
    if work.attrs["accumulate"]:
        for row, values in zip(rows, f32(source), strict=True):  # equal rows add up, one after the other
            flat[row] = (f32(flat[row]) + values).astype(flat.dtype)
    else:
        flat[rows] = source.astype(flat.dtype)
    return [table]


def _rows(work: Work, table: Array, index: Array) -> Array:
    rows = index[:, 0].astype(np.int64)
    if (outside := (rows < 0) | (rows >= table.shape[0])).any():
        raise RuntimeFault(
            f"row {int(rows[outside][0])} is outside of a table of {table.shape[0]}", op=work.call.instruction.opcode
        )
    return rows


def _collective(work: Work) -> list[Array]:
    raise RuntimeFault(f"{work.call.instruction.opcode} needs several cores; a kernel runs on one")


COMPUTE: Mapping[str, Callable[[Work], list[Array]]] = {
    f.__name__: f
    for f in (
        *(nc_matmul, nc_transpose, activation, tensor_copy, tensor_copy_predicated, tensor_tensor, tensor_scalar),
        *(scalar_tensor_tensor, select_reduce, tensor_reduce, tensor_partition_reduce, tensor_tensor_scan, reciprocal),
        *(memset, iota, affine_select, bn_stats, bn_aggr, max8, nc_find_index8, nc_match_replace8),
        *(dma_copy, dma_transpose, dma_gather, dma_scatter),
    )
} | dict.fromkeys(isa.COLLECTIVES, _collective)
