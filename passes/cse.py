"""Cse: what is computed twice from the same operands is computed once.

What it changes: an op whose kind, operands, attributes and type are those of one further up goes, and its readers read
that one; likewise for constants of the same bytes.

Why it pays: tracing repeats itself (the same mask, the same position table, the same flattened view for query, key and
value), each copy costs a kernel, and groups that read one value fuse where groups that read two equal ones do not.

Before and after::

    %0 = aten.view.default(%x, [8, 16]) : f32[8,16]
    %1 = aten.mm.default(%0, %q) : f32[8,16]
    %2 = aten.view.default(%x, [8, 16]) : f32[8,16]
    %3 = aten.mm.default(%2, %k) : f32[8,16]

    %0 = aten.view.default(%x, [8, 16]) : f32[8,16]
    %1 = aten.mm.default(%0, %q) : f32[8,16]
    %3 = aten.mm.default(%0, %k) : f32[8,16]

It assumes that every op is pure. Ops that draw random numbers are each their own.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import ClassVar

from neuron_compiler.ir.graph import Constant, Op, substitute
from neuron_compiler.ir.plan import Program
from neuron_compiler.passes.random_ops import is_random


@dataclass(frozen=True)
class Cse:
    """Common subexpressions; see the module."""

    name: ClassVar[str] = "cse"

    def __call__(self, program: Program) -> Program:
        graph = program.graph
        names: dict[str, str] = {}
        seen: dict[Hashable, str] = {}
        constants: list[Constant] = []
        for constant in graph.constants:
            first = seen.setdefault((constant.type, constant.data), constant.name)
            if first == constant.name:
                constants.append(constant)
            else:
                names[constant.name] = first
        ops: list[Op] = []
        for original in graph.ops:
            op = _renamed(original, names)
            first = op.result if is_random(op) else seen.setdefault(op.expression, op.result)
            if first == op.result:
                ops.append(op)
            else:
                names[op.result] = first
        if not names:
            return program
        outputs = tuple(names.get(name, name) for name in graph.outputs)
        return program.with_graph(replace(graph, ops=tuple(ops), outputs=outputs, constants=tuple(constants)))


def _renamed(op: Op, names: dict[str, str]) -> Op:
    if not any(name in names for name in op.uses):
        return op
    operands = tuple(substitute(operand, names) for operand in op.operands)
    return replace(op, operands=operands, attrs=tuple((key, substitute(value, names)) for key, value in op.attrs))
