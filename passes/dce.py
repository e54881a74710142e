"""Dce: what nobody reads is not computed.

What it changes: ops and constants that no returned value depends on go. Inputs stay: they are the graph's signature.

Why it pays: other passes leave what they replaced behind, decompositions compute results that a model ignores, and both
would be fused, tiled and costed.

Before and after::

    %0 = aten.exp.default(%x) : f32[8]
    %1 = aten.log.default(%x) : f32[8]
    return %0

    %0 = aten.exp.default(%x) : f32[8]
    return %0

It assumes that every op is pure: captured graphs are functional, and random numbers are drawn before the graph runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from neuron_compiler.ir.graph import Op
from neuron_compiler.ir.plan import Program


@dataclass(frozen=True)
class Dce:
    """Dead code; see the module."""

    name: ClassVar[str] = "dce"

    def __call__(self, program: Program) -> Program:
        graph = program.graph
        read = set(graph.outputs)
        kept: list[Op] = []
        for op in reversed(graph.ops):
            if op.result in read:
                read.update(op.uses)
                kept.append(op)
        constants = tuple(c for c in graph.constants if c.name in read)
        if len(kept) == len(graph.ops) and len(constants) == len(graph.constants):
            return program
        return program.with_graph(replace(graph, ops=tuple(reversed(kept)), constants=constants))
