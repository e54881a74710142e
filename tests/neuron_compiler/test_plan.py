"""The Plan's data: what a Program keeps when its graph or plan is replaced, and how many tiles cover a space."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neuron_compiler.ir import text
from neuron_compiler.ir.plan import Group, GroupKind, Plan, Program, Tile

PROGRAM = text.parse("""
    graph g(%x: f32[4]) target=trn3 { %0 = aten.exp.default(%x) : f32[4] return %0 }
    plan {
      group g0 elementwise (%0)
      tile g0 partition=1 free=4 contraction=0 space=[1, 4, 0] batch=1 sbuf_bytes=32 psum_bytes=0
    }
    """)


def test_another_graph_drops_the_plan_and_keeps_the_target() -> None:
    after = PROGRAM.with_graph(replace(PROGRAM.graph, outputs=("x",)))
    assert after.plan == Plan()
    assert after.target == "trn3"


def test_a_field_of_the_plan_is_replaced_alone() -> None:
    groups = (Group("other", GroupKind.OTHER, ("0",)),)
    after = PROGRAM.with_plan(groups=groups)
    assert after.plan.groups == groups
    assert after.plan.tiles == PROGRAM.plan.tiles
    assert after.graph is PROGRAM.graph


def test_plans_are_equal_by_content() -> None:
    assert text.parse(str(PROGRAM)).plan == PROGRAM.plan
    assert Plan() == Plan()
    assert Program(PROGRAM.graph) != PROGRAM


@pytest.mark.parametrize(
    ("tile", "space", "batch", "count"),
    [
        ((128, 512, 128), (256, 1024, 256), 1, 8),
        ((128, 512, 128), (129, 513, 129), 1, 8),
        ((128, 512, 0), (128, 512, 0), 1, 1),
        ((128, 512, 0), (1, 1, 0), 3, 3),
        ((128, 512, 64), (128, 512, 65), 2, 4),
    ],
)
def test_tiles_cover_their_space(
    tile: tuple[int, int, int], space: tuple[int, int, int], batch: int, count: int
) -> None:
    assert Tile(*tile, space, batch, 0, 0).count == count
