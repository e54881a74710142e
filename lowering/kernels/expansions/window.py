"""Convolutions, pooling and padding: windows of a copy with a border."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product

from neuron_compiler.ir.graph import Op, TupleType, Value
from neuron_compiler.ir.kernel import Affine, affine
from neuron_compiler.lowering.kernels.expansions.common import F32, Expansion
from neuron_compiler.lowering.kernels.index_maps import Index, NoKernel, Padding
from neuron_compiler.lowering.kernels.nodes import NodeId
from neuron_compiler.lowering.kernels.pull import Pull


def _ints(op: Op, position: int, rank: int) -> tuple[int, ...]:
    given = op.operand(position)
    listed = tuple(n for n in given if isinstance(n, int)) if isinstance(given, tuple) else ()
    if len(listed) not in (1, rank):
        raise NoKernel(f"operand {position} of {op.kind} is no list of numbers")
    return listed * rank if len(listed) == 1 else listed


def _convolution(p: Pull, op: Op, number: int, index: Index) -> NodeId:
    """A product over window and channels, of a copy with a border; element by element where channels are apart."""
    x, w = p.source(op, 0), p.source(op, 1)
    shape, filters = p.shape(op, 0), p.shape(op, 1)
    rank, groups = len(shape) - 2, op.operand(8)
    if op.operand(6) is True or not isinstance(groups, int) or len(filters) != len(shape):
        raise NoKernel("transposed convolutions")
    stride, border, dilation = (_ints(op, i, rank) for i in (3, 4, 5))
    window = filters[2:]
    around = Padding(x, (0, 0, *border), (0, 0, *border), 0.0)

    def source(channel: Affine, places: Index) -> NodeId:
        moved = tuple(i * s + k * d for i, s, k, d in zip(index[2:], stride, places, dilation, strict=True))
        return p.padded(around, (index[0], channel, *moved))

    d, dtype = p.dag, p.dtype(op)
    if groups == 1:
        over = [p.contracted(extent) for extent in (*window, filters[1])]
        *places, channel = over
        nodes = p.value(w, (index[1], channel, *places)), source(channel, tuple(places))
        factors = [sorted(o.terms, key=lambda term: -term[1]) for o in over]
        found = d.product(*nodes, tuple(atom for terms in factors for atom, _ in terms))
    elif filters[1] == 1 and filters[0] == groups:
        found = d.number(0.0)
        for places in product(*map(range, window)):
            at = tuple(map(affine, places))
            term = d.binary("multiply", source(index[1], at), p.value(w, (index[1], affine(0), *at)), F32)
            found = term if d.number_of(found) is not None else d.binary("add", found, term, F32)
    else:
        raise NoKernel("convolutions of groups of channels")
    if isinstance(op.operand(2), Value):
        return d.binary("add", found, p.value(p.source(op, 2), (index[1],)), dtype)
    return d.cast(found, dtype)


def _max_pool(p: Pull, op: Op, number: int, index: Index) -> NodeId:
    if number != 0:
        raise NoKernel("places of maxima")
    shape = p.shape(op)
    window = _ints(op, 1, 2)
    stride = _ints(op, 2, 2) if op.operand(2) else window
    border = _ints(op, 3, 2) if len(op.operands) > 3 else (0, 0)
    dilation = _ints(op, 4, 2) if len(op.operands) > 4 else (1, 1)
    lead = len(shape) - 2
    result = p.graph.types[op.result]
    seen = result.elements[0] if isinstance(result, TupleType) else None
    if seen is None:
        raise NoKernel(f"{op.kind} gives nothing")
    # With ceil_mode the last window may reach beyond the border.
    last = [
        (n - 1) * s + (w - 1) * k + 1 for n, s, w, k in zip(seen.shape[lead:], stride, window, dilation, strict=True)
    ]
    after = [max(end - extent - b, 0) for end, extent, b in zip(last, shape[lead:], border, strict=True)]
    zeros = (0,) * lead
    around = Padding(p.source(op), (*zeros, *border), (*zeros, *after), -math.inf)
    found: NodeId | None = None
    for places in product(*map(range, window)):
        moved = tuple(i * s + k * d for i, s, k, d in zip(index[lead:], stride, places, dilation, strict=True))
        node = p.padded(around, (*index[:lead], *moved))
        found = node if found is None else p.dag.binary("maximum", found, node, p.dtype(op, 0))
    if found is None:
        raise NoKernel("an empty window")
    return found


def _pad(p: Pull, op: Op, number: int, index: Index) -> NodeId:
    shape, given = p.shape(op), op.operand(1)
    value = op.operand(2, 0)
    pads = [n for n in given if isinstance(n, int)] if isinstance(given, tuple) else []
    if min(pads, default=0) < 0 or not isinstance(value, int | float) or not p.dtype(op).is_floating:
        raise NoKernel("padding that cuts, or of whole numbers")
    before, after = [0] * len(shape), [0] * len(shape)
    for axis, (low, high) in enumerate(zip(pads[::2], pads[1::2], strict=True)):
        before[-1 - axis], after[-1 - axis] = low, high
    return p.padded(Padding(p.source(op), tuple(before), tuple(after), float(value)), index)


EXPANSIONS: Mapping[str, Expansion] = {
    "convolution": _convolution,
    "max_pool2d_with_indices": _max_pool,
    "constant_pad_nd": _pad,
}
