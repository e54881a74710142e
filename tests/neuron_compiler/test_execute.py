"""Tile-by-tile execution: the same numbers as tiled loops in numpy, as float64, and as ATen op by op."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import ml_dtypes
import numpy as np
import pytest
import torch

from neuron_compiler import dtypes
from neuron_compiler.errors import CapacityError
from neuron_compiler.interop import device
from neuron_compiler.ir import text, verify
from neuron_compiler.ir.graph import DType, Graph, Input, Op, TensorType, Value
from neuron_compiler.ir.plan import Group, GroupKind, Program, Tile
from neuron_compiler.trainium import execute, numerics
from neuron_compiler.trainium.execute.engines import ENGINES
from neuron_compiler.trainium.target import TRN2

Arrays = Mapping[str, np.ndarray]
BF16 = ml_dtypes.bfloat16


def evaluated(program: Program, arrays: Arrays) -> dict[str, np.ndarray]:
    """What the program's one group gives, tile by tile."""
    verify.program(program)
    (group,) = program.plan.groups
    tile = program.plan.tiles.get(group.name)
    assert execute.why_not(program.graph, group, tile) is None
    function = execute.group_function(program.graph, group, tile, TRN2)
    assert function is not None
    with jax.enable_x64(True), jax.default_device(device()):
        compiled = jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})  # compiles faster
        results = compiled({name: jax.numpy.asarray(array) for name, array in arrays.items()})
        return {name: np.asarray(result) for name, result in results.items()}


def run(body: str, plan: str, **arrays: np.ndarray) -> np.ndarray:
    """The one result of a group written as IR text, its inputs being ``arrays``."""
    inputs = ", ".join(f"%{name}: {TensorType(a.shape, dtypes.from_numpy(a.dtype))}" for name, a in arrays.items())
    program = text.parse(f"graph test({inputs}) target=trn2 {{\n{body}\n}}\nplan {{\n{plan}\n}}")
    (result,) = evaluated(program, arrays).values()
    return result


def tile(partition: int, free: int, contraction: int, space: tuple[int, int, int], batch: int = 1) -> str:
    """The line of a tile of group g0; its bytes do not matter here."""
    return (
        f"  tile g0 partition={partition} free={free} contraction={contraction} "
        f"space=[{', '.join(map(str, space))}] batch={batch} sbuf_bytes=0 psum_bytes=0"
    )


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


# Every instruction against ATen

SPECIAL = np.array([0.0, -0.0, 1.0, -1.5, 0.3, 2.5, -3.0, 1e-3, 30.0, -30.0, np.inf, -np.inf, np.nan], np.float32)
OTHER = np.array([2.0, 3.0, -1.0, 0.5, -0.25, 4.0, 1.5, -2.0, 0.1, 7.0, 2.0, 1.0, 1.0], np.float32)
FLAGS = SPECIAL > 0

_UNARY = (
    "neg", "abs", "relu", "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "reciprocal",
    "tanh", "erf", "sin", "cos", "sigmoid", "silu", "gelu", "square", "floor", "ceil", "trunc", "logical_not",
)  # fmt: skip
_SCALARS = {"add": 1.5, "sub": 2, "rsub": 0.1, "mul": -3, "div": 3.0}
_PAIRS = ("maximum", "minimum", "logical_and", "logical_or", "logical_xor", "silu_backward", "gelu_backward")
_COMPARED = ("eq", "ne", "lt", "le", "gt", "ge")

SAMPLES: dict[str, list[tuple[object, ...]]] = {
    **{f"aten.{name}.default": [(SPECIAL,)] for name in _UNARY},
    **{f"aten.{name}.Tensor": [(SPECIAL, OTHER), (SPECIAL, 2.5)] for name in ("add", "sub", "mul", "div")},
    **{f"aten.{name}.Scalar": [(SPECIAL, value)] for name, value in _SCALARS.items()},
    **{f"aten.{name}.Tensor": [(SPECIAL, OTHER), (SPECIAL, SPECIAL)] for name in _COMPARED},
    **{f"aten.{name}.Scalar": [(SPECIAL, 0.3), (SPECIAL, 1)] for name in _COMPARED},
    **{f"aten.{name}.default": [(SPECIAL, OTHER)] for name in _PAIRS},
    "aten.clamp.default": [(SPECIAL, -1.0, 2.0), (SPECIAL, None, 2), (SPECIAL, 0)],
    "aten.clamp_min.default": [(SPECIAL, 0.5)],
    "aten.clamp_max.default": [(SPECIAL, 0.5)],
    "aten.threshold_backward.default": [(OTHER, SPECIAL, 0)],
    "aten.tanh_backward.default": [(OTHER, SPECIAL)],
    "aten.sigmoid_backward.default": [(OTHER, SPECIAL)],
    "aten.pow.Tensor_Scalar": [(SPECIAL, e) for e in (2, 3, 0.5, -0.5, -1, -2, 1.7, 0)],
    "aten.pow.Tensor_Tensor": [(np.abs(SPECIAL), OTHER)],
    "aten.pow.Scalar": [(2.0, SPECIAL)],
    "aten.where.self": [(FLAGS, SPECIAL, OTHER)],
    **{f"aten.bitwise_{name}.Tensor": [(FLAGS, OTHER > 1)] for name in ("and", "or", "xor")},
    "aten.rsub.Tensor": [(SPECIAL, OTHER)],
    "aten.bitwise_not.default": [(FLAGS,)],
    "aten.addcmul.default": [(SPECIAL, OTHER, OTHER)],
    "aten.addcdiv.default": [(SPECIAL, OTHER, OTHER)],
    "aten.where.Scalar": [(FLAGS, 1.5, 2.0)],
    "aten.where.ScalarOther": [(FLAGS, SPECIAL, 2.0)],
    "aten.where.ScalarSelf": [(FLAGS, 2.0, SPECIAL)],
    "aten.masked_fill.Scalar": [(SPECIAL, FLAGS, -7.0)],
    "aten.masked_fill.Tensor": [(SPECIAL, FLAGS, np.float32(-7.0))],
    "aten._to_copy.default": [],
    "prims.convert_element_type.default": [],
}  # the casts have tests of their own


def test_every_instruction_has_a_sample():
    assert set(SAMPLES) == set(ENGINES)


def torch_of(a: object) -> object:
    """An array as ATen's tensor; anything else as it is."""
    if not isinstance(a, np.ndarray | np.generic):
        return a
    a = np.asarray(a)
    return torch.from_numpy(a.astype(np.float32)).bfloat16() if a.dtype == BF16 else torch.from_numpy(a.copy())


Call = tuple[str, tuple[object, ...], dict[str, object]]
"""ATen's op, its positional arguments with arrays for tensors, and its keyword arguments."""


def against_aten(calls: list[Call], **tolerance: float) -> None:
    """Run calls of one size as one elementwise group, so that XLA compiles once; compare each with ATen."""
    arrays: dict[str, np.ndarray] = {}
    ops: list[Op] = []
    expected: dict[str, torch.Tensor] = {}
    for n, (kind, arguments, keywords) in enumerate(calls):
        arrays |= {
            f"x{n}_{i}": np.asarray(a) for i, a in enumerate(arguments) if isinstance(a, np.ndarray | np.generic)
        }
        operands = tuple(Value(f"x{n}_{i}") if f"x{n}_{i}" in arrays else a for i, a in enumerate(arguments))
        namespace, name, overload = kind.split(".")
        aten = getattr(getattr(getattr(torch.ops, namespace), name), overload)
        expected[f"r{n}"] = aten(*map(torch_of, arguments), **keywords)
        attrs = {k: dtypes.from_torch(v) if isinstance(v, torch.dtype) else v for k, v in keywords.items()}
        ops.append(Op(f"r{n}", kind, operands, dtypes.type_of(expected[f"r{n}"]), tuple(sorted(attrs.items()))))  # type: ignore[arg-type]
    inputs = tuple(Input(n, TensorType(a.shape, dtypes.from_numpy(a.dtype))) for n, a in arrays.items())
    size = expected["r0"].numel()
    program = Program(Graph("calls", inputs, tuple(ops), tuple(expected))).with_plan(
        groups=(Group("g0", GroupKind.ELEMENTWISE, tuple(expected)),),
        tiles={"g0": Tile(1, min(5, size), 0, (1, size, 0), 1, 0, 0)},
    )
    found = evaluated(program, arrays)
    wrong = []
    for (kind, arguments, keywords), (name, wanted) in zip(calls, expected.items(), strict=True):
        result = found[name]
        assert dtypes.from_numpy(result.dtype) is dtypes.from_torch(wanted.dtype), kind
        numbers = wanted.double().numpy() if wanted.dtype.is_floating_point else wanted.numpy()
        if not np.allclose(result.astype(numbers.dtype), numbers, equal_nan=True, **tolerance):
            wrong.append(f"{kind} {arguments} {keywords}: {result} is not {numbers}")
    assert wrong == []


@pytest.mark.parametrize(
    ("dtype", "relative", "absolute"), [(np.float32, 1e-5, 5e-7), (BF16, 2**-7, 1e-30), (np.float64, 1e-13, 1e-15)]
)
def test_every_instruction_is_atens(dtype: type, relative: float, absolute: float):
    def typed(a: object) -> object:
        return a.astype(dtype) if isinstance(a, np.ndarray | np.generic) and a.dtype == np.float32 else a

    calls: list[Call] = [
        (kind, tuple(map(typed, arguments)), {}) for kind, samples in SAMPLES.items() for arguments in samples
    ]
    calls.append(("aten.gelu.default", (typed(OTHER),), {"approximate": "tanh"}))
    calls.append(("aten.gelu_backward.default", (typed(OTHER), typed(OTHER)), {"approximate": "tanh"}))
    calls.append(("aten.add.Tensor", (typed(OTHER), typed(SPECIAL)), {"alpha": 0.1}))
    calls.append(("aten.addcdiv.default", (typed(SPECIAL), typed(SPECIAL), typed(OTHER)), {"value": -2}))
    against_aten(calls, rtol=relative, atol=absolute)


def test_integers_and_mixed_types():
    calls: list[Call] = [
        ("aten.add.Tensor", (np.array([2**62, -5]), 2**61), {"alpha": 3}),
        ("aten.mul.Tensor", (np.array([2**31 + 1, 3], np.int64), np.array([5, 7], np.int32)), {}),
        ("aten.div.Tensor", (np.array([7, -7]), np.array([2, 3])), {}),
        ("aten.sub.Tensor", (np.array([7, 250], np.uint8), np.array([9, 1], np.uint8)), {}),
        ("aten.pow.Tensor_Scalar", (np.array([7, -3]), 3), {}),
        ("aten.lt.Tensor", (np.array([2**53 + 1, 0]), np.array([2**53, 1])), {}),
        ("aten.gt.Scalar", (np.array([1, 2]), 1.5), {}),
        ("aten.eq.Tensor", (np.array([1, 0], np.int32), np.array([True, True])), {}),
        ("aten.mul.Tensor", (np.array([True, False]), np.array([1.5, 2.5], np.float32)), {}),
        ("aten.add.Tensor", (np.array([True, False]), np.array([True, True])), {}),
        ("aten.exp.default", (np.array([1, 2]),), {}),
        ("aten.bitwise_xor.Tensor", (np.array([12, -1], np.int32), np.array([10, 5], np.int64)), {}),
        ("aten.bitwise_not.default", (np.array([12, -1]),), {}),
        ("aten.neg.default", (np.array([-(2**63), 4]),), {}),
        # Compared in bfloat16, which rounds 0.3 to 0.30078125; a 0-dim tensor does not widen one with dimensions.
        ("aten.lt.Scalar", (np.array([0.30078125, 0.29], BF16), 0.3), {}),
        ("aten.lt.Tensor", (np.array([0.30078125, 0.29], BF16), np.float32(0.3)), {}),
    ]
    against_aten(calls, rtol=1e-6, atol=0)


TYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool)


@pytest.mark.parametrize("source", [SPECIAL[:10], np.array([300, -7, 0, 2**40]), FLAGS], ids=["f32", "i64", "bool"])
def test_casts_are_atens(source: np.ndarray):
    against_aten([("aten._to_copy.default", (source,), {"dtype": to}) for to in TYPES], rtol=0, atol=0)


@pytest.mark.parametrize(("dtype", "lowest"), [(DType.I32, -(2**31)), (DType.I64, -(2**63)), (DType.U8, 0)])
def test_floats_that_no_integer_holds(dtype: DType, lowest: int):
    odd = np.array([np.nan, np.inf, -np.inf, 1e30], np.float32)
    body = f"%a = aten._to_copy.default(%x, dtype={dtype.value}) : {dtype.value}[4]\nreturn %a"
    found = run(body, f"  group g0 elementwise (%a)\n{tile(2, 2, 0, (2, 2, 0))}", x=odd)
    np.testing.assert_array_equal(found, np.full(4, lowest))


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
    ],
)
def test_why_a_group_is_not_run_tile_by_tile(line: str, kind: str, with_tile: bool, reason: str):
    cut = tile(4, 8, 0, (4, 8, 0)) if with_tile else ""
    program = text.parse(
        f"graph test(%x: f32[4,8], %c: c64[4,8], %i: i64[4]) target=trn2 {{\n%a = {line}\nreturn %a\n}}\n"
        f"plan {{\n  group g0 {kind} (%a)\n{cut}\n}}"
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


# Arithmetic


def test_compute_and_accumulation_types():
    assert numerics.compute_type(DType.BF16) is DType.F32
    assert numerics.accumulation_type(DType.F16) is DType.F32
    assert [numerics.compute_type(d) for d in (DType.F64, DType.I64, DType.BOOL)] == [DType.F64, DType.I64, DType.BOOL]


def test_rounding_is_to_nearest_even():
    # Halfway between two neighbours of bfloat16 at 1: 1 + 1/128 apart.
    halves = np.array([1 + 1 / 256, 1 + 3 / 256, 1 + 1 / 256 + 2**-20], np.float32)
    rounded = numerics.round_to(halves, DType.BF16).astype(np.float32)
    np.testing.assert_array_equal(rounded, np.array([1, 1 + 4 / 256, 1 + 2 / 256], np.float32))


@pytest.mark.parametrize("a", sorted(DType, key=lambda d: d.value), ids=lambda d: d.value)
def test_promotion_is_pytorchs(a: DType):
    wide_unsigned = (DType.U16, DType.U32, DType.U64)
    for b in DType:
        if any(d.value.startswith("f8") or d.is_complex or d in wide_unsigned for d in (a, b)):
            continue
        wanted = torch.promote_types(dtypes.to_torch(a), dtypes.to_torch(b))
        assert numerics.promoted(a, b) is dtypes.from_torch(wanted), (a, b)
