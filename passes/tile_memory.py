"""What one tile of a group keeps in SBUF, as bytes per column of the tile: for ``passes/tile``."""

from __future__ import annotations

from dataclasses import dataclass

from neuron_compiler.ir import space
from neuron_compiler.ir.graph import Op, TensorType, Value
from neuron_compiler.ir.plan import GroupKind
from neuron_compiler.ir.space import result_type
from neuron_compiler.passes.fusion_rules import Role
from neuron_compiler.passes.tile_space import GroupView, Space

BUFFERS = 2
"""Tiles of each operand and result held at once: one is computed on while the next is moved."""

ACCUMULATOR_BYTES = 4
"""PSUM accumulates in fp32, and engines compute in fp32 between an op's operands and its result."""


@dataclass(frozen=True)
class Buffer:
    """Bytes on each of ``partitions``: ``fixed``, and ``per_column`` for each column of the tile."""

    partitions: int
    fixed: int = 0
    per_column: int = 0

    def bytes(self, free: int) -> int:
        return self.fixed + self.per_column * free


@dataclass(frozen=True)
class Demand:
    """All that one tile keeps in SBUF, and the columns that it accumulates in PSUM beside its own."""

    buffers: tuple[Buffer, ...]
    accumulated: int = 0

    def per_partition(self, free: int) -> int:
        """Bytes on the fullest partition."""
        return sum(buffer.bytes(free) for buffer in self.buffers)

    def total(self, free: int) -> int:
        """Bytes of all partitions together."""
        return sum(buffer.partitions * buffer.bytes(free) for buffer in self.buffers)


def demand(view: GroupView, iteration: Space, partition: int, contraction: int) -> Demand:
    """What a tile of ``partition`` rows needs: operands, results, and the values alive between ops."""
    if view.group.kind is GroupKind.ATTENTION:
        return _attention(view, partition, iteration.extents[2])
    rows, columns, _ = iteration.extents
    elements = rows * columns * iteration.batch
    buffers: list[Buffer] = []
    matrices: frozenset[str] = frozenset()
    if iteration.on_tensor_engine and (product := view.product()) is not None:
        left, right = _matrix_operands(product[0])
        matrices = _roots(view, left.name, right.name)
        buffers.append(Buffer(contraction, fixed=BUFFERS * partition * _itemsize(view, left)))
        buffers.append(Buffer(contraction, per_column=BUFFERS * _itemsize(view, right)))
    for t in (*(t for name, t in view.reads() if name not in matrices), *view.gives()):
        buffers.append(_slice_of(t, elements, rows, partition))
    buffers.append(Buffer(partition, per_column=_live_bytes_per_element(view, elements)))
    return Demand(tuple(buffers))


def _slice_of(t: TensorType, elements: int, rows: int, partition: int) -> Buffer:
    """The part of an operand or result that one tile touches: its columns, or one element a row."""
    if t.numel < elements and t.numel in (1, rows):
        return Buffer(partition, fixed=BUFFERS * t.dtype.itemsize)
    return Buffer(partition, per_column=BUFFERS * t.dtype.itemsize)


def _live_bytes_per_element(view: GroupView, elements: int) -> int:
    """Most bytes per element of the space that values inside take at once, in the precision of the engines."""
    alias: dict[str, str] = {}
    last_use: dict[str, int] = {}
    size: dict[str, int] = {}
    for i, op in enumerate(view.ops):
        last_use.update((alias.get(use, use), i) for use in op.uses)
        if view.facts[op.result].role is Role.VIEW and op.uses:
            alias[op.result] = alias.get(op.uses[0], op.uses[0])
        elif (t := result_type(op)) is not None and t.numel == elements:
            size[op.result] = max(ACCUMULATOR_BYTES, t.dtype.itemsize)
            last_use[op.result] = i
    dying: dict[int, int] = {}
    for name, bytes_ in size.items():
        dying[last_use[name]] = dying.get(last_use[name], 0) + bytes_
    peak = live = 0
    for i, op in enumerate(view.ops):
        live += size.get(op.result, 0)
        peak = max(peak, live)
        live -= dying.get(i, 0)
    return peak


def _attention(view: GroupView, partition: int, width: int) -> Demand:
    """Queries, keys, values, the scores in fp32 with each row's maximum and sum, and the output rows."""
    item = max((t.dtype.itemsize for t in view.gives()), default=ACCUMULATOR_BYTES)
    limit = view.target.num_partitions
    spans = -(-width // limit)  # a head wider than the array is contracted in several steps
    buffers = (
        Buffer(min(width, limit), fixed=BUFFERS * spans * partition * item),
        Buffer(min(width, limit), per_column=BUFFERS * spans * item),
        # Values lie with their keys on partitions, so that each column of scores adds one row in ``limit`` of them.
        Buffer(limit, per_column=BUFFERS * -(-width * item // limit)),
        Buffer(partition, fixed=2 * ACCUMULATOR_BYTES, per_column=ACCUMULATOR_BYTES),
        Buffer(partition, fixed=BUFFERS * width * item),
    )
    return Demand(buffers, accumulated=width)


def _matrix_operands(op: Op) -> tuple[Value, Value]:
    positions = space.matrix_operands(op) or (0, 1)  # convolutions: patches and filters
    left, right = (op.operand(i) for i in positions)
    if not isinstance(left, Value) or not isinstance(right, Value):
        raise TypeError(f"operands {positions} of {op.kind} are no tensors")
    return left, right


def _roots(view: GroupView, *names: str) -> frozenset[str]:
    """What the operands of the product are outside the group, through the views and casts before it."""
    found: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        if name in view.inside:
            pending.extend(view.graph.defs[name].uses)
        else:
            found.add(name)
    return frozenset(found)


def _itemsize(view: GroupView, value: Value) -> int:
    return view.graph.tensor_type(value.name).dtype.itemsize
