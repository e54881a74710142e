"""Regions: disjoint sets of ops that may be merged while the graph between them stays acyclic.

The legality of ``passes/fuse``, kept incrementally: each region holds, as one integer's bits, all ops that it waits
for. A merge is legal if no third region waits for one of the two and is waited for by the other; a merge only tells
those descendants that did not know yet. On a graph of thousands of ops both take microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from neuron_compiler.ir.graph import Graph
from neuron_compiler.passes.fusion_rules import Facts, Region, Role, first_place


class Regions:
    """All regions of a graph, at first one per op. Mutable; lives during one fusion."""

    def __init__(self, graph: Graph, facts: Sequence[Facts]) -> None:
        self.graph = graph
        self.index = {op.result: i for i, op in enumerate(graph.ops)}
        self._reads = [tuple(self.index[u] for u in op.uses if u in self.index) for op in graph.ops]
        self._readers: list[list[int]] = [[] for _ in graph.ops]
        self._home: list[Region] = []
        for i, (op, known) in enumerate(zip(graph.ops, facts, strict=True)):
            before = 0
            for j in self._reads[i]:
                self._readers[j].append(i)
                before |= self._home[j].mask | self._home[j].before
            anchored = known.role in (Role.MATRIX, Role.ATTENTION, Role.ALONE)
            region = Region(
                ops=[i],
                mask=1 << i,
                before=before,
                role=known.role if anchored else Role.VECTOR,
                anchor=op.result if anchored else "",
                anchor_op=op.kind if anchored else "",
                anchor_kind=known.kind,
                numel=known.numel,
                runs=known.runs,
                movement=known.movement,
                places={op.result: first_place(op, known)},
            )
            self._home.append(region)

    def of(self, result: str) -> Region | None:
        """The region that computes a value; None for an input or constant."""
        i = self.index.get(result)
        return None if i is None else self._home[i]

    def home(self, index: int) -> Region:
        """The region of the op at an index of the graph."""
        return self._home[index]

    def all(self) -> list[Region]:
        """Every region once, by its first op."""
        return [region for i, region in enumerate(self._home) if region.ops[0] == i]

    def readers(self, region: Region) -> Iterator[tuple[int, int]]:
        """(op, reader outside) of each value that leaves the region, as indices, in program order."""
        for i in region.ops:
            for j in self._readers[i]:
                if self._home[j] is not region:
                    yield i, j

    def reading_regions(self, region: Region) -> list[Region]:
        """Other regions that read from this one, by their first reading op."""
        found = {id(self._home[j]): self._home[j] for _, j in self.readers(region)}
        return list(found.values())

    def read_regions(self, region: Region) -> list[Region]:
        """Other regions that this one reads from."""
        found = {id(r): r for i in region.ops for j in self._reads[i] if (r := self._home[j]) is not region}
        return list(found.values())

    def between(self, a: Region, b: Region) -> Region | None:
        """A region on a path from one to the other, which a merge would turn into a cycle; None where it is legal."""
        for first, last in ((a, b), (b, a)):
            if not last.before & first.mask:
                continue
            for region in self.read_regions(last):
                if region is not first and region.before & first.mask:
                    return region
        return None

    def merge(self, into: Region, other: Region) -> Region:
        """Make two regions one, which must be legal; space and anchor of the result are the caller's to set."""
        into.ops = sorted(into.ops + other.ops)
        into.mask |= other.mask
        into.before = (into.before | other.before) & ~into.mask
        into.movement = into.movement and other.movement
        into.places.update(other.places)
        into.orders.update(other.orders)
        for i in other.ops:
            self._home[i] = into
        self._tell_readers(into)
        return into

    def _tell_readers(self, region: Region) -> None:
        # A reader that already waits for all of this has told its own readers before.
        pending = [region]
        while pending:
            current = pending.pop()
            known = current.mask | current.before
            for reader in self.reading_regions(current):
                if known & ~reader.before:
                    reader.before |= known
                    pending.append(reader)
