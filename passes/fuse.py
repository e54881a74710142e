"""Fuse: every op into exactly one group, a region that is computed without a round trip through HBM.

What it changes: fills ``plan.groups`` and ``plan.barriers``. Why it pays: a value between two groups is written to HBM
and read back; inside a group it stays in SBUF or PSUM. A group is one matrix product or convolution with its epilogue
(bias, activation, residual) and cheap prologue (views, casts), attention whole, a reduction with what feeds and follows
it, or a chain of elementwise ops. Every edge that stays between two groups is recorded as a barrier with its reason.

Before::

    %0 = aten.mm.default(%x, %w) : f32[64,256]
    %1 = aten.relu.default(%0) : f32[64,256]
    %2 = aten._softmax.default(%1, -1, false) : f32[64,256]

After::

    group g0_mm_relu matmul (%0, %1)
    group g1_softmax reduction (%2)
    barrier g0_mm_relu -> g1_softmax %1 "a reduction over the output of a matmul"

Assumes the op registry is filled: an op that it does not know stays alone. The same graph always gives the same plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import networkx as nx

from neuron_compiler.errors import PassError
from neuron_compiler.ir.graph import Graph, Op
from neuron_compiler.ir.plan import Barrier, Group, GroupKind, Plan, Program
from neuron_compiler.ir.space import base_name
from neuron_compiler.opdef import REGISTRY, Kind, Registry, kind_of
from neuron_compiler.passes.fusion_growth import Growth
from neuron_compiler.passes.fusion_names import stem
from neuron_compiler.passes.fusion_rules import CONCATENATIONS, Region, Role, facts_of, fit


@dataclass(frozen=True)
class Fuse:
    """The pass.

    Attributes:
        max_ops: most ops in one group.
        registry: where the families of ops are looked up.
    """

    max_ops: int = 64
    registry: Registry = field(default=REGISTRY, repr=False, compare=False)
    name: ClassVar[str] = "fuse"

    def __call__(self, program: Program) -> Program:
        graph = program.graph
        facts = [facts_of(op, kind_of(op, self.registry), graph.types) for op in graph.ops]
        growth = Growth(graph, facts, self.max_ops)
        growth.run()
        regions = _in_order(growth)
        names = [f"g{n}_{stem(region, graph)}" for n, region in enumerate(regions)]
        groups = tuple(
            Group(name, _kind(region, graph), tuple(graph.ops[i].result for i in region.ops))
            for name, region in zip(names, regions, strict=True)
        )
        barriers = _barriers(growth, regions, names)
        if (groups, barriers) == (program.plan.groups, program.plan.barriers):
            return program
        # Tiles speak of groups by name: with other groups they are out of date.
        return program.with_plan(groups=groups, barriers=barriers, tiles=Plan().tiles)


def _in_order(growth: Growth) -> list[Region]:
    """Regions in an order of data flow, else by when the program has computed them; proves that no cycle was made."""
    regions = growth.regions.all()
    edges: nx.DiGraph[int] = nx.DiGraph()
    number = {id(region): i for i, region in enumerate(regions)}
    edges.add_nodes_from(range(len(regions)))
    for i, region in enumerate(regions):
        edges.add_edges_from((number[id(read)], i) for read in growth.regions.read_regions(region))
    try:
        return [regions[i] for i in nx.lexicographical_topological_sort(edges, key=lambda i: regions[i].ops[-1])]
    except nx.NetworkXUnfeasible:
        cycle = " -> ".join(f"%{growth.graph.ops[regions[a].ops[0]].result}" for a, _ in nx.find_cycle(edges))
        raise PassError(f"fusion made groups that wait for each other: those of {cycle}", when="fuse") from None


_ALONE_KINDS = {Kind.INDEXING: GroupKind.DATA_MOVEMENT}
_ANCHOR_KINDS = {
    Kind.CONTRACTION: GroupKind.MATMUL,
    Kind.CONVOLUTION: GroupKind.CONVOLUTION,
    Kind.ATTENTION: GroupKind.ATTENTION,
}


def _kind(region: Region, graph: Graph) -> GroupKind:
    if region.role is Role.ALONE:
        return _ALONE_KINDS.get(region.anchor_kind, GroupKind.OTHER)
    if region.is_matrix:
        return _ANCHOR_KINDS[region.anchor_kind]
    if region.runs is not None:
        return GroupKind.REDUCTION
    moves = region.only_views or all(base_name(graph.ops[i].kind) in CONCATENATIONS for i in region.ops)
    return GroupKind.DATA_MOVEMENT if moves else GroupKind.ELEMENTWISE


def _barriers(growth: Growth, regions: list[Region], names: list[str]) -> tuple[Barrier, ...]:
    """One barrier per value and pair of groups that it passes between, in the order of the reading groups."""
    name = {id(region): text for region, text in zip(regions, names, strict=True)}
    found: dict[tuple[str, str, str], Barrier] = {}
    for consumer in regions:
        for op in (growth.graph.ops[i] for i in consumer.ops):
            for value in op.uses:
                producer = growth.regions.of(value)
                if producer is None or producer is consumer:
                    continue
                edge = (name[id(producer)], name[id(consumer)], value)
                if edge not in found:
                    found[edge] = Barrier(*edge, _reason(growth, producer, consumer, op, value, name))
    return tuple(found.values())


def _reason(growth: Growth, producer: Region, consumer: Region, op: Op, value: str, name: dict[int, str]) -> str:
    if not producer.only_views:
        found = fit(producer, consumer, op, value, growth.facts[op.result], growth.graph.types)
        if isinstance(found, str):
            return found
    if len(producer.ops) + len(consumer.ops) > growth.max_ops:
        return f"group limit ({growth.max_ops} ops)"
    if (through := growth.regions.between(producer, consumer)) is not None:
        return f"would form a cycle through {name[id(through)]}"
    if value in growth.returned:
        return "value is returned by the graph and is materialised anyway"
    readers = {id(growth.regions.of(user.result)) for user in growth.graph.users[value]} - {id(producer)}
    if len(readers) > 1:
        return f"value has {len(readers)} users in other groups and is materialised anyway"
    return f"its producer gives values to {len(growth.regions.reading_regions(producer))} groups"
