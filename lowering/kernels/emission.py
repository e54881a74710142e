"""Nodes to loops and instructions: tiles of partitions by free elements, each node in the outermost loop it can be in.

The space is cut in loops over outer atoms, tiles of one atom on partitions, and tiles of the free atoms. A value that
varies with a free atom lies in a tile, another in a column of one element a partition, or it is a number of the
program. What does not fill its last tile gets a loop body of its own, with smaller extents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from math import inf
from typing import Any, TypeAlias

from neuron_compiler.ir.graph import DType, TensorType
from neuron_compiler.ir.kernel import Access, Affine, Engine, affine
from neuron_compiler.lowering.kernels.index_maps import NoKernel, Split
from neuron_compiler.lowering.kernels.nodes import Dag, Node, NodeId
from neuron_compiler.trainium.builder import KernelBuilder, Ref, ds

F32, I32, I64 = DType.F32, DType.I32, DType.I64
START = {"add": 0.0, "multiply": 1.0, "max": -inf, "min": inf}
COMBINE = {"add": "add", "multiply": "multiply", "max": "maximum", "min": "minimum"}
WHOLE = ("add", "subtract", "multiply")
"""What GpSimd computes exactly on whole numbers."""


@dataclass(frozen=True)
class Result:
    """A value that the kernel writes: the node of its element, and the place of that in row-major order."""

    name: str
    node: NodeId
    place: Affine


@dataclass(frozen=True)
class Span:
    """Where a tile begins along an atom, and how far it goes."""

    start: Affine
    size: int


@dataclass(frozen=True)
class Space:
    """The atoms by what they are: loops, the partitions, the free elements."""

    outer: tuple[str, ...]
    partition: str | None
    free: tuple[str, ...]
    extents: Mapping[str, int]


def space_of(dag: Dag, atoms: tuple[str, ...], extents: Mapping[str, int], partitions: int) -> Space:
    """Which atom lies on partitions and which are free.

    Folded atoms are free. Without any, the atom with the most places before the last is on partitions, and those after
    it are free.

    Raises:
        NoKernel: reductions fold different atoms.
        Split: there is one atom only, and it can be cut.
    """
    attention = [node for node in dag.nodes if node.kind == "attention"]
    if attention:
        return _space_of_attention(dag, attention, atoms, extents)
    products = [node for node in dag.nodes if node.kind == "product"]
    if products:
        return _space_of_products(dag, products, atoms, extents, partitions)
    folded = {node.over for node in dag.nodes if node.kind == "reduce"}
    if len(folded) > 1:
        raise NoKernel("it folds over more than one set of dimensions")
    over = folded.pop() if folded else frozenset()
    names = tuple(n for n in (*atoms, *(e for e in extents if e not in atoms)) if extents[n] > 1 or n in over)
    if over:
        free = tuple(n for n in names if n in over)
        rest = tuple(n for n in names if n not in over)
    else:
        free, rest = names[-1:], names[:-1]
    rest = tuple(n for n in rest if n in atoms)
    if not rest:
        if over or not free:
            return Space((), None, free, extents)
        outer = divisor(extents[free[0]], partitions)
        if outer == extents[free[0]]:
            return Space((), free[0], (), extents)
        if outer > 1:
            raise Split(free[0], extents[free[0]] // outer)
        return Space((), None, free, extents)
    chosen = max(rest, key=lambda n: (min(extents[n], partitions), rest.index(n)))
    at = rest.index(chosen)
    if over:
        return Space((*rest[:at], *rest[at + 1 :]), chosen, free, extents)
    return Space(rest[:at], chosen, (*rest[at + 1 :], *free), extents)


def _space_of_products(
    dag: Dag, products: list[Node], atoms: tuple[str, ...], extents: Mapping[str, int], partitions: int
) -> Space:
    """Rows of the left matrix on partitions, columns of the right one free, what both or neither have outer."""
    sides = {tuple(dag[a].atoms - node.over for a in node.args) for node in products}
    if len(sides) > 1 or any(node.kind == "reduce" for node in dag.nodes):
        raise NoKernel("products and reductions of other rows and columns")
    left, right = sides.pop()
    names = tuple(n for n in atoms if extents[n] > 1)
    rows = tuple(n for n in names if n in left - right)
    free = tuple(n for n in names if n in right - left)
    partition = max(rows, key=lambda n: (min(extents[n], partitions), rows.index(n)), default=None)
    return Space(tuple(n for n in names if n != partition and n not in free), partition, free, extents)


def _space_of_attention(dag: Dag, attention: list[Node], atoms: tuple[str, ...], extents: Mapping[str, int]) -> Space:
    """Queries on partitions, the width of the values free."""
    if len(attention) > 1:
        raise NoKernel("more than one attention")
    query, _, value = (dag[a].atoms for a in attention[0].args[:3])
    names = tuple(n for n in atoms if extents[n] > 1)
    free = tuple(n for n in names if n in value - query)
    if len(free) != 1:
        raise NoKernel("attention through a view of its values")
    row = str(attention[0].attrs[0])
    partition = row if extents.get(row, 1) > 1 else None
    return Space(tuple(n for n in names if n != partition and n not in free), partition, free, extents)


def divisor(extent: int, most: int) -> int:
    """The largest number up to ``most`` that divides an extent."""
    return next(n for n in range(min(extent, most), 0, -1) if extent % n == 0)


Env: TypeAlias = Mapping[str, Span]
"""The part of each atom that is at hand."""

Held: TypeAlias = "dict[NodeId, Ref]"
"""Nodes that lie in a buffer already."""


class Emission:
    """One kernel from nodes; ``builder`` holds its buffers."""

    def __init__(self, builder: KernelBuilder, dag: Dag, space: Space, limit: int, partitions: int) -> None:
        self.b, self.dag, self.space = builder, dag, space
        self.refs: dict[str, tuple[Ref, TensorType]] = {}
        self.partitions = partitions
        self.sizes: dict[str, int] = dict.fromkeys(space.outer, 1)
        if space.partition is not None:
            self.sizes[space.partition] = min(space.extents[space.partition], partitions)
        room = limit
        for atom in reversed(space.free):
            self.sizes[atom] = max(min(space.extents[atom], room), 1)
            room //= self.sizes[atom]
        order = (*space.outer, *((space.partition,) if space.partition is not None else ()), *space.free)
        self.loops = tuple(a for a in order if space.extents[a] > self.sizes[a])
        self.fixed = {a: Span(affine(0), space.extents[a]) for a in order if a not in self.loops}

    def run(self, result: Result) -> None:
        """Emit all loops, with the stores of the result."""
        self._level(0, self.fixed, self._needed(result.node), result, {})

    # Loops

    def _depth(self, atoms: frozenset[str]) -> int:
        """How many loops have to be open for something that varies with these atoms."""
        return max((i + 1 for i, a in enumerate(self.loops) if a in atoms), default=0)

    def _needed(self, root: NodeId) -> list[NodeId]:
        """Nodes that the stores need, in order, without those that only a reduction with own loops needs."""
        found: set[NodeId] = set()
        pending = [root]
        while pending:
            node = pending.pop()
            if node in found:
                continue
            found.add(node)
            record = self.dag[node]
            if record.kind not in ("product", "attention") and not (
                record.kind == "reduce" and self._own_loops(record)
            ):
                pending.extend(record.args)
        return sorted(found)

    def _own_loops(self, node: Node) -> tuple[str, ...]:
        """Loops over what a reduction folds."""
        return tuple(a for a in self.loops if a in node.over)

    def _level(self, depth: int, env: Env, needed: list[NodeId], result: Result, held: Held) -> None:
        for node in needed:
            if self._depth(self.dag[node].atoms) == depth:
                self._ensure(node, env, held)
        if self._depth(frozenset(a for a, _ in result.place.terms)) == depth:
            self._store(result, env, held)
            return
        for inner in self.tiles(self.loops[depth], env):
            self._level(depth + 1, inner, needed, result, dict(held))

    def tiles(self, atom: str, env: Env) -> Iterator[dict[str, Span]]:
        """The environments of the loop over full tiles, and of what remains; each is emitted while its loop is open."""
        size, extent = self.sizes[atom], self.space.extents[atom]
        count, rest = divmod(extent, size)
        with self.b.loop(atom, count) if count > 1 else nullcontext(affine(0)) as i:
            yield {**env, atom: Span(i * size, size)}
        if rest:
            yield {**env, atom: Span(affine(count * size), rest)}

    # Nodes

    def is_full(self, atoms: frozenset[str]) -> bool:
        return any(a in atoms for a in self.space.free)

    def _extent(self, atom: str | None, env: Env) -> int:
        if atom is None:
            return 1
        return env[atom].size if atom in env else self.sizes[atom]

    def shape(self, full: bool, env: Env) -> tuple[int, ...]:
        free = tuple(self._extent(a, env) for a in self.space.free) if full else (1,)
        return (self._extent(self.space.partition, env), *free)

    def new(self, node: Node, env: Env, *, full: bool | None = None, name: str = "") -> Ref:
        full = self.is_full(node.atoms) if full is None else full
        return self.b.sbuf(name or node.kind, node.dtype, self.shape(full, env))

    def _ensure(self, node: NodeId, env: Env, held: Held) -> Access | float | int:
        """The node's value in this tile, emitted if it is not yet held."""
        if (number := self.dag.number_of(node)) is not None:
            return number
        record = self.dag[node]
        if node not in held:
            with self.b.computing(*self.dag.ops.get(node, ())):
                held[node] = self._emitted(record, env, held)
        # What an outer loop holds may be larger than the tile of this one.
        return held[node][tuple(slice(0, n) for n in self.shape(self.is_full(record.atoms), env))]

    def _emitted(self, node: Node, env: Env, held: Held) -> Ref:
        if node.kind == "product":
            from neuron_compiler.lowering.kernels.products import emit_product

            return emit_product(self, node, env)
        if node.kind == "attention":
            from neuron_compiler.lowering.kernels.attention import emit_attention

            return emit_attention(self, node, env)
        emit: Callable[[Node, Env, Held], Ref] = getattr(self, f"_emit_{node.kind}")
        return emit(node, env, held)

    def within(self, partition: str | None, free: tuple[str, ...], sizes: Mapping[str, int]) -> Emission:
        """The same kernel and memory with other atoms on partitions and free."""
        made = Emission(self.b, self.dag, Space((), partition, free, self.space.extents), 0, self.partitions)
        made.refs, made.sizes = self.refs, {**self.sizes, **sizes}
        return made

    def _emit_load(self, node: Node, env: Env, held: Held) -> Ref:
        made = self.new(node, env, name=str(node.attrs[0]))
        self.b.dma_copy(made, self.in_hbm(str(node.attrs[0]), place_of(node.attrs[1]), env, self.is_full(node.atoms)))
        return made

    def _emit_iota(self, node: Node, env: Env, held: Held) -> Ref:
        made, place = self.new(node, env), place_of(node.attrs[0])
        offset = affine(place.constant)
        for atom, factor in place.terms:
            offset = offset + env[atom].start * factor
        full = self.is_full(node.atoms)
        steps = tuple(place.factor(a) for a in self.space.free) if full else (0,)
        multiplier = place.factor(self.space.partition) if self.space.partition is not None else 0
        self.b.iota(made, steps=steps, offset=offset, channel_multiplier=multiplier)
        return made

    def _emit_unary(self, node: Node, env: Env, held: Held) -> Ref:
        function, scale = node.attrs
        x = self.tile(node.args[0], env, held, full=False)
        made = self.new(node, env)
        self.b.activation(made, x, scale, op=function)
        return made

    def _emit_binary(self, node: Node, env: Env, held: Held) -> Ref:
        function = str(node.attrs[0])
        full = self.is_full(node.atoms)
        a, b = (self._ensure(x, env, held) for x in node.args)
        engine = Engine.GPSIMD if node.dtype.is_integer and function in WHOLE else Engine.VECTOR
        if not isinstance(a, Access) and not isinstance(b, Access):
            a = self.tile(node.args[0], env, held, full=False)
        made = self.new(node, env)
        wide_a, wide_b = (
            isinstance(x, Access) and (not full or self.is_full(self.dag[n].atoms))
            for x, n in zip((a, b), node.args, strict=True)
        )
        if wide_a and wide_b:
            self.b.tensor_tensor(made, a, b, op=function, engine=engine)
        elif wide_a:
            self.b.tensor_scalar(made, a, b, op0=function, engine=engine)
        elif wide_b:
            self.b.tensor_scalar(made, b, a, op0=function, reverse0=True, engine=engine)
        else:  # two columns whose atoms together make a tile cannot be: free atoms are in neither
            raise NoKernel("a tile of two columns")
        return made

    def _emit_select(self, node: Node, env: Env, held: Held) -> Ref:
        full = self.is_full(node.atoms)
        condition = self.tile(node.args[0], env, held, full=full)
        a, b = (self._ensure(x, env, held) for x in node.args[1:])
        made = self.new(node, env)
        self.b.select_reduce(made, condition, a, b)
        return made

    def _emit_cast(self, node: Node, env: Env, held: Held) -> Ref:
        x = self.tile(node.args[0], env, held, full=False)
        made = self.new(node, env)
        self.b.tensor_copy(made, x)
        return made

    def _emit_reduce(self, node: Node, env: Env, held: Held) -> Ref:
        function = str(node.attrs[0])
        loops = [a for a in self._own_loops(node) if a not in env]
        made = self.new(node, env, full=False)
        if not loops:
            self.b.tensor_reduce(made, self.tile(node.args[0], env, held, full=True), op=function)
            return made
        total = made if node.dtype is F32 else self.b.sbuf("total", F32, self.shape(False, env))
        self.b.memset(total, START[function])

        def inside(rest: list[str], env: Env, held: dict[NodeId, Ref]) -> None:
            if rest:
                for inner in self.tiles(rest[0], env):
                    inside(rest[1:], inner, dict(held))
                return
            part = self.b.sbuf("part", F32, self.shape(False, env))
            self.b.tensor_reduce(part, self.tile(node.args[0], env, held, full=True), op=function)
            self.b.tensor_tensor(total, total, part, op=COMBINE[function])

        inside(loops, dict(env), dict(held))
        if total is not made:
            self.b.tensor_copy(made, total)
        return made

    def _emit_gather(self, node: Node, env: Env, held: Held) -> Ref:
        source, place, rows = str(node.attrs[0]), place_of(node.attrs[1]), node.attrs[2]
        row, free = node.args[0], self.space.free
        if self.is_full(self.dag[row].atoms):
            raise NoKernel("rows by an index that is not one a partition")
        step = 1
        for atom in reversed(free if place.terms else ()):
            if place.factor(atom) != step:
                raise NoKernel("rows that are not read in one piece")
            step *= self.space.extents[atom]
        if any(atom not in free for atom, _ in place.terms):
            raise NoKernel("rows that are not read in one piece")
        table, type_ = self.refs[source]
        if not isinstance(rows, int) or not rows:
            raise NoKernel("an empty table")
        width, index = type_.numel // rows, self.tile(row, env, held, full=False)
        made = self.new(node, env)
        start, size = affine(place.constant), 1
        for atom, factor in place.terms:  # all free atoms, of which only the outermost may be cut
            span = self._span(atom, env)
            start, size = start + span.start * factor, size * span.size
        halves = 2 if type_.dtype is I64 else 1  # of which the low ones are read
        view = table.viewed((rows, width), (halves * width, halves), 0, I32 if halves > 1 else None)
        self.b.dma_gather(made, view[:, ds(start, size)], index)
        return made

    def tile(self, node: NodeId, env: Env, held: Held, *, full: bool) -> Access:
        """The node as an access, of a tile where ``full``: numbers and columns are spread."""
        found = self._ensure(node, env, held)
        record = self.dag[node]
        if isinstance(found, Access) and (not full or self.is_full(record.atoms)):
            return found
        made = self.new(record, env, full=full, name="spread")
        if isinstance(found, Access):
            self.b.memset(made, 0)
            self.b.tensor_scalar(made, made, found, op0="add")
        else:
            self.b.memset(made, found)
        return made[...]

    # HBM

    def in_hbm(self, name: str, place: Affine, env: Env, full: bool, high: bool = False) -> Access:
        """The elements of a tile in HBM, partitions first; of 64-bit whole numbers the low halves, or the high ones."""
        ref, type_ = self.refs[name]
        tiled = (self.space.partition, *(self.space.free if full else ()))
        outer = [a for a, _ in place.terms if a not in tiled and self.space.extents[a] > 1]
        names = [*outer, self.space.partition, *(self.space.free if full else ())]
        shape = tuple(1 if a is None else self.space.extents[a] for a in names)
        strides = tuple(0 if a is None else place.factor(a) for a in names)
        start, dtype = place.constant, type_.dtype
        if dtype is I64:
            strides, start, dtype = tuple(2 * s for s in strides), 2 * start + high, I32
        view = ref.viewed(shape, strides, start, dtype)
        spans = [self._span(a, env) for a in names]
        return view[tuple(ds(span.start, span.size) for span in spans)]

    def _span(self, atom: str | None, env: Env) -> Span:
        if atom is None:
            return Span(affine(0), 1)
        return env[atom] if atom in env else Span(affine(0), self.sizes[atom])

    def _store(self, result: Result, env: Env, held: Held) -> None:
        full = self.is_full(frozenset(a for a, _ in result.place.terms))
        tile: Any = self.tile(result.node, env, held, full=full)
        _, type_ = self.refs[result.name]
        wanted = I32 if type_.dtype is I64 else type_.dtype
        if self.dag[result.node].dtype is not wanted:  # numbers of the program have no type of their own
            exact = self.b.sbuf("exact", wanted, self.shape(full, env))
            self.b.tensor_copy(exact, tile)
            tile = exact[...]
        self.b.dma_copy(self.in_hbm(result.name, result.place, env, full), tile)
        if type_.dtype is I64:
            sign = self.b.sbuf("sign", I32, self.shape(full, env))
            self.b.tensor_scalar(sign, tile, 31, op0="right_shift")
            self.b.dma_copy(self.in_hbm(result.name, result.place, env, full, high=True), sign)


def place_of(found: object) -> Affine:
    if not isinstance(found, Affine):
        raise TypeError(f"{found!r} is no place")
    return found
