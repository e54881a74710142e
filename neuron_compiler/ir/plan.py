"""Plan: *how, where and when* a Graph is computed, in a side table that each pass fills one field of.

Decisions are not attributes of ops, so a plan can be thrown away and redone, two planners compared on one
graph, and one verifier judges them all.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from neuron_compiler.ir.graph import Graph


class GroupKind(enum.Enum):
    """What a group is built around; the value is its name in IR text."""

    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    MATMUL = "matmul"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    DATA_MOVEMENT = "data_movement"
    OTHER = "other"


@dataclass(frozen=True)
class Group:
    """A fused region: ops that are computed together, without a round trip through HBM between them.

    ``name`` is also the name of the region's function in the StableHLO. ``ops`` are result names in program order.
    """

    name: str
    kind: GroupKind
    ops: tuple[str, ...]


@dataclass(frozen=True)
class Barrier:
    """An edge between two groups that was *not* fused, with the reason, for people who ask why."""

    producer: str
    consumer: str
    value: str
    reason: str


class Space(enum.Enum):
    """A memory space of the chip."""

    HBM = "hbm"
    SBUF = "sbuf"
    PSUM = "psum"


@dataclass(frozen=True)
class Tile:
    """How one group's iteration space is cut for the engines. All counts are elements, sizes are bytes.

    Attributes:
        partition: extent on SBUF partitions of one tile, at most the target's partition count.
        free: extent along the free dimension of one tile.
        contraction: extent of the contracted dimension of one tile; 0 where nothing is contracted.
        space: the iteration space being cut: (partition extent, free extent, contraction extent); a batch extent
            in front multiplies it.
        batch: number of independent problems of that space.
        sbuf_bytes: bytes of SBUF that one tile's operands and results take, all partitions together.
        psum_bytes: bytes of PSUM that one tile's accumulator takes, all partitions together.
    """

    partition: int
    free: int
    contraction: int
    space: tuple[int, int, int]
    batch: int
    sbuf_bytes: int
    psum_bytes: int

    @property
    def count(self) -> int:
        """Number of tiles that cover the iteration space."""
        p, f, k = self.space
        steps = -(-p // self.partition) * -(-f // self.free)
        if self.contraction:
            steps *= -(-k // self.contraction)
        return steps * self.batch


def _empty() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True)
class Plan:
    """Empty until the passes fill it.

    Attributes:
        groups: every op in exactly one group, in an order that respects data flow; empty before ``fuse``.
        barriers: edges between groups that stayed apart, with reasons.
        tiles: tile of each group that has one, by group name; empty before ``tile``.
    """

    groups: tuple[Group, ...] = ()
    barriers: tuple[Barrier, ...] = ()
    tiles: Mapping[str, Tile] = field(default_factory=_empty)


@dataclass(frozen=True)
class Program:
    """The one value that passes take and return: a graph, the plan made for it, and the machine it is for."""

    graph: Graph
    plan: Plan = Plan()
    target: str = "trn2"

    def __str__(self) -> str:
        from neuron_compiler.ir import text

        return text.format(self)

    def with_graph(self, graph: Graph) -> Program:
        """This program with another graph; the plan is dropped, since it speaks of the old one."""
        return replace(self, graph=graph, plan=Plan())

    def with_plan(self, **fields: Any) -> Program:
        """This program with some fields of its plan replaced."""
        return replace(self, plan=replace(self.plan, **fields))


def group_boundary(graph: Graph, group: Group) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Values that a group reads from outside, and those of its values that are read outside, both in program order."""
    inside = set(group.ops)
    reads: dict[str, None] = {}
    for name in group.ops:
        for use in graph.defs[name].uses:
            if use not in inside:
                reads[use] = None
    returned = set(graph.outputs)
    gives = tuple(
        name
        for name in group.ops
        if name in returned or any(user.result not in inside for user in graph.users.get(name, ()))
    )
    return tuple(reads), gives
