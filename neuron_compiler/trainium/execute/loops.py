"""The loops over tiles: load, compute, store, one tile after the other.

A value of the space lies as [batch, rows, columns]; a tile of it as [partition, free]. What does not fill its last tile
is padded, and the padding is cut off when results are put together again. Tiles are independent of each other; the
steps of a contraction are not, and run in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from neuron_compiler import dtypes
from neuron_compiler.errors import CapacityError
from neuron_compiler.ir.graph import Op, Value
from neuron_compiler.ir.plan import Tile
from neuron_compiler.ir.space import Gemm, base_name, matrix_operands
from neuron_compiler.trainium import numerics
from neuron_compiler.trainium.execute import engines
from neuron_compiler.trainium.execute.engines import result_of
from neuron_compiler.trainium.execute.schedule import Order, Schedule, Stage
from neuron_compiler.trainium.execute.views import CREATIONS, VIEWS, create, view
from neuron_compiler.trainium.target import Target

Array = jax.Array

Place = tuple[Array, Array, Array]
"""Where a tile lies: batch, tile row, tile column."""

Operand = tuple[str, tuple[int, ...], str]
"""A value from outside of the tiles, the shape that the op reading it sees, and a number for the order it lies in."""


def run(planned: Schedule, given: Mapping[str, Array], target: Target) -> dict[str, Array]:
    """The values that a group gives, from those it reads.

    Raises:
        CapacityError: the tile is larger than an instruction of the target takes.
    """
    _check(planned, target)
    arrays: dict[str, Any] = dict(given)
    for op in planned.at(Stage.BEFORE):
        arrays[op.result] = _whole(op, planned, arrays)
    arrays.update(_tiles(planned, arrays))
    for op in planned.at(Stage.AFTER):
        arrays[op.result] = _whole(op, planned, arrays)
    return {name: arrays[name] for name in planned.gives}


def _check(planned: Schedule, target: Target) -> None:
    tile = planned.tile
    limits = {"partition": target.num_partitions, "contraction": target.num_partitions}
    if planned.product is not None:
        bank = target.psum_bank_bytes_per_partition // 4
        limits |= {"partition": target.stationary_free_max, "free": min(target.moving_free_max, bank)}
    for name, limit in limits.items():
        if (extent := getattr(tile, name)) > limit:
            raise CapacityError(f"a tile has {name} {extent}; {target.name} takes {limit}", when="execute")


def _whole(op: Op, planned: Schedule, arrays: Mapping[str, Any]) -> Any:
    if op.kind in CREATIONS:
        return create(op)
    return view(op, arrays) if op.kind in VIEWS else engines.apply(op, planned.graph, arrays)


# Cutting and putting together


def _blocks(x: Array, sizes: tuple[int, int]) -> Array:
    """[batch, a, b] to [batch, tiles of a, tiles of b, *sizes], padded with ones: no instruction divides by zero."""
    pads = [(0, 0), *((0, -extent % size) for extent, size in zip(x.shape[1:], sizes, strict=True))]
    padded = jnp.pad(x, pads, constant_values=1)
    batch, a, b = padded.shape
    return padded.reshape(batch, a // sizes[0], sizes[0], b // sizes[1], sizes[1]).transpose(0, 1, 3, 2, 4)


def _joined(blocks: Array, extents: tuple[int, int, int]) -> Array:
    """The inverse of ``_blocks``: [batch, tiles, tiles, partition, free] to [batch, rows, columns]."""
    batch, tall, wide, partition, free = blocks.shape
    padded = blocks.transpose(0, 1, 3, 2, 4).reshape(batch, tall * partition, wide * free)
    return padded[:, : extents[1], : extents[2]]


def _seen(whole: Array, order: Order | None) -> Array:
    """A value of the tiles as the user sees it."""
    return whole if order is None else whole.reshape(order.shape).transpose(order.permutation)


def _unseen(whole: Array, order: Order | None) -> Array:
    """The inverse of ``_seen``: a value as the tiles hold it."""
    if order is None:
        return whole
    inverse = sorted(range(len(order.shape)), key=order.permutation.__getitem__)
    return whole.reshape([order.shape[axis] for axis in order.permutation]).transpose(inverse)


def _tiles(planned: Schedule, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Every value that a tile computes and something outside of the tiles reads."""
    tile = planned.tile
    ops = planned.at(Stage.TILE)
    extents = (tile.batch, tile.space[0], tile.space[1])
    sizes = (tile.partition, tile.free)
    inside = {op.result for op in ops}
    later = {use for op in planned.at(Stage.AFTER) for use in op.uses} | set(planned.gives)
    wanted = [op for op in ops if op.result in later]
    loads = _Loads(planned, inside, arrays, extents, sizes)
    product = None if planned.product is None else _Product(*planned.product, arrays, tile)

    def one(cut: tuple[Place, dict[Operand, Array]]) -> dict[str, Array]:
        place, parts = cut
        held = dict(loads.scalars)
        for op in ops:
            held.update({part[0]: parts[part] for part in loads.of(op)})
            if product is not None and op is product.op:
                held[op.result] = product.tile(place, held)
            elif op.kind in VIEWS:  # the tile stays as it is, if need be in an order that the store undoes
                held[op.result] = held[op.uses[0]]
            else:
                held[op.result] = engines.apply(op, planned.graph, held)
        return {op.result: jnp.broadcast_to(held[op.result], sizes) for op in wanted}

    counts = (extents[0], -(-extents[1] // sizes[0]), -(-extents[2] // sizes[1]))
    places = jnp.unravel_index(jnp.arange(prod(counts)), counts)
    stored = lax.map(one, (places, loads.parts))
    return {
        op.result: _seen(
            _joined(stored[op.result].reshape(*counts, *sizes), extents), planned.orders.get(op.result)
        ).reshape(result_of(op).shape)
        for op in wanted
    }


class _Loads:
    """Operands from outside of the tiles, each cut the way that the op reading it sees it.

    Attributes:
        scalars: operands of one element, by name.
        parts: the others, [tiles, partition, free].
    """

    def __init__(
        self,
        planned: Schedule,
        inside: set[str],
        arrays: Mapping[str, Array],
        extents: tuple[int, int, int],
        sizes: tuple[int, int],
    ) -> None:
        self.scalars: dict[str, Array] = {}
        self.parts: dict[Operand, Array] = {}
        self._numbers = {order: str(n) for n, order in enumerate(dict.fromkeys(planned.orders.values()))}
        self._orders = planned.orders
        for op in planned.at(Stage.TILE):
            for name in loaded(op):
                part = self._part(op, name)
                if name in inside or part in self.parts:
                    continue
                if arrays[name].size == 1:
                    self.scalars[name] = arrays[name].reshape(())
                else:
                    whole = _unseen(jnp.broadcast_to(arrays[name], part[1]), self._orders.get(op.result))
                    self.parts[part] = _blocks(whole.reshape(extents), sizes).reshape(-1, *sizes)

    def of(self, op: Op) -> list[Operand]:
        """The parts that an op reads."""
        return [part for name in loaded(op) if (part := self._part(op, name)) in self.parts]

    def _part(self, op: Op, name: str) -> Operand:
        order = self._orders.get(op.result)
        return name, result_of(op).shape, "" if order is None else self._numbers[order]


def loaded(op: Op) -> tuple[str, ...]:
    """Operands of an op that are cut like its result; the two matrices of a product are cut along the contraction."""
    positions = matrix_operands(op)
    if positions is None:
        return op.uses
    return tuple(v.name for i, v in enumerate(op.operands) if i not in positions and isinstance(v, Value))


class _Product:
    """The matrix product: its operands cut into stationary and moving tiles, contraction on partitions."""

    def __init__(self, op: Op, gemm: Gemm, arrays: Mapping[str, Array], tile: Tile) -> None:
        self.op, self.tile_record = op, tile
        left, right = (arrays[v.name] for i in matrix_operands(op) or () if isinstance(v := op.operand(i), Value))
        self.accumulate = numerics.accumulation_type(dtypes.from_numpy(left.dtype))
        self.steps = -(-gemm.contracted // tile.contraction) if tile.contraction else 0
        step = max(tile.contraction, 1)
        stationary = left.reshape(gemm.batch, gemm.rows, gemm.contracted).transpose(0, 2, 1)
        if base_name(op.kind) == "linear":  # its weight is stored [columns, contraction]
            right = right.reshape(gemm.columns, gemm.contracted).T
        moving = right.reshape(gemm.batch, gemm.contracted, gemm.columns)
        if self.steps:
            self.stationary = _blocks(_zero_padded(stationary, step), (step, tile.partition))
            self.moving = _blocks(_zero_padded(moving, step), (step, tile.free))

    def tile(self, place: Place, held: Mapping[str, Array]) -> Array:
        """One tile of the result: the steps accumulate in PSUM, then the op's own addition, then one rounding."""
        batch, row, column = place
        shape = (self.tile_record.partition, self.tile_record.free)

        def step(k: Array, bank: Array) -> Array:
            part = engines.nc_matmul(self.stationary[batch, k, row], self.moving[batch, k, column], self.accumulate)
            return engines.stored(bank + part)

        bank = jnp.zeros(shape, dtypes.to_numpy(self.accumulate))
        bank = lax.fori_loop(0, self.steps, step, bank) if self.steps else bank
        return engines.stored(numerics.round_to(self._with_addend(bank, held), result_of(self.op).dtype))

    def _with_addend(self, bank: Array, held: Mapping[str, Array]) -> Array:
        """``beta * addend + alpha * product`` of addmm and its like, the bias of a linear; in PSUM's type."""
        name = base_name(self.op.kind)
        if name in ("addmm", "baddbmm", "addmv"):
            alpha, beta = self.op.attr("alpha", 1), self.op.attr("beta", 1)
            addend, scaled = self.op.operand(0), bank if alpha == 1 else bank * self._scalar(alpha)
            if beta == 0:  # what the addend holds, NaN too, is then ignored
                return scaled
            found = engines.cast(held[addend.name], self.accumulate) if isinstance(addend, Value) else bank * 0
            return scaled + (found if beta == 1 else found * self._scalar(beta))
        bias = self.op.operand(2) if name == "linear" else None
        return bank + engines.cast(held[bias.name], self.accumulate) if isinstance(bias, Value) else bank

    def _scalar(self, value: Any) -> Array:
        return engines.scalar(value, self.accumulate)


def _zero_padded(x: Array, step: int) -> Array:
    """[batch, contraction, free] with zeros after the contraction's end: they add nothing."""
    return jnp.pad(x, ((0, 0), (0, -x.shape[1] % step), (0, 0)))
