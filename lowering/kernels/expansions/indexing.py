"""Rows of a table by index."""

from __future__ import annotations

from collections.abc import Mapping

from neuron_compiler.ir.graph import Op
from neuron_compiler.lowering.kernels.expansions.common import Expansion
from neuron_compiler.lowering.kernels.index_maps import Index
from neuron_compiler.lowering.kernels.nodes import NodeId
from neuron_compiler.lowering.kernels.pull import Pull, on_chip


def _embedding(p: Pull, op: Op, number: int, index: Index) -> NodeId:
    table, at = p.source(op, 0), p.source(op, 1)
    p.stored(table)
    type_ = p.graph.tensor_type(table)
    row = p.value(at, index[: len(p.graph.tensor_type(at).shape)])
    return p.dag.gather(table, row, index[-1], type_.shape[0], on_chip(type_.dtype))


EXPANSIONS: Mapping[str, Expansion] = {"embedding": _embedding}
