"""Rows of a table by index."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from neuron_compiler.ir.graph import DType, Op, Value
from neuron_compiler.lowering.kernels.expansions.common import Expansion, number_of
from neuron_compiler.lowering.kernels.index_maps import Index, NoKernel, broadcast, flat
from neuron_compiler.lowering.kernels.nodes import NodeId
from neuron_compiler.lowering.kernels.pull import Pull, on_chip


def _rows(p: Pull, table: str, row: NodeId, columns: Index, lead: int) -> NodeId:
    """Elements of the row of a table that ``row`` names; the first ``lead`` dimensions of the table count rows."""
    p.stored(table)
    type_ = p.graph.tensor_type(table)
    rows = prod(type_.shape[:lead])
    return p.dag.gather(table, row, flat(columns, type_.shape[lead:]), rows, on_chip(type_.dtype))


def _embedding(p: Pull, op: Op, number: int, index: Index) -> NodeId:
    table, at = p.source(op, 0), p.source(op, 1)
    rank = len(p.graph.tensor_type(at).shape)
    return _rows(p, table, p.value(at, index[:rank]), index[rank:], 1)


def _index_select(p: Pull, op: Op, number: int, index: Index) -> NodeId:
    if number_of(op, 1, "dim") != 0:
        raise NoKernel("columns by index")
    return _rows(p, p.source(op), p.value(p.source(op, 2), index[:1]), index[1:], 1)


def _index(p: Pull, op: Op, number: int, index: Index) -> NodeId:
    """Rows of a table by the numbers of its first dimensions, counted from the end where they are negative."""
    table, given = p.source(op), op.operand(1)
    named = given if isinstance(given, tuple) else ()
    names = [v.name for v in named if isinstance(v, Value)]
    types = [p.graph.tensor_type(name) for name in names]
    if len(names) != len(named) or not names or not all(t.dtype.is_integer for t in types):
        raise NoKernel("elements by index of other dimensions than the first, or by a mask")
    d, shape = p.dag, p.shape(op)
    rank, lead = max(t.rank for t in types), len(names)
    row = d.number(0)
    for name, type_, extent in zip(names, types, shape, strict=False):
        place = p.value(name, broadcast(index[:rank], type_.shape))
        # On GpSimd, which is exact: a choice between two numbers would go through fp32.
        below = d.binary("less", place, d.number(0), DType.I32)
        place = d.binary("add", place, d.binary("multiply", below, d.number(extent), DType.I32), DType.I32)
        row = d.binary("add", d.binary("multiply", row, d.number(extent), DType.I32), place, DType.I32)
    return _rows(p, table, row, index[rank:], lead)


EXPANSIONS: Mapping[str, Expansion] = {"embedding": _embedding, "index": _index, "index_select": _index_select}
