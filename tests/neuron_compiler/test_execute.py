"""Tile-by-tile execution: the same numbers as tiled loops in numpy and as float64; edges, orders, reasons, limits."""

from __future__ import annotations

import re

import jax
import numpy as np
import pytest
import torch
from tile_by_tile import BF16, Arrays, evaluated, run, tile

from neuron_compiler.capture import neuron
from neuron_compiler.errors import CapacityError
from neuron_compiler.ir import text
from neuron_compiler.ledger import LEDGER
from neuron_compiler.trainium import execute
from neuron_compiler.trainium.target import TRN2


def product_plan(ops: str, *cut: object) -> str:
    return f"  group g0 matmul ({ops})\n{tile(*cut)}"  # type: ignore[arg-type]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def tiled_product(a: np.ndarray, b: np.ndarray, step: int) -> np.ndarray:
    """The product in float32, summed over the contraction in steps, one after the other."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(0, a.shape[1], step):
        # Each part is exact here: the test's numbers are small integers times one power of two per step.
        part = (a[:, k : k + step].astype(np.float64) @ b[k : k + step].astype(np.float64)).astype(np.float32)
        total = total + part
    return total


# Products


def test_steps_of_a_contraction_are_summed_in_order_in_float32():
    scale = np.repeat(np.array([2.0**26, 1.0, -(2.0**26), 1.0, 2.0**13], np.float32), 4)
    whole = np.random.default_rng(0).integers(-8, 8, (5, 20)).astype(np.float32)
    a, b = whole * scale, np.random.default_rng(1).integers(-8, 8, (20, 7)).astype(np.float32)
    plan = product_plan("%a", 2, 3, 4, (5, 7, 20))
    found = run("%a = aten.mm.default(%x, %w) : f32[5,7]\nreturn %a", plan, x=a, w=b)
    np.testing.assert_array_equal(found, tiled_product(a, b, 4))
    # Another order, or one sum at the end, is another number: the equality above says something.
    reverse = tiled_product(a[:, ::-1], b[::-1], 4)
    exact = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)
    assert (found != reverse).any()
    assert (found != exact).any()


@pytest.mark.parametrize("cut", [(2, 3, 4), (5, 7, 20), (1, 1, 1), (4, 7, 3)])
def test_edges_are_padded_and_cut_off(cut: tuple[int, int, int]):
    a, b = normal(5, 20), normal(20, 7, seed=1)
    found = run("%a = aten.mm.default(%x, %w) : f32[5,7]\nreturn %a", product_plan("%a", *cut, (5, 7, 20)), x=a, w=b)
    np.testing.assert_allclose(found, a.astype(np.float64) @ b, rtol=1e-5, atol=1e-6)


def test_full_size_tiles():
    a, b = normal(300, 260), normal(260, 1100, seed=1)
    plan = product_plan("%a", 128, 512, 128, (300, 1100, 260))
    found = run("%a = aten.mm.default(%x, %w) : f32[300,1100]\nreturn %a", plan, x=a, w=b)
    np.testing.assert_allclose(found, a.astype(np.float64) @ b, rtol=1e-4, atol=1e-4)


def test_bfloat16_is_accumulated_in_float32_and_rounded_once():
    a = np.ones((3, 1001), BF16)
    b = normal(1001, 5).astype(BF16)
    plan = product_plan("%a", 3, 5, 128, (3, 5, 1001))
    ones = run("%a = aten.mm.default(%x, %w) : bf16[3,5]\nreturn %a", plan, x=a, w=np.ones_like(b))
    # Summed in bfloat16 it would stop at 256.
    np.testing.assert_array_equal(ones.astype(np.float32), np.float32(1001).astype(BF16))
    found = run("%a = aten.mm.default(%x, %w) : bf16[3,5]\nreturn %a", plan, x=a, w=b)
    exact = (a.astype(np.float64) @ b.astype(np.float64)).astype(BF16)
    np.testing.assert_allclose(found.astype(np.float32), exact.astype(np.float32), rtol=2**-7)


def test_64_bit_products_are_exact_to_their_own_type():
    wide = np.array([[2**40 + 1, 3], [-(2**41), 7]], np.int64)
    plan = product_plan("%a", 1, 2, 1, (2, 2, 2))
    found = run("%a = aten.mm.default(%x, %w) : i64[2,2]\nreturn %a", plan, x=wide, w=wide)
    np.testing.assert_array_equal(found, wide @ wide)
    a, b = normal(4, 9).astype(np.float64), normal(9, 4, seed=1).astype(np.float64)
    plan = product_plan("%a", 4, 4, 2, (4, 4, 9))
    double = run("%a = aten.mm.default(%x, %w) : f64[4,4]\nreturn %a", plan, x=a, w=b)
    np.testing.assert_allclose(double, a @ b, rtol=1e-14, atol=1e-14)


X, W, V, BX, BW = normal(5, 20), normal(20, 7, seed=1), normal(7, seed=2), normal(3, 5, 20), normal(3, 20, 7, seed=1)


@pytest.mark.parametrize(
    ("line", "arrays", "space", "batch", "expected"),
    [
        ("aten.addmm.default(%b, %x, %w) : f32[5,7]", {"b": V, "x": X, "w": W}, (5, 7, 20), 1, V + X @ W),
        ("aten.addmm.default(%b, %x, %w, alpha=0.5, beta=-2) : f32[5,7]", {"b": V, "x": X, "w": W}, (5, 7, 20), 1,
         -2 * V + 0.5 * (X @ W)),
        ("aten.addmm.default(%b, %x, %w, beta=0) : f32[5,7]", {"b": V * np.nan, "x": X, "w": W}, (5, 7, 20), 1, X @ W),
        ("aten.bmm.default(%x, %w) : f32[3,5,7]", {"x": BX, "w": BW}, (5, 7, 20), 3, BX @ BW),
        ("aten.baddbmm.default(%b, %x, %w) : f32[3,5,7]", {"b": V, "x": BX, "w": BW}, (5, 7, 20), 3, V + BX @ BW),
        ("aten.linear.default(%x, %w, %b) : f32[3,5,7]", {"x": BX, "w": W.T.copy(), "b": V}, (15, 7, 20), 1,
         BX @ W + V),
        ("aten.linear.default(%x, %w) : f32[7]", {"x": X[0], "w": W.T.copy()}, (1, 7, 20), 1, X[0] @ W),
        ("aten.linear.default(%x, %w) : f32[5]", {"x": X, "w": W[:, 0].copy()}, (5, 1, 20), 1, X @ W[:, 0]),
        ("aten.mv.default(%x, %w) : f32[5]", {"x": X, "w": W[:, 0].copy()}, (5, 1, 20), 1, X @ W[:, 0]),
        ("aten.dot.default(%x, %w) : f32[]", {"x": X[0], "w": W[:, 0].copy()}, (1, 1, 20), 1, X[0] @ W[:, 0]),
    ],
)  # fmt: skip
def test_every_product(line: str, arrays: Arrays, space: tuple[int, int, int], batch: int, expected: np.ndarray):
    cut = (min(2, space[0]), min(3, space[1]), 8, space, batch)
    found = run(f"%a = {line}\nreturn %a", product_plan("%a", *cut), **arrays)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_product_over_nothing_is_zero():
    plan = product_plan("%a", 2, 3, 0, (5, 7, 0))
    found = run("%a = aten.mm.default(%x, %w) : f32[5,7]\nreturn %a", plan, x=normal(5, 0), w=normal(0, 7))
    np.testing.assert_array_equal(found, np.zeros((5, 7), np.float32))


def test_prologue_epilogue_and_stores():
    body = """
    %a = aten._to_copy.default(%x, dtype=bf16) : bf16[6,8]
    %b = aten.permute.default(%w, [1, 0]) : bf16[8,10]
    %c = aten.mm.default(%a, %b) : bf16[6,10]
    %d = aten.add.Tensor(%c, %v) : bf16[6,10]
    %e = aten.relu.default(%d) : bf16[6,10]
    %f = aten.view.default(%e, [2, 3, 10]) : bf16[2,3,10]
    %g = aten.add.Tensor(%r, %f) : f32[2,3,10]
    %h = aten.permute.default(%g, [2, 0, 1]) : f32[10,2,3]
    %i = aten.slice.Tensor(%h, 0, 1, 9, 2) : f32[4,2,3]
    return %i"""
    x, w, v, r = normal(6, 8), normal(10, 8, seed=1), normal(10, seed=2), normal(2, 3, 10, seed=3)
    w, v = w.astype(BF16), v.astype(BF16)
    plan = product_plan("%a, %b, %c, %d, %e, %f, %g, %h, %i", 4, 3, 8, (6, 10, 8))
    found = run(body, plan, x=x, w=w, v=v, r=r)
    a = x.astype(BF16).astype(np.float32)
    c = (a @ w.T.astype(np.float32)).astype(BF16).astype(np.float32)
    d = (c + v.astype(np.float32)).astype(BF16)
    g = r + np.maximum(d, 0).astype(np.float32).reshape(2, 3, 10)
    np.testing.assert_allclose(found, g.transpose(2, 0, 1)[1:9:2], rtol=1e-2, atol=2e-2)


def test_what_is_permuted_is_loaded_and_stored_in_its_order():
    body = """
    %a = aten.linear.default(%x, %w) : f32[2,6,5]
    %b = aten.permute.default(%a, [2, 0, 1]) : f32[5,2,6]
    %c = aten.view.default(%b, [5, 12]) : f32[5,12]
    %d = aten.add.Tensor(%r, %c) : f32[5,12]
    %e = aten.mul.Tensor(%d, %s) : f32[5,12]
    return %a, %b, %e"""
    x, w, r, s = normal(2, 6, 4), normal(5, 4, seed=1), normal(5, 12, seed=2), normal(5, 1, seed=3)
    inputs = "%x: f32[2,6,4], %w: f32[5,4], %r: f32[5,12], %s: f32[5,1]"
    program = text.parse(
        f"graph test({inputs}) target=trn2 {{\n{body}\n}}\n"
        f"plan {{\n{product_plan('%a, %b, %c, %d, %e', 5, 2, 4, (12, 5, 4))}\n}}"
    )
    found = evaluated(program, {"x": x, "w": w, "r": r, "s": s})
    np.testing.assert_allclose(found["a"], x @ w.T, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found["b"], found["a"].transpose(2, 0, 1))
    np.testing.assert_array_equal(found["e"], (r + found["b"].reshape(5, 12)) * s)


def test_both_the_product_and_its_epilogue_can_be_given():
    body = "%a = aten.mm.default(%x, %w) : f32[5,7]\n%b = aten.relu.default(%a) : f32[5,7]\nreturn %a, %b"
    program = text.parse(
        f"graph test(%x: f32[5,20], %w: f32[20,7]) target=trn2 {{\n{body}\n}}\n"
        f"plan {{\n{product_plan('%a, %b', 2, 3, 4, (5, 7, 20))}\n}}"
    )
    found = evaluated(program, {"x": X, "w": W})
    np.testing.assert_array_equal(found["b"], np.maximum(found["a"], 0))
    np.testing.assert_allclose(found["a"], X @ W, rtol=1e-5, atol=1e-5)


# Elementwise groups


def test_broadcasts_scalars_and_reshapes_inside_a_group():
    body = """
    %a = aten.mul.Tensor(%x, %w) : f32[4,3,5]
    %b = aten.add.Tensor(%a, %s, alpha=2) : f32[4,3,5]
    %c = aten.view.default(%b, [12, 5]) : f32[12,5]
    %d = aten.sub.Tensor(%c, %r) : f32[12,5]
    return %d"""
    x, w, s, r = normal(4, 3, 5), normal(3, 1, seed=1), np.float32(3.5).reshape(()), normal(12, 1, seed=2)
    plan = f"  group g0 elementwise (%a, %b, %c, %d)\n{tile(5, 2, 0, (12, 5, 0))}"
    found = run(body, plan, x=x, w=w, s=s, r=r)
    np.testing.assert_array_equal(found, (x * w + np.float32(7)).reshape(12, 5) - r)


def test_a_space_that_was_spread_over_partitions():
    plan = f"  group g0 elementwise (%a)\n{tile(4, 6, 0, (10, 12, 0))}"
    x = normal(2, 60)
    np.testing.assert_array_equal(run("%a = aten.neg.default(%x) : f32[2,60]\nreturn %a", plan, x=x), -x)


def test_masks_are_made_before_the_tiles():
    body = """
    %i = aten.arange.default(5) : i64[5]
    %j = aten.unsqueeze.default(%i, 1) : i64[5,1]
    %m = aten.le.Tensor(%i, %j) : bool[5,5]
    %z = aten.full.default([], -inf) : f32[]
    %a = aten.where.self(%m, %x, %z) : f32[3,5,5]
    return %a"""
    x = normal(3, 5, 5)
    found = run(body, f"  group g0 elementwise (%i, %j, %m, %z, %a)\n{tile(4, 2, 0, (15, 5, 0))}", x=x)
    np.testing.assert_array_equal(found, np.where(np.tri(5, dtype=bool), x, -np.inf))


def test_a_rotation_with_a_concatenation_inside():
    body = """
    %b = aten.slice.Tensor(%q, 1, 0, 4) : f32[6,4]
    %c = aten.slice.Tensor(%q, 1, 4, 9223372036854775807) : f32[6,4]
    %d = aten.neg.default(%c) : f32[6,4]
    %e = aten.cat.default([%d, %b], -1) : f32[6,8]
    %f = aten.mul.Tensor(%e, %s) : f32[6,8]
    return %f"""
    q, s = normal(6, 8), normal(6, 8, seed=1)
    found = run(body, f"  group g0 elementwise (%b, %c, %d, %e, %f)\n{tile(4, 3, 0, (6, 8, 0))}", q=q, s=s)
    np.testing.assert_array_equal(found, np.concatenate([-q[:, 4:], q[:, :4]], -1) * s)


def test_parts_of_a_split():
    body = """
    %s = aten.split.Tensor(%x, 3, 1) : (f32[4,3], f32[4,3], f32[4,1])
    %a = getitem(%s, 0) : f32[4,3]
    %b = getitem(%s, 1) : f32[4,3]
    %c = aten.mul.Tensor(%a, %b) : f32[4,3]
    return %c"""
    x = normal(4, 7)
    found = run(body, f"  group g0 elementwise (%s, %a, %b, %c)\n{tile(3, 2, 0, (4, 3, 0))}", x=x)
    np.testing.assert_array_equal(found, x[:, :3] * x[:, 3:6])


def test_an_explicit_cast_always_rounds():
    body = """
    %a = aten._to_copy.default(%x, dtype=bf16) : bf16[4,5]
    %b = aten._to_copy.default(%a, dtype=f32) : f32[4,5]
    return %b"""
    x = normal(4, 5)
    found = run(body, f"  group g0 elementwise (%a, %b)\n{tile(3, 5, 0, (4, 5, 0))}", x=x)
    np.testing.assert_array_equal(found, x.astype(BF16).astype(np.float32))


def test_operations_are_neither_reordered_nor_joined():
    body = """
    %a = aten.add.Tensor(%x, 100000000.0) : f32[4,5]
    %b = aten.sub.Tensor(%a, 100000000.0) : f32[4,5]
    return %b"""
    found = run(body, f"  group g0 elementwise (%a, %b)\n{tile(3, 5, 0, (4, 5, 0))}", x=normal(4, 5))
    np.testing.assert_array_equal(found, np.zeros((4, 5), np.float32))


# Reasons and limits


@pytest.mark.parametrize(
    ("line", "kind", "with_tile", "reason"),
    [
        ("aten._softmax.default(%x, -1, false) : f32[4,8]", "reduction", True, "reductions are not run tile by tile"),
        ("aten.mystery.default(%x) : f32[4,8]", "elementwise", True, "aten.mystery.default has no engine function"),
        ("aten.exp.default(%x) : f32[4,8]", "elementwise", False, "it has no tile"),
        ("aten._trilinear.default(%x) : f32[4,8]", "matmul", True, "its product has no engine function"),
        ("aten.add.Tensor(%c, %c) : c64[4,8]", "elementwise", True, "engines have no complex numbers"),
        ("aten.embedding.default(%x, %i) : f32[4,8]", "data_movement", False, "it only moves data"),
        ("aten.exp.default(%x) : f32[4,8]\n%b = aten.permute.default(%a, [1, 0]) : f32[8,4]\n"
         "%c = aten.view.default(%b, [4, 8]) : f32[4,8]\n%d = aten.add.Tensor(%a, %c) : f32[4,8]", "elementwise", True,
         "aten.add.Tensor reads elements in another order than the tiles hold them"),
    ],
)  # fmt: skip
def test_why_a_group_is_not_run_tile_by_tile(line: str, kind: str, with_tile: bool, reason: str):
    cut = tile(4, 8, 0, (4, 8, 0)) if with_tile else ""
    program = text.parse(
        f"graph test(%x: f32[4,8], %c: c64[4,8], %i: i64[4]) target=trn2 {{\n%a = {line}\nreturn %a\n}}\n"
        f"plan {{\n  group g0 {kind} ({', '.join(re.findall('%[a-d](?= =)', f'%a = {line}'))})\n{cut}\n}}"
    )
    group = program.plan.groups[0]
    assert execute.why_not(program.graph, group, program.plan.tiles.get("g0")) == reason
    assert execute.group_function(program.graph, group, program.plan.tiles.get("g0"), TRN2) is None


def test_a_tile_larger_than_an_instruction_takes_is_refused():
    program = text.parse(
        "graph test(%x: f32[4,8], %w: f32[8,600]) target=trn2 {\n%a = aten.mm.default(%x, %w) : f32[4,600]\n"
        f"return %a\n}}\nplan {{\n{product_plan('%a', 4, 600, 8, (4, 600, 8))}\n}}"
    )
    function = execute.group_function(program.graph, program.plan.groups[0], program.plan.tiles["g0"], TRN2)
    assert function is not None
    with pytest.raises(CapacityError, match="a tile has free 600; trn2 takes 512"):
        function({"x": jax.numpy.ones((4, 8)), "w": jax.numpy.ones((8, 600))})


def test_the_trace_does_not_grow_with_the_number_of_tiles():
    def operations(rows: int) -> int:
        program = text.parse(
            f"graph test(%x: f32[{rows},64], %w: f32[64,64]) target=trn2 {{\n"
            f"%a = aten.mm.default(%x, %w) : f32[{rows},64]\nreturn %a\n}}\n"
            f"plan {{\n{product_plan('%a', 8, 8, 8, (rows, 64, 64))}\n}}"
        )
        function = execute.group_function(program.graph, program.plan.groups[0], program.plan.tiles["g0"], TRN2)
        assert function is not None
        with jax.enable_x64(True):
            shapes = {n: jax.ShapeDtypeStruct(s, np.float32) for n, s in (("x", (rows, 64)), ("w", (64, 64)))}
            return str(jax.make_jaxpr(function)(shapes)).count(" = ")

    assert operations(16) == operations(800)


# Through torch.compile


def test_a_compiled_model_runs_tile_by_tile():
    class Mlp(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = torch.nn.Linear(40, 300), torch.nn.Linear(300, 40)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x + self.down(torch.nn.functional.gelu(self.up(x)))).transpose(1, 2)

    model, x = Mlp(), torch.randn(3, 50, 40)
    compiled = torch.compile(model, backend=neuron, options={"emulation": "tile"}, fullgraph=True)
    with torch.no_grad():
        found, expected = compiled(x), model(x)
    assert LEDGER.total("fallback") == 0
    torch.testing.assert_close(found, expected)
    assert (found != torch.compile(model, backend=neuron)(x)).any()  # sums in another order, so it was another way
