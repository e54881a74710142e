"""Every instruction of the engines against ATen, and the arithmetic they share."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tile_by_tile import BF16, evaluated, run, tile

from neuron_compiler import dtypes
from neuron_compiler.ir.graph import DType, Graph, Input, Op, TensorType, Value
from neuron_compiler.ir.plan import Group, GroupKind, Program, Tile
from neuron_compiler.trainium import numerics
from neuron_compiler.trainium.execute.engines import ENGINES

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


IN_DOUBLE = frozenset({"aten.gelu.default"})
"""Kinds that ATen computes well in double only: its float32 kernel for AVX-512 gives NaN for infinity."""


def answer(kind: str, arguments: tuple[object, ...], keywords: dict[str, object]) -> torch.Tensor:
    """What ATen gives, or gives in double and rounded."""
    namespace, name, overload = kind.split(".")
    aten = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    given = [torch_of(a) for a in arguments]
    found: torch.Tensor = aten(*given, **keywords)
    if kind not in IN_DOUBLE:
        return found
    doubles = [a.double() if isinstance(a, torch.Tensor) else a for a in given]
    return aten(*doubles, **keywords).to(found.dtype)


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
        expected[f"r{n}"] = answer(kind, arguments, keywords)
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


def test_compute_and_accumulation_types():
    assert numerics.compute_type(DType.BF16) is DType.F32
    assert numerics.accumulation_type(DType.F16) is DType.F32
    assert [numerics.compute_type(d) for d in (DType.F64, DType.I64, DType.BOOL)] == [DType.F64, DType.I64, DType.BOOL]


def test_rounding_is_to_nearest_even():
    # Halfway between two neighbours of bfloat16 at 1: 1 + 1/128 apart.
    halves = np.array([1 + 1 / 256, 1 + 3 / 256, 1 + 1 / 256 + 2**-20], np.float32)
    rounded = numerics.round_to(halves, DType.BF16).astype(np.float32)
    np.testing.assert_array_equal(rounded, np.array([1, 1 + 4 / 256, 1 + 2 / 256], np.float32))


@pytest.mark.parametrize("a", sorted(dtypes.TORCH.values(), key=lambda d: d.value), ids=lambda d: d.value)
def test_promotion_is_pytorchs(a: DType):
    wide_unsigned = (DType.U16, DType.U32, DType.U64)
    for b in dtypes.TORCH.values():
        if any(d.value.startswith("f8") or d.is_complex or d in wide_unsigned for d in (a, b)):
            continue
        wanted = torch.promote_types(dtypes.to_torch(a), dtypes.to_torch(b))
        assert numerics.promoted(a, b) is dtypes.from_torch(wanted), (a, b)
