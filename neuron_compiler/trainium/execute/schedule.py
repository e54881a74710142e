"""Which op of a group runs where: on whole arrays before the tiles, inside each tile, or on whole arrays after.

Before: views and casts of operands (the access patterns and conversions of DMA), creations, and small operands. In the
tile: the product, if any, and every op with one element per element of the space, a permutation among them: the tile
stays as it is, and what else is read with it is loaded in the inverse order. After: other views of results (the access
patterns of the stores).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from neuron_compiler.ir.graph import Graph, Op, TensorType, TupleType
from neuron_compiler.ir.plan import Group, GroupKind, Tile, group_boundary
from neuron_compiler.ir.space import (
    Gemm,
    gemm_of,
    is_permutation,
    keeps_order,
    matrix_operands,
    permutation,
    result_type,
)
from neuron_compiler.trainium.execute.engines import ENGINES
from neuron_compiler.trainium.execute.views import CREATIONS, VIEWS


class Stage(enum.Enum):
    """When an op runs."""

    BEFORE = "before"
    TILE = "tile"
    AFTER = "after"


@dataclass(frozen=True)
class Order:
    """How a value in the tiles lies: as ``shape``, whose dimensions the user sees in the order ``permutation``."""

    shape: tuple[int, ...]
    permutation: tuple[int, ...]


@dataclass(frozen=True)
class Schedule:
    """A group that can run tile by tile.

    Attributes:
        graph: where its ops and their types stand.
        tile: how its space is cut.
        product: the matrix product and its extents; None for an elementwise group.
        stages: when each op runs, in program order.
        orders: of the values in the tiles that the user sees permuted.
        gives: values read outside the group.
    """

    graph: Graph
    tile: Tile
    product: tuple[Op, Gemm] | None
    stages: tuple[tuple[Op, Stage], ...]
    orders: Mapping[str, Order]
    gives: tuple[str, ...]

    def at(self, stage: Stage) -> tuple[Op, ...]:
        return tuple(op for op, when in self.stages if when is stage)


_WHY_KIND = {
    GroupKind.REDUCTION: "reductions are not run tile by tile",
    GroupKind.CONVOLUTION: "convolutions are not run tile by tile",
    GroupKind.ATTENTION: "attention is not run tile by tile",
    GroupKind.DATA_MOVEMENT: "it only moves data",
    GroupKind.OTHER: "its ops have no engine function",
}


def schedule(graph: Graph, group: Group, tile: Tile | None) -> Schedule | str:
    """The schedule of a group, or the reason why it has none."""
    if group.kind in _WHY_KIND:
        return _WHY_KIND[group.kind]
    if tile is None:
        return "it has no tile"
    ops = [graph.defs[name] for name in group.ops]
    product = _product(graph, ops) if group.kind is GroupKind.MATMUL else None
    if group.kind is GroupKind.MATMUL and product is None:
        return "its product has no engine function"
    for op in ops:
        if (reason := _why_not(graph, op, product)) is not None:
            return reason
    elements = tile.space[0] * tile.space[1] * tile.batch
    orders: dict[str, Order] = {}
    stages = _stages(graph, ops, product, elements, orders)
    if isinstance(stages, str):
        return stages
    return Schedule(graph, tile, product, stages, orders, group_boundary(graph, group)[1])


def _product(graph: Graph, ops: list[Op]) -> tuple[Op, Gemm] | None:
    for op in ops:
        if matrix_operands(op) is not None and (gemm := gemm_of(op, graph.types)) is not None:
            return op, gemm
    return None


def _why_not(graph: Graph, op: Op, product: tuple[Op, Gemm] | None) -> str | None:
    known = op.kind in ENGINES or op.kind in VIEWS or op.kind in CREATIONS
    if not known and (product is None or op is not product[0]):
        return f"{op.kind} has no engine function"
    types = [graph.types[use] for use in op.uses] + [op.type]
    if any(isinstance(t, TensorType) and t.dtype.is_complex for t in types):
        return "engines have no complex numbers"
    if any(isinstance(t, TensorType) and t.dtype.value.startswith("f8") for t in types):
        return "fp8 is not run tile by tile"
    if op.kind in ENGINES and isinstance(op.type, TupleType):
        return f"{op.kind} gives several results"
    return None


def _stages(
    graph: Graph, ops: list[Op], product: tuple[Op, Gemm] | None, elements: int, orders: dict[str, Order]
) -> tuple[tuple[Op, Stage], ...] | str:
    """The stage of each op, with the orders of permuted values filled in; or why there is none."""
    feeds_product = _ancestors(graph, ops, product[0]) if product is not None else frozenset()
    stage: dict[str, Stage] = {}
    for op in ops:
        read = {stage[use] for use in op.uses if use in stage}
        if product is not None and op is product[0]:
            stage[op.result] = Stage.TILE
        elif op.kind in CREATIONS or op.result in feeds_product:
            stage[op.result] = Stage.BEFORE
        elif op.kind in VIEWS:
            stage[op.result] = _stage_of_view(graph, op, read, orders)
        elif Stage.AFTER in read or not _lie_alike(op, stage, orders):
            return f"{op.kind} reads elements in another order than the tiles hold them"
        elif (result := result_type(op)) is not None and result.numel == elements:
            stage[op.result] = Stage.TILE
        elif Stage.TILE in read:
            return f"{op.kind} has another number of elements than the tiles"
        else:
            stage[op.result] = Stage.BEFORE
    return tuple((op, stage[op.result]) for op in ops)


def _stage_of_view(graph: Graph, op: Op, read: set[Stage], orders: dict[str, Order]) -> Stage:
    if Stage.AFTER in read:
        return Stage.AFTER
    if Stage.TILE not in read:
        return Stage.BEFORE
    source = op.uses[0]
    if keeps_order(op, graph.types):
        if source in orders:
            orders[op.result] = orders[source]
        return Stage.TILE
    if is_permutation(op) and source not in orders:
        shape = graph.tensor_type(source).shape
        orders[op.result] = Order(shape, permutation(op, len(shape)))
        return Stage.TILE
    return Stage.AFTER


def _lie_alike(op: Op, stage: Mapping[str, Stage], orders: dict[str, Order]) -> bool:
    """Whether all values in the tiles that an op reads lie in one order, which then is that of its result."""
    found = {orders.get(use) for use in op.uses if stage.get(use) is Stage.TILE}
    if len(found) == 1 and (order := found.pop()) is not None:
        orders[op.result] = order
        return True
    return len(found) <= 1


def _ancestors(graph: Graph, ops: list[Op], of: Op) -> frozenset[str]:
    inside = {op.result for op in ops}
    found: set[str] = set()
    pending = list(of.uses)
    while pending:
        name = pending.pop()
        if name in inside and name not in found:
            found.add(name)
            pending.extend(graph.defs[name].uses)
    return frozenset(found)
