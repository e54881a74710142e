"""How regions grow: the order in which ``passes/fuse`` tries to merge, by what it gains.

First what must be (the elements of a tuple with their tuple), then attention, then each op with its producers in
program order, then views, casts and small side computations with their only reader, then views that are left with what
they view. Every step asks the same rules (``fusion_rules``) and the same legality (``regions``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from neuron_compiler.ir.graph import GETITEM, Graph, Op, TensorType, Value
from neuron_compiler.ir.space import base_name, matrix_operands, result_type
from neuron_compiler.opdef import Kind
from neuron_compiler.passes.fusion_rules import IN_SPACE, Facts, Fit, Place, Region, Role, fit, view_place
from neuron_compiler.passes.regions import Regions

ATTENTION_SEARCH = 48
"""How many ops before a product are looked at for a softmax and another product."""

_SOFTMAX = frozenset({"_softmax", "softmax", "_safe_softmax"})


class Growth:
    """One fusion of one graph; ``regions`` holds the result."""

    def __init__(self, graph: Graph, facts: Sequence[Facts], max_ops: int) -> None:
        self.graph, self.max_ops = graph, max_ops
        self.facts = {op.result: known for op, known in zip(graph.ops, facts, strict=True)}
        self.regions = Regions(graph, facts)
        self.returned = frozenset(graph.outputs)

    def run(self) -> None:
        """Merge until nothing more pays."""
        self._join_tuples()
        self._gather_attention()
        # Twice: what is absorbed or attached may make neighbours of regions that were apart.
        for _ in range(2):
            for op in self.graph.ops:
                self._join_producers(op)
            self._absorb_prologues()
            self._attach_views()

    def _join_tuples(self) -> None:
        """A tuple never crosses a border between groups; its elements do."""
        for op in self.graph.ops:
            if op.kind == GETITEM and (source := self.regions.of(op.uses[0])) is not None:
                place = view_place(op, source.places[op.uses[0]], source, self.graph.types)
                self._merge(source, self._own(op), Fit(source.numel, source.runs, place))

    # Chains and epilogues

    def _join_producers(self, op: Op) -> None:
        known = self.facts[op.result]
        if known.role not in (Role.VECTOR, Role.REDUCE, Role.VIEW) or self._is_inside_attention(op):
            return
        if known.role is Role.VIEW and not self._may_be_written_by_producer(op):
            return
        for value in sorted(op.uses, key=self._preference):
            producer, own = self.regions.of(value), self._own(op)
            if producer is None or producer is own or producer.only_views:
                continue
            if producer.is_matrix and self._belongs_to_reduction(op, value):
                continue
            found = fit(producer, own, op, value, known, self.graph.types)
            if isinstance(found, Fit) and self._pays(found, op, value) and self._is_legal(producer, own):
                self._merge(producer, own, found)

    def _pays(self, found: Fit, op: Op, value: str) -> bool:
        """Whether nothing is lost: loading in an inverse order is slow, and pays only if it saves writing the value."""
        if found.place is not Place.PERMUTED or self.facts[op.result].role is not Role.VECTOR:
            return True
        return value not in self.returned and len(self.graph.users[value]) == 1

    def _belongs_to_reduction(self, op: Op, value: str) -> bool:
        """Whether an op is better computed with the reduction that reads it than with the product that it reads.

        So it is where the product's own value is written out anyway: the op's would be a second one.
        """
        if self.facts[op.result].role is not Role.VECTOR or op.result not in self._serves_reduction:
            return False
        return value in self.returned or len(self.graph.users[value]) > 1

    @cached_property
    def _serves_reduction(self) -> frozenset[str]:
        """Results that only groups of reductions read, directly or through such results."""
        statistics: set[str] = set()
        beside_statistics: set[str] = set()
        for op in self.graph.ops:
            role, result = self.facts[op.result].role, result_type(op)
            if role is Role.REDUCE:
                statistics.add(op.result)
            elif role in (Role.VECTOR, Role.VIEW) and result is not None:
                read = [t for use in op.uses if use in statistics and (t := self._first_type(use)) is not None]
                if read and all(t.numel == result.numel for t in read):
                    statistics.add(op.result)
                elif read:
                    beside_statistics.add(op.result)
        found: set[str] = set()
        for op in reversed(self.graph.ops):
            readers = self.graph.users.get(op.result, ())
            if self.facts[op.result].role not in (Role.VECTOR, Role.VIEW) or not readers or op.result in self.returned:
                continue
            if all(
                self.facts[r.result].role is Role.REDUCE or r.result in beside_statistics or r.result in found
                for r in readers
            ):
                found.add(op.result)
        return frozenset(found)

    def _first_type(self, name: str) -> TensorType | None:
        return result_type(self.graph.defs[name]) if name in self.graph.defs else None

    def _is_inside_attention(self, op: Op) -> bool:
        region = self._own(op)
        return region.role is Role.ATTENTION and region.places[op.result] is Place.APART

    def _may_be_written_by_producer(self, op: Op) -> bool:
        """Whether a view holds each element of what it views once, or is a statistic put beside its rows."""
        source = self.graph.types[op.uses[0]] if op.uses else None
        region = self.regions.of(op.uses[0]) if op.uses else None
        if not isinstance(source, TensorType) or not isinstance(op.type, TensorType) or region is None:
            return False
        if source.numel == op.type.numel:
            return True
        return view_place(op, region.places[op.uses[0]], region, self.graph.types) is Place.FULL

    def _preference(self, value: str) -> tuple[bool, bool, int]:
        """Products before reductions before the rest; the latest first, since that closes the fewest cycles."""
        region = self.regions.of(value)
        if region is None:
            return True, True, 0
        return not region.is_matrix, region.runs is None, -self.regions.index[value]

    # Prologues and side computations

    def _absorb_prologues(self) -> None:
        """Give a region to its only reader where it is cheap there: it is then computed while operands are loaded."""
        for producer in reversed(self.regions.all()):
            readers = self.regions.reading_regions(producer)
            if (
                len(readers) != 1
                or producer.anchor
                or any(self.graph.ops[i].result in self.returned for i in producer.ops)
            ):
                continue
            reader = readers[0]
            if self._is_cheap_for(producer, reader) and len(producer.ops) + len(reader.ops) <= self.max_ops:
                producer.places = dict.fromkeys(producer.places, Place.APART)
                self._merge(producer, reader, Fit(reader.numel, reader.runs))

    def _is_cheap_for(self, producer: Region, reader: Region) -> bool:
        if producer.movement or self._reads_nothing(producer):
            return True
        if producer.runs is not None or reader.role is Role.ALONE or producer.numel >= reader.numel:
            return False
        return all(self._is_in_vector_part(reader, j) for _, j in self.regions.readers(producer))

    def _reads_nothing(self, region: Region) -> bool:
        """Whether a region is computed from creations alone, as masks and positions are."""
        return all(self.regions.of(use) is region for i in region.ops for use in self.graph.ops[i].uses)

    def _is_in_vector_part(self, region: Region, index: int) -> bool:
        result = self.graph.ops[index].result
        if self.facts[result].role not in (Role.VECTOR, Role.REDUCE):
            return False
        return not region.is_matrix or region.places[result] in IN_SPACE

    def _attach_views(self) -> None:
        """Give views that several groups read to the one region that they view."""
        for region in self.regions.all():
            sources = self.regions.read_regions(region)
            if not region.only_views or len(sources) != 1:
                continue
            if len(sources[0].ops) + len(region.ops) <= self.max_ops:
                self._merge(sources[0], region, Fit(sources[0].numel, sources[0].runs, Place.APART))

    # Attention

    def _gather_attention(self) -> None:
        """Make one region of each product, softmax, product chain: the scores then never leave the chip."""
        for op in self.graph.ops:
            positions = matrix_operands(op)
            if positions is None or self.facts[op.result].kind is not Kind.CONTRACTION:
                continue
            weights = op.operand(positions[0])
            if isinstance(weights, Value) and (inner := self._between_products(op, weights.name)) is not None:
                self._make_attention(inner, op)

    def _between_products(self, last: Op, weights: str) -> list[int] | None:
        """Indices from the product of scores to ``last``, where a softmax and no other product lies between them."""
        index, seen, products = self.regions.index, set[int](), set[int]()
        pending = [weights]
        while pending:
            i = index.get(pending.pop())
            if i is None or i in seen:
                continue
            seen.add(i)
            op = self.graph.ops[i]
            role = self.facts[op.result].role
            if role is Role.MATRIX:
                products.add(i)
            elif role in (Role.VECTOR, Role.REDUCE, Role.VIEW):
                pending.extend(op.uses)
            if len(seen) > ATTENTION_SEARCH:
                return None
        if len(products) != 1:
            return None
        (first,) = products
        end = index[last.result]
        inner = [i for i in sorted(seen) if first < i < end and self._own(self.graph.ops[i]).before >> first & 1]
        scores, read = result_type(self.graph.ops[first]), result_type(self.graph.defs[weights])
        if scores is None or read is None or scores.numel != read.numel or not self._has_softmax(inner):
            return None
        # Convex: whatever lies on a path between the two products is inside.
        before = self._own(last).before
        if any(
            before >> i & 1 and i not in seen and self._own(self.graph.ops[i]).before >> first & 1
            for i in range(first, end)
        ):
            return None
        return [first, *inner, end]

    def _has_softmax(self, indices: Sequence[int]) -> bool:
        names = {base_name(self.graph.ops[i].kind) for i in indices}
        return bool(names & _SOFTMAX) or {"exp", "sum"} <= names

    def _make_attention(self, indices: Sequence[int], last: Op) -> None:
        members = [self._own(self.graph.ops[i]) for i in indices]
        if len(indices) > self.max_ops or any(region.role is Role.ATTENTION for region in members):
            return
        region, *others = {id(member): member for member in members}.values()
        for other in others:
            region = self.regions.merge(region, other)
        region.role, region.anchor, region.anchor_op = Role.ATTENTION, last.result, last.kind
        region.anchor_kind, region.runs = Kind.ATTENTION, None
        result = result_type(last)
        region.numel = result.numel if result is not None else 0
        region.places = {name: Place.FULL if name == last.result else Place.APART for name in region.places}

    # Merging

    def _own(self, op: Op) -> Region:
        return self.regions.home(self.regions.index[op.result])

    def _is_legal(self, producer: Region, consumer: Region) -> bool:
        if len(producer.ops) + len(consumer.ops) > self.max_ops:
            return False
        return self.regions.between(producer, consumer) is None

    def _merge(self, producer: Region, consumer: Region, how: Fit) -> None:
        if how.place is not None:
            moved = consumer.only_views
            consumer.places = {
                name: how.place if moved or place is Place.FULL else Place.APART
                for name, place in consumer.places.items()
            }
            if how.place is Place.PERMUTED:
                consumer.orders = dict.fromkeys(consumer.places, how.order)
        if consumer.anchor:
            producer.role, producer.anchor = consumer.role, consumer.anchor
            producer.anchor_op, producer.anchor_kind = consumer.anchor_op, consumer.anchor_kind
        producer.numel, producer.runs = how.numel, how.runs
        self.regions.merge(producer, consumer)
