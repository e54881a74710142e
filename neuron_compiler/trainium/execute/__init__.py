"""Tile by tile: a group run as the chip would run it, as a second way to the same numbers.

In: a group with its tile. Out: a function from the arrays that the group reads to those it gives, for
``options={"emulation": "tile"}``, or the reason why there is none. Each tile is at most what the target's array, banks
and partitions allow; products accumulate in fp32 over the contraction, one step after the other; every instruction
rounds its result to the type it is stored in. Nothing here uses the lowering rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax

from neuron_compiler.ir.graph import Graph
from neuron_compiler.ir.plan import Group, Tile
from neuron_compiler.trainium.execute.loops import run
from neuron_compiler.trainium.execute.schedule import Schedule, schedule
from neuron_compiler.trainium.target import Target

GroupFunction = Callable[[Mapping[str, jax.Array]], dict[str, jax.Array]]


def why_not(graph: Graph, group: Group, tile: Tile | None) -> str | None:
    """Why a group is not run tile by tile, or None where it is."""
    found = schedule(graph, group, tile)
    return found if isinstance(found, str) else None


def group_function(graph: Graph, group: Group, tile: Tile | None, target: Target) -> GroupFunction | None:
    """The group as a function of the arrays it reads, by name; None where ``why_not`` gives a reason.

    It is traced under 64-bit types, as the group's own types are kept.
    """
    found = schedule(graph, group, tile)
    if not isinstance(found, Schedule):
        return None
    planned = found

    def function(given: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        return run(planned, given, target)

    return function
