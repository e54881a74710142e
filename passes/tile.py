"""Tile: how each group's iteration space is cut for the engines and their memories.

What it changes: fills ``plan.tiles``. Why it pays: a group is computed tile by tile, each of which must fit the array,
a bank of PSUM and, double-buffered, SBUF; the tile says whether and how it does. Matrix products and convolutions (as
products of patches and filters) put output rows on partitions, output columns on the free dimension and contract at
most one partition span per step, accumulating in fp32. Reductions put what is kept on partitions and what is folded on
the free dimension, elementwise groups their rows and last dimension.

Before::

    group g0_mm_relu matmul (%0, %1)

After::

    group g0_mm_relu matmul (%0, %1)
    tile g0_mm_relu partition=128 free=256 contraction=64 space=[1024,256,64] batch=1 sbuf_bytes=... psum_bytes=...

Assumes groups as ``fuse`` makes them, with one anchor each. A group that computes nothing on partitions has no tile;
``why_no_tile`` says why.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar

from neuron_compiler.errors import CapacityError
from neuron_compiler.ir import plan
from neuron_compiler.ir.plan import Group, GroupKind, Plan, Program
from neuron_compiler.opdef import REGISTRY, Registry
from neuron_compiler.passes.tile_memory import ACCUMULATOR_BYTES, demand
from neuron_compiler.passes.tile_space import GroupView, Space, space_of
from neuron_compiler.trainium.target import Target, by_name


@dataclass(frozen=True)
class Tile:
    """The pass; see the module."""

    registry: Registry = field(default=REGISTRY, repr=False, compare=False)
    name: ClassVar[str] = "tile"

    def __call__(self, program: Program) -> Program:
        target = by_name(program.target)
        tiles: dict[str, plan.Tile] = {}
        for group in program.plan.groups:
            view = GroupView(program.graph, group, self.registry, target)
            iteration = space_of(view)
            if iteration is not None and iteration.elements:
                tiles[group.name] = _cut(view, iteration, target)
        if tiles == program.plan.tiles:
            return program
        return program.with_plan(tiles=MappingProxyType(tiles))


def sbuf_peak_bytes(made: Plan) -> int:
    """Bytes of SBUF that the hungriest group's tile takes, operands and results double-buffered; 0 without tiles."""
    return max((tile.sbuf_bytes for tile in made.tiles.values()), default=0)


def why_no_tile(program: Program, group: Group, registry: Registry = REGISTRY) -> str | None:
    """Why a group is not tiled, or None where it is."""
    if group.kind is GroupKind.DATA_MOVEMENT:
        return "only moves data: DMA does it, nothing is computed on partitions"
    if group.kind is GroupKind.OTHER:
        return "its ops have no tiled form"
    iteration = space_of(GroupView(program.graph, group, registry, by_name(program.target)))
    if iteration is None:
        return "the extents of its anchor are not known"
    return None if iteration.elements else "it has no elements"


def _cut(view: GroupView, iteration: Space, target: Target) -> plan.Tile:
    """The largest tile within the limits of the array and PSUM whose columns also fit SBUF."""
    rows, columns, contracted = iteration.extents
    partition, free, contraction = min(rows, target.num_partitions), columns, 0
    if iteration.on_tensor_engine:
        # One accumulation stays within one bank, so that the others can be emptied meanwhile.
        bank = target.psum_bank_bytes_per_partition // ACCUMULATOR_BYTES
        partition = min(rows, target.stationary_free_max)
        free = min(columns, target.moving_free_max, bank)
        contraction = min(contracted, target.num_partitions)
    needed = demand(view, iteration, partition, contraction)
    while (taken := needed.per_partition(free)) > target.sbuf_bytes_per_partition and free > 1:
        free = -(-free // 2)
    if taken > target.sbuf_bytes_per_partition:
        raise CapacityError(
            f"one column of a tile of {view.group.name} takes {taken} bytes of SBUF per partition; "
            f"{target.name} has {target.sbuf_bytes_per_partition}",
            when="tile",
            hint="make smaller groups: fuse{max_ops=16}",
        )
    accumulated = partition * (free + needed.accumulated) * ACCUMULATOR_BYTES if iteration.on_tensor_engine else 0
    return plan.Tile(
        partition=partition,
        free=free,
        contraction=contraction,
        space=iteration.extents,
        batch=iteration.batch,
        sbuf_bytes=needed.total(free),
        psum_bytes=accumulated,
    )
