"""Tiling: the space of each kind of group, the limits of the targets, and the bytes, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from families import registry
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_compiler.errors import CapacityError
from neuron_compiler.ir import text, verify
from neuron_compiler.ir.plan import Program
from neuron_compiler.ir.plan import Tile as TileRecord
from neuron_compiler.passes.fuse import Fuse
from neuron_compiler.passes.tile import Tile, sbuf_peak_bytes, why_no_tile
from neuron_compiler.trainium.target import KIB, by_name

FUSE, TILE = Fuse(registry=registry()), Tile(registry=registry())


def tiled(body: str, inputs: str, target: str = "trn2") -> Program:
    """The program with these lines, fused and tiled, verified."""
    program = TILE(FUSE(text.parse(f"graph test({inputs}) target={target} {{\n{body}\n}}")))
    verify.program(program, when="tile")
    return program


def only_tile(body: str, inputs: str, target: str = "trn2") -> TileRecord:
    program = tiled(body, inputs, target)
    (tile,) = program.plan.tiles.values()
    return tile


def shape(tile: TileRecord) -> tuple[int, int, int]:
    return tile.partition, tile.free, tile.contraction


# Matrix products


def test_a_large_product_takes_the_largest_tile():
    tile = only_tile("%a = aten.mm.default(%x, %w) : f32[1000,3000]\nreturn %a", "%x: f32[1000,500], %w: f32[500,3000]")
    assert shape(tile) == (128, 512, 128)
    assert (tile.space, tile.batch, tile.count) == ((1000, 3000, 500), 1, 8 * 6 * 4)
    # Accumulator of fp32; two stationary, two moving and two result tiles, and the value itself once.
    assert tile.psum_bytes == 128 * 512 * 4
    assert tile.sbuf_bytes == 128 * (2 * 128 * 4 + 2 * 512 * 4 + 2 * 512 * 4 + 512 * 4)


def test_a_small_product_takes_no_more_than_it_has():
    tile = only_tile("%a = aten.mm.default(%x, %w) : bf16[3,5]\nreturn %a", "%x: bf16[3,7], %w: bf16[7,5]")
    assert (shape(tile), tile.space, tile.count) == ((3, 5, 7), (3, 5, 7), 1)
    assert tile.psum_bytes == 3 * 5 * 4
    assert tile.sbuf_bytes == 7 * (2 * 3 * 2) + 7 * (2 * 5 * 2) + 3 * (2 * 5 * 2) + 3 * 5 * 4


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_limits_of_each_target(target: str):
    machine = by_name(target)
    tile = only_tile(
        "%a = aten.mm.default(%x, %w) : f32[4096,8192]\nreturn %a", "%x: f32[4096,4096], %w: f32[4096,8192]", target
    )
    assert tile.partition <= machine.stationary_free_max
    assert tile.contraction <= machine.num_partitions
    assert tile.free * 4 <= machine.psum_bank_bytes_per_partition
    assert tile.sbuf_bytes <= machine.sbuf_bytes


@pytest.mark.parametrize(
    ("line", "inputs", "space", "batch"),
    [
        ("aten.linear.default(%x, %w, %b) : f32[2,3,5]", "%x: f32[2,3,7], %w: f32[5,7], %b: f32[5]", (6, 5, 7), 1),
        ("aten.addmm.default(%b, %x, %w) : f32[3,5]", "%b: f32[5], %x: f32[3,7], %w: f32[7,5]", (3, 5, 7), 1),
        ("aten.bmm.default(%x, %w) : f32[4,3,5]", "%x: f32[4,3,7], %w: f32[4,7,5]", (3, 5, 7), 4),
        ("aten.mv.default(%x, %w) : f32[3]", "%x: f32[3,7], %w: f32[7]", (3, 1, 7), 1),
    ],
)
def test_spaces_of_products(line: str, inputs: str, space: tuple[int, int, int], batch: int):
    tile = only_tile(f"%a = {line}\nreturn %a", inputs)
    assert (tile.space, tile.batch) == (space, batch)


def test_operands_before_views_and_casts_count_as_they_are_stored():
    tile = only_tile(
        """
        %a = aten._to_copy.default(%x, dtype=bf16) : bf16[4,8]
        %b = aten.permute.default(%w, [1, 0]) : bf16[8,16]
        %c = aten.mm.default(%a, %b) : bf16[4,16]
        return %c""",
        "%x: f32[4,8], %w: bf16[16,8]",
    )
    # The cast has made bf16 of the stationary tile by the time it is in SBUF.
    assert tile.sbuf_bytes == 8 * (2 * 4 * 2) + 8 * (2 * 16 * 2) + 4 * (2 * 16 * 2) + 4 * 16 * 4


def test_an_epilogue_operand_takes_a_tile_of_its_own():
    body = "%a = aten.mm.default(%x, %w) : f32[4,16]\n%b = aten.add.Tensor(%a, %r) : f32[4,16]\nreturn %b"
    plain = only_tile("%a = aten.mm.default(%x, %w) : f32[4,16]\nreturn %a", "%x: f32[4,8], %w: f32[8,16]")
    fused = only_tile(body, "%x: f32[4,8], %w: f32[8,16], %r: f32[4,16]")
    # Two buffers of the residual, and the product beside the sum.
    assert fused.sbuf_bytes - plain.sbuf_bytes == 4 * (2 * 16 * 4) + 4 * 16 * 4


# Convolutions


@pytest.mark.parametrize(
    ("groups", "space"),
    [(1, (2 * 5 * 5, 16, 8 * 9)), (8, (2 * 5 * 5, 2, 9))],
)
def test_a_convolution_is_the_product_of_patches_and_filters(groups: int, space: tuple[int, int, int]):
    tile = only_tile(
        f"%a = aten.convolution.default(%x, %k, none, [1, 1], [1, 1], [1, 1], false, [0, 0], {groups}) "
        ": f32[2,16,5,5]\nreturn %a",
        f"%x: f32[2,8,5,5], %k: f32[16,{8 // groups},3,3]",
    )
    assert (tile.space, tile.batch) == (space, groups)


def test_a_transposed_convolution_contracts_its_input_channels():
    tile = only_tile(
        "%a = aten.convolution.default(%x, %k, none, [2, 2], [0, 0], [1, 1], true, [0, 0], 1) : f32[2,4,10,10]\n"
        "return %a",
        "%x: f32[2,8,5,5], %k: f32[8,4,2,2]",
    )
    assert tile.space == (2 * 10 * 10, 4, 8 * 4)


@pytest.mark.parametrize(("wanted", "space"), [("f32[2,8,5,5]", (50, 8, 16 * 9)), ("none", (16, 72, 50))])
def test_a_convolutions_gradient(wanted: str, space: tuple[int, int, int]):
    tile = only_tile(
        "%a = aten.convolution_backward.default(%g, %x, %k, none, [1, 1], [1, 1], [1, 1], false, [0, 0], 1, "
        f"[true, true, false]) : ({wanted}, f32[16,8,3,3], none)\n%b = getitem(%a, 1) : f32[16,8,3,3]\nreturn %b",
        "%g: f32[2,16,5,5], %x: f32[2,8,5,5], %k: f32[16,8,3,3]",
    )
    assert tile.space == space


# Attention


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_tiled_by_its_scores(causal: bool):
    tile = only_tile(
        "%a = aten._scaled_dot_product_flash_attention_for_cpu.default(%q, %k, %v, 0.0, "
        f"{str(causal).lower()}) : (f32[2,4,300,64], f32[2,4,300])\n%b = getitem(%a, 0) : f32[2,4,300,64]\nreturn %b",
        "%q: f32[2,4,300,64], %k: f32[2,4,700,64], %v: f32[2,4,700,64]",
    )
    assert (tile.space, tile.batch, shape(tile)) == ((300, 700, 64), 8, (128, 512, 64))
    # Scores and output rows are accumulated side by side.
    assert tile.psum_bytes == 128 * (512 + 64) * 4


# Vector groups


def test_elementwise_rows_and_columns():
    tile = only_tile("%a = aten.mul.Tensor(%x, %w) : f32[6,50,96]\nreturn %a", "%x: f32[6,50,96], %w: f32[96]")
    assert (tile.space, shape(tile), tile.psum_bytes) == ((300, 96, 0), (128, 96, 0), 0)
    # x, w and the result, twice each, and the result being computed.
    assert tile.sbuf_bytes == 128 * 96 * (3 * 2 * 4 + 4)


def test_few_rows_are_spread_over_the_partitions():
    tile = only_tile("%a = aten.exp.default(%x) : f32[2,6400]\nreturn %a", "%x: f32[2,6400]")
    assert tile.space == (128, 100, 0)


def test_few_rows_stay_where_an_operand_repeats_along_them():
    tile = only_tile("%a = aten.mul.Tensor(%x, %w) : f32[2,6400]\nreturn %a", "%x: f32[2,6400], %w: f32[6400]")
    assert tile.space == (2, 6400, 0)


def test_a_row_that_does_not_fit_is_cut():
    # Per column 4 bytes: two buffers of x, two of the result, and the value in between.
    tile = only_tile("%a = aten.exp.default(%x) : f32[256,100000]\nreturn %a", "%x: f32[256,100000]")
    assert tile.free * 20 <= 224 * KIB < tile.free * 2 * 20
    assert tile.partition == 128


def test_a_reduction_puts_what_it_folds_on_the_free_dimension():
    columns = only_tile("%a = aten.sum.dim_IntList(%x, [0]) : f32[96]\nreturn %a", "%x: f32[200,96]")
    rows = only_tile("%a = aten.sum.dim_IntList(%x, [1]) : f32[200]\nreturn %a", "%x: f32[200,96]")
    assert (columns.space, rows.space) == ((96, 200, 0), (200, 96, 0))
    assert (shape(columns), shape(rows)) == ((96, 200, 0), (128, 96, 0))


def test_row_statistics_take_one_element_a_row():
    tile = only_tile("%a = aten.sum.dim_IntList(%x, [1]) : f32[200]\nreturn %a", "%x: f32[200,96]")
    assert tile.sbuf_bytes == 128 * (2 * 96 * 4 + 2 * 4)


def test_a_group_norm_folds_channels_of_a_group_with_pixels():
    tile = only_tile(
        "%a = aten.native_group_norm.default(%x, %w, %b, 2, 8, 25, 4, 1e-05) : (f32[2,8,5,5], f32[2,4], f32[2,4])\n"
        "%c = getitem(%a, 0) : f32[2,8,5,5]\nreturn %c",
        "%x: f32[2,8,5,5], %w: f32[8], %b: f32[8]",
    )
    assert tile.space == (2 * 4, 2 * 25, 0)


# Groups without a tile


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (
            "aten.embedding.default(%w, %i) : f32[4,8]",
            "only moves data: DMA does it, nothing is computed on partitions",
        ),
        ("aten.cumsum.default(%x, 0) : f32[4,8]", "its ops have no tiled form"),
        (
            "aten._trilinear.default(%x, %x, %x, [1], [1], [1], [1]) : f32[4,8]",
            "the extents of its anchor are not known",
        ),
        ("aten.exp.default(%e) : f32[0,8]", "it has no elements"),
    ],
)
def test_why_a_group_has_no_tile(line: str, why: str):
    program = tiled(f"%a = {line}\nreturn %a", "%x: f32[4,8], %w: f32[9,8], %i: i64[4], %e: f32[0,8]")
    assert dict(program.plan.tiles) == {}
    assert why_no_tile(program, program.plan.groups[0], registry()) == why


def test_a_tiled_group_has_no_reason():
    program = tiled("%a = aten.exp.default(%x) : f32[4,8]\nreturn %a", "%x: f32[4,8]")
    assert why_no_tile(program, program.plan.groups[0], registry()) is None


# The pass itself


def test_the_peak_is_that_of_the_hungriest_group():
    program = tiled(
        "%a = aten.mm.default(%x, %w) : f32[64,64]\n%b = aten._softmax.default(%a, -1, false) : f32[64,64]\nreturn %b",
        "%x: f32[64,64], %w: f32[64,64]",
    )
    assert len(program.plan.tiles) == 2
    assert sbuf_peak_bytes(program.plan) == max(t.sbuf_bytes for t in program.plan.tiles.values()) > 0
    assert sbuf_peak_bytes(replace(program.plan, tiles={})) == 0


def test_a_tiled_program_is_returned_as_it_is():
    program = tiled("%a = aten.exp.default(%x) : f32[4,8]\nreturn %a", "%x: f32[4,8]")
    assert TILE(program) is program


def test_a_program_that_is_not_fused_is_returned_as_it_is():
    program = text.parse("graph test(%x: f32[4]) target=trn2 {\n %a = aten.exp.default(%x) : f32[4]\n return %a\n}")
    assert TILE(program) is program


def test_more_operands_than_sbuf_holds_raise(monkeypatch: pytest.MonkeyPatch):
    tiny = replace(by_name("trn2"), sbuf_bytes_per_partition=16)
    monkeypatch.setattr("neuron_compiler.passes.tile.by_name", lambda name: tiny)
    with pytest.raises(CapacityError) as caught:
        tiled("%a = aten.add.Tensor(%x, %y) : f32[4,8]\nreturn %a", "%x: f32[4,8], %y: f32[4,8]")
    assert caught.value.what == "one column of a tile of g0_add takes 28 bytes of SBUF per partition; trn2 has 16"
    assert caught.value.when == "tile"


extent = st.integers(1, 3000)


@settings(max_examples=60, deadline=None)
@given(
    rows=extent,
    columns=extent,
    contracted=extent,
    dtype=st.sampled_from(("f32", "bf16")),
    target=st.sampled_from(("trn1", "trn2", "trn3")),
)
def test_any_product_fits_its_target(rows: int, columns: int, contracted: int, dtype: str, target: str):
    result = f"{dtype}[{rows},{columns}]"
    body = f"%a = aten.mm.default(%x, %w) : {result}\n%b = aten.relu.default(%a) : {result}\nreturn %b"
    tile = only_tile(body, f"%x: {dtype}[{rows},{contracted}], %w: {dtype}[{contracted},{columns}]", target)
    machine = by_name(target)
    assert tile.count == -(-rows // tile.partition) * -(-columns // tile.free) * -(-contracted // tile.contraction)
    assert tile.sbuf_bytes <= machine.sbuf_bytes
    assert tile.psum_bytes <= machine.psum_bytes // machine.psum_banks
