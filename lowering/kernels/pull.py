"""From the values of a group to nodes: what is needed for an element of a result, read through the views between.

``Pull.value`` asks for a value at an index and gives the node that computes it. Inside the group each op has an
expansion (``expansions/``); what comes from outside is loaded. Reductions fold atoms of the space where those have
the extents that are folded, so that a softmax or a norm reads its row once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod

from neuron_compiler.ir.graph import GETITEM, DType, Graph, Op, TensorType, Value
from neuron_compiler.ir.kernel import Affine, affine
from neuron_compiler.ir.space import base_name
from neuron_compiler.lowering.kernels.index_maps import (
    Index,
    NoKernel,
    Padded,
    Padding,
    Stored,
    broadcast,
    flat,
    is_view,
    joined,
    part_of,
    tensors,
    through,
)
from neuron_compiler.lowering.kernels.nodes import Dag, NodeId

NARROWED = {DType.I64: DType.I32}
"""Types that the chip lacks, by those in which it computes them. Whole numbers are taken to fit."""


def on_chip(dtype: DType) -> DType:
    """The type in which a value lies in SBUF."""
    found = NARROWED.get(dtype, dtype)
    if found in (DType.F64, DType.U64) or found.is_complex:
        raise NoKernel(f"no engine has {dtype.value}")
    return found


class Pull:
    """Nodes of one group over one space.

    Attributes:
        dag: the nodes so far.
        extents: of the atoms of the space, and of those that reductions and products added.
    """

    def __init__(
        self,
        graph: Graph,
        inside: frozenset[str],
        extents: dict[str, int],
        cuts: Mapping[str, int] | None = None,
        paddings: Mapping[Padding, TensorType] | None = None,
    ) -> None:
        self.graph, self.inside, self.extents = graph, inside, dict(extents)
        self._cuts, self._paddings = dict(cuts or {}), dict(paddings or {})
        self.dag = Dag()
        self._space = tuple(extents)
        self._values: dict[tuple[str, Index], NodeId] = {}
        self._contracted = 0

    def value(self, name: str, index: Index) -> NodeId:
        """The node of a value at an index.

        Raises:
            NoKernel: an op has no expansion, or a view no index.
            Split, Cut: the space needs other atoms.
        """
        found = self._values.get((name, index))
        if found is None:
            found = self._values[name, index] = self._of(name, index)
        return found

    def _of(self, name: str, index: Index) -> NodeId:
        if name not in self.inside:
            type_ = self.graph.tensor_type(name)
            on_chip(type_.dtype)
            return self.dag.load(name, flat(index, type_.shape), on_chip(type_.dtype))
        op = self.graph.defs[name]
        if is_view(op):
            source = self.source(op)
            try:
                inner = through(op, index, self.graph.tensor_type(source), self.extents)
            except NoKernel:
                if source not in self.inside:
                    raise
                # No index in what is computed; in memory any reshape is one.
                raise Stored(source) from None
            return self.value(source, inner)
        if op.kind == GETITEM:
            return self._getitem(op, index)
        if base_name(op.kind) in ("cat", "stack"):
            names = tensors(op)
            number, inner = joined(op, index, [self.graph.tensor_type(n) for n in names], self.extents)
            return self.cast(self.value(names[number], inner), op)
        return self._expanded(op, 0, index)

    def _getitem(self, op: Op, index: Index) -> NodeId:
        source, number = self.source(op), op.operand(1)
        if not isinstance(number, int):
            raise NoKernel(f"{op.kind} names no result")
        if source not in self.inside:
            raise NoKernel("it reads one of several results of another group")
        maker = self.graph.defs[source]
        if base_name(maker.kind) in ("split", "split_with_sizes"):
            cut = self.source(maker)
            return self.value(cut, part_of(maker, number, index, self.graph.tensor_type(cut)))
        return self._expanded(maker, number, index)

    def _expanded(self, op: Op, number: int, index: Index) -> NodeId:
        from neuron_compiler.lowering.kernels.expansions import EXPANSIONS

        expansion: Callable[[Pull, Op, int, Index], NodeId] | None = EXPANSIONS.get(base_name(op.kind))
        if expansion is None:
            raise NoKernel(f"{op.kind} has no engine instructions")
        made = expansion(self, op, number, index)
        self.dag.ops.setdefault(made, (op.result,))
        return made

    # For expansions

    def source(self, op: Op, position: int = 0) -> str:
        """The name of a tensor among the operands."""
        found = op.operand(position)
        if not isinstance(found, Value):
            raise NoKernel(f"operand {position} of {op.kind} is no tensor")
        return found.name

    def shape(self, op: Op, position: int = 0) -> tuple[int, ...]:
        return self.graph.tensor_type(self.source(op, position)).shape

    def operand(self, op: Op, position: int, index: Index) -> NodeId:
        """An operand that is broadcast to the result: a tensor, or a number."""
        found = op.operand(position)
        if isinstance(found, bool):
            return self.dag.number(int(found))
        if isinstance(found, int | float):
            return self.dag.number(found)
        name = self.source(op, position)
        return self.value(name, broadcast(index, self.graph.tensor_type(name).shape))

    def padded(self, padding: Padding, index: Index) -> NodeId:
        """The element of a value with a border, at an index that counts the border."""
        if not any(padding.before) and not any(padding.after):
            return self.value(padding.source, index)
        type_ = self._paddings.get(padding)
        if type_ is None:
            raise Padded(padding)
        return self.dag.load(padding.name, flat(index, type_.shape), on_chip(type_.dtype))

    def stored(self, name: str) -> str:
        """The value, which lies in HBM."""
        if name in self.inside:
            raise Stored(name)
        return name

    def dtype(self, op: Op, number: int = 0) -> DType:
        """The type of a result on the chip."""
        type_ = op.type if isinstance(op.type, TensorType) else op.type.elements[number]
        if type_ is None:
            raise NoKernel(f"{op.kind} gives nothing at {number}")
        return on_chip(type_.dtype)

    def cast(self, node: NodeId, op: Op) -> NodeId:
        return self.dag.cast(node, self.dtype(op))

    def row(self, index: Index, axes: Iterable[int], shape: tuple[int, ...]) -> tuple[Index, frozenset[str]]:
        """``index`` with the axes running over their whole extent, and the atoms that do.

        An axis that runs over its whole extent already keeps its atoms.
        """
        axes = tuple(axes)
        used = {atom for a, place in enumerate(index) if a not in axes for atom, _ in place.terms}
        over: set[str] = set()
        found = list(index)
        for axis in axes:
            if not self._is_whole(found[axis], shape[axis]):
                found[axis] = self._counting(shape[axis], used | over)
            over.update(atom for atom, _ in found[axis].terms)
        if over & used:
            raise NoKernel("a dimension is folded and kept at once")
        return tuple(found), frozenset(over)

    def _is_whole(self, place: Affine, extent: int) -> bool:
        """Whether an index takes each number below ``extent`` once."""
        steps = 1
        for atom, factor in sorted(place.terms, key=lambda term: term[1]):
            if factor != steps:
                return False
            steps *= self.extents[atom]
        return not place.constant and steps == extent

    def _counting(self, extent: int, used: set[str]) -> Affine:
        """An index that counts to an extent: by adjacent atoms of the space that do, else by one of its own."""
        if extent == 1:
            return affine(0)
        space = self._space
        for last in range(len(space), 0, -1):
            for first in range(last - 1, -1, -1):
                names = space[first:last]
                if prod(self.extents[n] for n in names) == extent and not used & set(names):
                    total, stride = affine(0), 1
                    for name in reversed(names):
                        total, stride = total + Affine(0, ((name, stride),)), stride * self.extents[name]
                    return total
        name = next(n for n in (f"r{i}" for i in range(len(used) + 1)) if n not in used)
        while self.extents.get(name, extent) != extent:
            name += "r"
        return self._fresh(name, extent)

    def contracted(self, extent: int) -> Affine:
        """An index that counts to an extent by atoms of its own."""
        self._contracted += 1
        return self._fresh(f"k{self._contracted - 1}", extent)

    def _fresh(self, name: str, extent: int) -> Affine:
        """Atoms that are not of the space, as fine as they were asked for."""
        inner = self._cuts.get(name)
        if inner is None:
            self.extents[name] = extent
            return Affine(0, ((name, 1),))
        return self._fresh(f"{name}o", extent // inner) * inner + self._fresh(f"{name}i", inner)
