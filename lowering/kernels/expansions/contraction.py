"""Matrix products, by TensorE."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from neuron_compiler.ir.graph import Op, Value
from neuron_compiler.ir.kernel import Affine
from neuron_compiler.lowering.kernels.expansions.common import F32, Expansion
from neuron_compiler.lowering.kernels.index_maps import Index, NoKernel
from neuron_compiler.lowering.kernels.nodes import NodeId
from neuron_compiler.lowering.kernels.pull import Pull


def _matrices(p: Pull, op: Op, left: tuple[str, Index], right: tuple[str, Index], over: Affine) -> NodeId:
    nodes = [p.value(name, index) for name, index in (left, right)]
    if not all(p.dag[n].dtype.is_floating for n in nodes):
        raise NoKernel("products of whole numbers")
    factors = sorted(over.terms, key=lambda term: -term[1])
    return p.dag.product(*nodes, tuple(atom for atom, _ in factors))


def _linear(p: Pull, op: Op, number: int, index: Index) -> NodeId:
    x, w = p.source(op, 0), p.source(op, 1)
    if len(p.shape(op, 1)) != 2:
        raise NoKernel("linear of a vector")
    k = p.contracted(p.shape(op, 1)[1])
    found = _matrices(p, op, (x, (*index[:-1], k)), (w, (index[-1], k)), k)
    if isinstance(op.operand(2), Value):
        return p.dag.binary("add", found, p.operand(op, 2, index), p.dtype(op))
    return p.dag.cast(found, p.dtype(op))


def _mm(first: int, p: Pull, op: Op, number: int, index: Index) -> NodeId:
    """mm, bmm, and with ``first`` of 1 what they are added to: beta * addend + alpha * product."""
    a, b = p.source(op, first), p.source(op, first + 1)
    k = p.contracted(p.shape(op, first)[-1])
    found = _matrices(p, op, (a, (*index[:-1], k)), (b, (*index[:-2], k, index[-1])), k)
    if not first:
        return p.dag.cast(found, p.dtype(op))
    alpha, beta = op.attr("alpha", 1), op.attr("beta", 1)
    if not isinstance(alpha, int | float) or not isinstance(beta, int | float):
        raise NoKernel(f"{op.kind} scaled by no number")
    d = p.dag
    found = d.binary("multiply", found, d.number(float(alpha)), F32) if alpha != 1 else found
    if beta == 0:
        return d.cast(found, p.dtype(op))
    addend = p.operand(op, 0, index)
    addend = d.binary("multiply", addend, d.number(float(beta)), F32) if beta != 1 else addend
    return d.binary("add", found, addend, p.dtype(op))


EXPANSIONS: Mapping[str, Expansion] = {
    "linear": _linear,
    "mm": partial(_mm, 0),
    "bmm": partial(_mm, 0),
    "addmm": partial(_mm, 1),
    "baddbmm": partial(_mm, 1),
}
