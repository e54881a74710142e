"""What expansions share: their type, and numbers among the operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from neuron_compiler.ir.graph import DType, Op
from neuron_compiler.lowering.kernels.index_maps import Index, NoKernel
from neuron_compiler.lowering.kernels.nodes import NodeId
from neuron_compiler.lowering.kernels.pull import Pull

Expansion: TypeAlias = Callable[[Pull, Op, int, Index], NodeId]
"""The node of a result of an op (by number, where it has several) at an index, from those of its operands."""

F32 = DType.F32


def number_of(op: Op, position: int, name: str, default: float | int | None = None) -> float | int:
    """An operand that is a number, by position or by name."""
    found = op.operand(position, op.attr(name, default))
    if not isinstance(found, int | float):
        raise NoKernel(f"{name} of {op.kind} is no number")
    return found
