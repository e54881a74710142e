"""What a kernel computes, before it is known in which tiles: a graph of engine operations over the atoms of a space.

A node is a load, a number, an affine sequence, a function of one or two nodes, a choice, a conversion, or a reduction
over atoms. Equal nodes are one. Nodes know which atoms they vary with, so that whoever emits them can place each in
the outermost loop where its atoms stand still.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from neuron_compiler.ir.graph import DType
from neuron_compiler.ir.kernel import Affine
from neuron_compiler.trainium.isa import COMPARISONS

NodeId: TypeAlias = int


@dataclass(frozen=True)
class Node:
    """One operation.

    Attributes:
        kind: ``load``, ``number``, ``iota``, ``unary``, ``binary``, ``select``, ``cast``, ``reduce``, ``product``,
            ``attention`` or ``gather``.
        args: nodes that it reads.
        attrs: what the kind needs: names of functions, numbers, places in HBM.
        dtype: the type that its result is rounded to.
        atoms: counters that it varies with.
        over: of a reduction, the atoms that it folds.
    """

    kind: str
    args: tuple[NodeId, ...]
    attrs: tuple[object, ...]
    dtype: DType
    atoms: frozenset[str]
    over: frozenset[str] = frozenset()


@dataclass
class Dag:
    """Nodes by number; a node stands after those that it reads."""

    nodes: list[Node] = field(default_factory=list)
    ops: dict[NodeId, tuple[str, ...]] = field(default_factory=dict)
    _known: dict[Node, NodeId] = field(default_factory=dict)

    def add(self, node: Node) -> NodeId:
        found = self._known.get(node)
        if found is None:
            found = self._known[node] = len(self.nodes)
            self.nodes.append(node)
        return found

    def __getitem__(self, node: NodeId) -> Node:
        return self.nodes[node]

    def number_of(self, node: NodeId) -> float | int | None:
        """The number that a node is, None for another."""
        found = self.nodes[node]
        value = found.attrs[0] if found.kind == "number" else None
        return value if isinstance(value, int | float) else None

    def _atoms(self, *args: NodeId) -> frozenset[str]:
        return frozenset().union(*(self.nodes[a].atoms for a in args))

    # Kinds

    def number(self, value: float | int) -> NodeId:
        dtype = DType.F32 if isinstance(value, float) else DType.I32
        # -0.0 and 0.0, True and 1 are equal to Python and not to us.
        return self.add(Node("number", (), (value, repr(value)), dtype, frozenset()))

    def load(self, source: str, place: Affine, dtype: DType) -> NodeId:
        """The element of a buffer in HBM at a place in row-major order."""
        return self.add(Node("load", (), (source, place), dtype, frozenset(atom for atom, _ in place.terms)))

    def iota(self, place: Affine, dtype: DType) -> NodeId:
        if not place.terms:
            return self.number(place.constant)
        return self.add(Node("iota", (), (place,), dtype, frozenset(atom for atom, _ in place.terms)))

    def unary(self, function: str, x: NodeId, dtype: DType, scale: float = 1.0) -> NodeId:
        """``function(x * scale)``, by ScalarE."""
        return self.add(Node("unary", (x,), (function, scale), dtype, self._atoms(x)))

    def binary(self, function: str, a: NodeId, b: NodeId, dtype: DType) -> NodeId:
        x, y = self.number_of(a), self.number_of(b)
        if x is not None and y is not None and (folded := _folded(function, x, y)) is not None:
            return self.number(folded)
        return self.add(Node("binary", (a, b), (function,), dtype, self._atoms(a, b)))

    def select(self, condition: NodeId, a: NodeId, b: NodeId, dtype: DType) -> NodeId:
        if (known := self.number_of(condition)) is not None:
            return self.cast(a if known else b, dtype)
        return self.add(Node("select", (condition, a, b), (), dtype, self._atoms(condition, a, b)))

    def cast(self, x: NodeId, dtype: DType) -> NodeId:
        if self.nodes[x].dtype is dtype or self.number_of(x) is not None:
            return x
        return self.add(Node("cast", (x,), (), dtype, self._atoms(x)))

    def reduce(self, function: str, x: NodeId, over: frozenset[str], dtype: DType) -> NodeId:
        return self.add(Node("reduce", (x,), (function,), dtype, self._atoms(x) - over, over))

    def product(self, left: NodeId, right: NodeId, over: tuple[str, ...]) -> NodeId:
        """The sum of products over the contracted atoms, the outermost first; in fp32, as PSUM has it."""
        return self.add(
            Node("product", (left, right), (over,), DType.F32, self._atoms(left, right) - {*over}, frozenset(over))
        )

    def attention(
        self,
        rows: tuple[NodeId, NodeId, NodeId],
        mask: NodeId | None,
        counters: tuple[str, str, str],
        scale: float,
        causal: bool,
    ) -> NodeId:
        """Softmax of query times key, times value.

        Args:
            rows: query, key and value.
            mask: what is added to the scores, if anything.
            counters: the atoms of queries (empty for one query), of keys, and of what both are contracted over.
            scale: of the scores.
            causal: whether keys after the query's place are left out.
        """
        args = (*rows, *(() if mask is None else (mask,)))
        attrs = (*counters, scale, causal)
        return self.add(Node("attention", args, attrs, DType.F32, self._atoms(*args) - {*counters[1:]}))

    def gather(self, source: str, row: NodeId, place: Affine, rows: int, dtype: DType) -> NodeId:
        """Elements at ``place`` of one of the rows of a table in HBM: that which the node names."""
        atoms = self._atoms(row) | frozenset(atom for atom, _ in place.terms)
        return self.add(Node("gather", (row,), (source, place, rows), dtype, atoms))


def _folded(function: str, a: float | int, b: float | int) -> float | int | None:
    """Of two numbers; None where it is left to the engine."""
    if function in ("add", "subtract", "multiply"):
        return a + b if function == "add" else a - b if function == "subtract" else a * b
    if function in COMPARISONS:
        found = {"equal": a == b, "not_equal": a != b, "less": a < b, "less_equal": a <= b, "greater": a > b}
        return int(found.get(function, a >= b))
    return None
