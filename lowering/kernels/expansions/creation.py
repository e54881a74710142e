"""Values that are made of nothing: one number, or numbers that count."""

from __future__ import annotations

from collections.abc import Mapping

from neuron_compiler.ir.graph import Op
from neuron_compiler.lowering.kernels.expansions.common import Expansion
from neuron_compiler.lowering.kernels.index_maps import Index, NoKernel
from neuron_compiler.lowering.kernels.nodes import NodeId
from neuron_compiler.lowering.kernels.pull import Pull


def _full(p: Pull, op: Op, number: int, index: Index) -> NodeId:
    value = op.operand(1, op.attr("fill_value"))
    if not isinstance(value, int | float):
        raise NoKernel(f"{op.kind} of no number")
    return p.dag.number(float(value) if p.dtype(op).is_floating else int(value))


def _arange(p: Pull, op: Op, number: int, index: Index) -> NodeId:
    given = [op.operand(i) for i in range(3)]
    numbers = [n for n in given if n is not None]
    if not all(isinstance(n, int) for n in numbers):
        raise NoKernel("arange of floats")
    start, step = (0, 1) if len(numbers) == 1 else (numbers[0], numbers[2] if len(numbers) > 2 else 1)
    if not isinstance(start, int) or not isinstance(step, int):
        raise NoKernel("arange of no numbers")
    return p.dag.iota(index[0] * step + start, p.dtype(op))


EXPANSIONS: Mapping[str, Expansion] = {"full": _full, "arange": _arange}
