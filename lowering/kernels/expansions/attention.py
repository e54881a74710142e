"""Fused attention: one node, whose scores never reach HBM."""

from __future__ import annotations

import math
from collections.abc import Mapping

from neuron_compiler.ir.graph import DType, Op, Value
from neuron_compiler.lowering.kernels.expansions.common import F32, Expansion, number_of
from neuron_compiler.lowering.kernels.index_maps import Index, NoKernel, broadcast
from neuron_compiler.lowering.kernels.nodes import NodeId
from neuron_compiler.lowering.kernels.pull import Pull


def _attention(p: Pull, op: Op, number: int, index: Index) -> NodeId:
    """softmax(q k^T scale + mask) v, for each batch and head."""
    q, k, v = (p.source(op, i) for i in range(3))
    if number_of(op, 3, "dropout_p", 0.0) != 0 or number != 0:
        raise NoKernel("attention with dropout, and its logarithms of sums")
    width, keys = p.shape(op, 0)[-1], p.shape(op, 1)[-2]
    causal = op.operand(4, op.attr("is_causal", False)) is True
    mask = op.attr("attn_mask", op.operand(5))
    scale = op.attr("scale", op.operand(6))
    lead, row = index[:-2], index[-2]
    key, inner = p.contracted(keys), p.contracted(width)
    if len(key.terms) != 1 or len(inner.terms) != 1 or len(row.terms) > 1 or row.constant:
        raise NoKernel("attention through a view of its rows or of its width")
    nodes = (
        p.value(q, (*lead, row, inner)),
        p.value(k, (*lead, key, inner)),
        p.value(v, (*lead, key, index[-1])),
    )
    added = None
    if isinstance(mask, Value):
        shape = p.graph.tensor_type(mask.name).shape
        added = p.value(mask.name, broadcast((*lead, row, key), shape))
        if p.dag[added].dtype is DType.BOOL:
            added = p.dag.select(added, p.dag.number(0.0), p.dag.number(-math.inf), F32)
    found = p.dag.attention(
        nodes,
        added,
        (row.terms[0][0] if row.terms else "", key.terms[0][0], inner.terms[0][0]),
        float(scale) if isinstance(scale, int | float) else width**-0.5,
        causal,
    )
    return p.dag.cast(found, p.dtype(op, 0))


EXPANSIONS: Mapping[str, Expansion] = {"_scaled_dot_product_flash_attention_for_cpu": _attention}
