"""Reductions, softmax and norms: rows folded into columns, and what is done with those."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

from neuron_compiler.ir.graph import Op, Value
from neuron_compiler.ir.kernel import affine
from neuron_compiler.ir.space import base_name, dimensions
from neuron_compiler.lowering.kernels.expansions.common import F32, Expansion, number_of
from neuron_compiler.lowering.kernels.index_maps import Index, NoKernel
from neuron_compiler.lowering.kernels.nodes import NodeId
from neuron_compiler.lowering.kernels.pull import Pull


def _kept(index: Index, axes: tuple[int, ...], rank: int) -> Index:
    """The index of the operand of a reduction; 0 where it folds."""
    if len(index) == rank:
        return tuple(affine(0) if a in axes else place for a, place in enumerate(index))
    places = iter(index)
    return tuple(affine(0) if a in axes else next(places) for a in range(rank))


def _reduction(function: str, p: Pull, op: Op, number: int, index: Index) -> NodeId:
    shape = p.shape(op)
    axes = dimensions(op, 1, len(shape))
    whole, over = p.row(_kept(index, axes, len(shape)), axes, shape)
    x, dtype = p.value(p.source(op), whole), p.dtype(op)
    if not dtype.is_floating:
        raise NoKernel("reductions of whole numbers")
    name = base_name(op.kind)
    count = math.prod(shape[a] for a in axes)
    total = p.dag.reduce(function, x, over, F32 if name == "mean" else dtype)
    return p.dag.binary("multiply", total, p.dag.number(1 / count), dtype) if name == "mean" else total


def _softmax(p: Pull, op: Op, number: int, index: Index) -> NodeId:
    shape, d = p.shape(op), p.dag
    axis = int(number_of(op, 1, "dim")) % len(shape)
    whole, over = p.row(index, (axis,), shape)
    x, row = p.value(p.source(op), index), p.value(p.source(op), whole)
    top = d.reduce("max", row, over, F32)
    total = d.reduce("add", d.unary("exp", d.binary("subtract", row, top, F32), F32), over, F32)
    shifted = d.binary("subtract", x, top, F32)
    if base_name(op.kind).lstrip("_").startswith("log"):
        return d.binary("subtract", shifted, d.unary("log", total, F32), p.dtype(op))
    return d.binary("divide", d.unary("exp", shifted, F32), total, p.dtype(op))


def _softmax_backward(p: Pull, op: Op, number: int, index: Index) -> NodeId:
    """y * (g - sum(g * y)), or of a logarithm g - exp(y) * sum(g)."""
    shape, d = p.shape(op), p.dag
    whole, over = p.row(index, (int(number_of(op, 2, "dim")) % len(shape),), shape)
    gradient, result = (p.value(p.source(op, i), index) for i in (0, 1))
    row, row_result = (p.value(p.source(op, i), whole) for i in (0, 1))
    if "log" in base_name(op.kind):
        share = d.binary("multiply", d.unary("exp", result, F32), d.reduce("add", row, over, F32), F32)
        return d.binary("subtract", gradient, share, p.dtype(op))
    total = d.reduce("add", d.binary("multiply", row, row_result, F32), over, F32)
    return d.binary("multiply", d.binary("subtract", gradient, total, F32), result, p.dtype(op))


def _moments(p: Pull, row: NodeId, over: frozenset[str], count: int) -> tuple[NodeId, NodeId]:
    """Mean and variance of what a row holds."""
    d = p.dag
    share = d.number(1 / count)
    mean = d.binary("multiply", d.reduce("add", row, over, F32), share, F32)
    centred = d.binary("subtract", row, mean, F32)
    return mean, d.binary("multiply", d.reduce("add", d.unary("square", centred, F32), over, F32), share, F32)


def _layer_norm(p: Pull, op: Op, number: int, index: Index) -> NodeId:
    shape, d = p.shape(op), p.dag
    normalised = op.operand(1)
    rank = len(normalised) if isinstance(normalised, tuple) else 1
    axes = tuple(range(len(shape) - rank, len(shape)))
    whole, over = p.row(index, axes, shape)
    mean, variance = _moments(p, p.value(p.source(op), whole), over, math.prod(shape[a] for a in axes))
    if number == 1:
        return p.dag.cast(mean, p.dtype(op, 1))
    scale = d.binary("power", d.binary("add", variance, d.number(number_of(op, 4, "eps")), F32), d.number(-0.5), F32)
    if number == 2:
        return d.cast(scale, p.dtype(op, 2))
    found = d.binary("multiply", d.binary("subtract", p.value(p.source(op), index), mean, F32), scale, F32)
    for position, function in ((2, "multiply"), (3, "add")):
        if isinstance(op.operand(position), Value):
            last = position == 3 or not isinstance(op.operand(3), Value)
            found = d.binary(function, found, p.operand(op, position, index[-rank:]), p.dtype(op, 0) if last else F32)
    return d.cast(found, p.dtype(op, 0))


def _batch_norm(p: Pull, op: Op, number: int, index: Index) -> NodeId:
    """Of what was learnt: (x - mean) * (var + eps)^-0.5 * weight + bias, each one a channel."""
    if number != 0:
        raise NoKernel("saved statistics are empty")
    d, channel = p.dag, (index[1],)
    mean, variance = (p.value(p.source(op, i), channel) for i in (3, 4))
    scale = d.binary("power", d.binary("add", variance, d.number(number_of(op, 6, "eps")), F32), d.number(-0.5), F32)
    found = d.binary("multiply", d.binary("subtract", p.value(p.source(op), index), mean, F32), scale, F32)
    for position, function in ((1, "multiply"), (2, "add")):
        if isinstance(op.operand(position), Value):
            found = d.binary(function, found, p.value(p.source(op, position), channel), F32)
    return d.cast(found, p.dtype(op, 0))


EXPANSIONS: Mapping[str, Expansion] = {
    "sum": partial(_reduction, "add"),
    "mean": partial(_reduction, "add"),
    "amax": partial(_reduction, "max"),
    "amin": partial(_reduction, "min"),
    "_softmax": _softmax,
    "_log_softmax": _softmax,
    "_softmax_backward_data": _softmax_backward,
    "_log_softmax_backward_data": _softmax_backward,
    "native_layer_norm": _layer_norm,
    "_native_batch_norm_legit_no_training": _batch_norm,
}
