"""Element types inside rules: conversions bit for bit as ATen's, promotion as PyTorch's, order of operations kept."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import op_check
import pytest
import torch

from neuron_compiler import dtypes
from neuron_compiler.ir.graph import DType, TensorType
from neuron_compiler.lowering import emit, numeric

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
FP8 = op_check.FP8
INTEGERS = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
)


@pytest.fixture(autouse=True)
def scope() -> Iterator[None]:
    with emit.tracing_scope():
        yield


def run(function: Callable[..., Any], *tensors: torch.Tensor) -> torch.Tensor:
    """The jitted function of the tensors, as a tensor."""
    return op_check.to_tensor(jax.jit(function)(*map(op_check.to_array, tensors)))


def bits(x: torch.Tensor) -> list[Any]:
    """The elements so that equal means the same bits, any NaN being equal to any other."""
    if x.dtype in FP8:
        x = x.to(torch.float32)
    if not x.is_floating_point():
        return x.tolist()
    return ["nan" if v != v else v.hex() for v in x.double().tolist()]


VALUES = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 130.7, -129.2, 255.9, 300.0, -300.0, 448.0, 464.0, 480.0, 1e-3, 3e-3]
WIDE = [*VALUES, 7e4, -7e4, 65504.0, 65519.9, 65520.0, 1e30, -1e30, float("inf"), -float("inf"), float("nan")]
# What lies outside of int32 reaches the unsigned types differently in ATen's vector code and in its scalar code.
LARGE = [3e9, -3e9, 5e9, 1e19, -1e19]


@pytest.mark.parametrize("target", [*FLOATS, *FP8, *INTEGERS], ids=str)
@pytest.mark.parametrize("source", FLOATS, ids=str)
def test_floats_are_converted_as_aten_does(source: torch.dtype, target: torch.dtype) -> None:
    values = VALUES if target in (torch.uint16, torch.uint32, torch.uint64) else WIDE
    if target in (torch.bool, torch.int32, torch.int64, *FLOATS):
        values = values + LARGE
    x = torch.tensor(values, dtype=torch.float64).to(source)
    got = run(lambda a: numeric.cast(a, dtypes.from_torch(target)), x)
    assert got.dtype == target
    assert bits(got) == bits(x.to(target))


@pytest.mark.parametrize("target", FP8, ids=str)
def test_every_half_precision_number_becomes_the_same_fp8(target: torch.dtype) -> None:
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)
    got = run(lambda a: numeric.cast(a, dtypes.from_torch(target)), x)
    assert bits(got) == bits(x.to(target))


@pytest.mark.parametrize("source", FP8, ids=str)
def test_every_fp8_number_becomes_the_same_float(source: torch.dtype) -> None:
    """NaN has no one integer: ATen's own answers differ from one fp8 type to the next."""
    every = torch.arange(256).to(torch.uint8).view(source)
    for target in (torch.float32, torch.bfloat16, torch.int32):
        x = every if target.is_floating_point else every[~every.float().isnan()]
        got = run(lambda a, target=target: numeric.cast(a, dtypes.from_torch(target)), x)
        assert bits(got) == bits(x.to(target))


@pytest.mark.parametrize("target", [*FLOATS, *INTEGERS, torch.complex64], ids=str)
@pytest.mark.parametrize("source", INTEGERS, ids=str)
def test_integers_are_converted_as_aten_does(source: torch.dtype, target: torch.dtype) -> None:
    if source is torch.bool:
        x = torch.tensor([False, True])
    else:
        info = torch.iinfo(source)
        odd = (info.max // 3) | 1
        x = torch.tensor([0, 1, 7, info.min, info.max, odd, info.max - 1], dtype=source)
    got = run(lambda a: numeric.cast(a, dtypes.from_torch(target)), x)
    wanted = x.to(target)
    assert got.dtype == target
    assert (
        torch.equal(torch.view_as_real(got), torch.view_as_real(wanted))
        if got.is_complex()
        else bits(got) == bits(wanted)
    )


def test_float64_reaches_half_precision_through_float32() -> None:
    """Just above a tie of bfloat16, which float32 does not see: rounded once it would go up."""
    x = torch.tensor([1 + 2**-8 + 2**-40, 1 + 3 * 2**-8 - 2**-40], dtype=torch.float64)
    for target, name in ((torch.bfloat16, DType.BF16), (torch.float16, DType.F16)):
        assert bits(run(lambda a, name=name: numeric.cast(a, name), x)) == bits(x.to(target))


def test_complex_numbers_give_their_real_part_and_are_true_unless_zero() -> None:
    x = torch.tensor([1.5 - 2j, -3 + 0j, 0 + 1j, 0j])
    assert run(lambda a: numeric.cast(a, DType.F32), x).tolist() == [1.5, -3, 0, 0]
    assert run(lambda a: numeric.cast(a, DType.I64), x).tolist() == [1, -3, 0, 0]
    assert run(lambda a: numeric.cast(a, DType.BOOL), x).tolist() == [True, True, True, False]


@pytest.mark.parametrize(
    ("value", "dtype", "wanted"),
    [
        (300, DType.U8, 44),
        (-1, DType.U8, 255),
        (-1, DType.U64, 2**64 - 1),
        (2.9, DType.I32, 2),
        (0.1, DType.F64, 0.1),
        (0.1, DType.F32, float(np.float32(0.1))),
        (1e300, DType.F32, float("inf")),
        (0.1, DType.BF16, 0.10009765625),
        (True, DType.F32, 1.0),
        (2 + 1j, DType.C64, 2 + 1j),
        (2 + 1j, DType.F32, 2.0),
        (0.0, DType.BOOL, False),
        (float("nan"), DType.BOOL, True),
    ],
)
def test_scalars_are_converted_as_c10_does(value: Any, dtype: DType, wanted: Any) -> None:
    got = numeric.constant(value, dtype)
    assert got.shape == ()
    assert numeric.dtype_of(got) is dtype
    assert got.item() == wanted


OPERANDS: dict[str, Any] = {
    "f32[2]": torch.zeros(2),
    "bf16[2]": torch.zeros(2, dtype=torch.bfloat16),
    "f16[]": torch.zeros((), dtype=torch.float16),
    "f64[]": torch.zeros((), dtype=torch.float64),
    "i64[2]": torch.zeros(2, dtype=torch.int64),
    "u8[2]": torch.zeros(2, dtype=torch.uint8),
    "i8[]": torch.zeros((), dtype=torch.int8),
    "bool[2]": torch.zeros(2, dtype=torch.bool),
    "c64[]": torch.zeros((), dtype=torch.complex64),
    "True": True,
    "3": 3,
    "2.5": 2.5,
    "1j": 1j,
}


@pytest.mark.parametrize("default", [torch.float32, torch.float64], ids=str)
def test_result_type_is_pytorchs(default: torch.dtype) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        for a, b in itertools.product(OPERANDS.values(), repeat=2):
            if not isinstance(a, torch.Tensor) and not isinstance(b, torch.Tensor):
                continue
            if torch.result_type(a, b) is torch.complex32:
                continue  # the IR has no such type
            arrays = [jnp.asarray(op_check.to_array(x)) if isinstance(x, torch.Tensor) else x for x in (a, b)]
            assert dtypes.to_torch(numeric.result_dtype(*arrays)) == torch.result_type(a, b), (a, b)
    finally:
        torch.set_default_dtype(before)


def test_result_type_of_nothing_is_an_error() -> None:
    with pytest.raises(TypeError, match="no operand has a type"):
        numeric.result_dtype(None)


def _number(value: float) -> jax.Array:
    return numeric.constant(value, DType.F32)


CHAINS: dict[str, tuple[Callable[[Any], Any], Callable[[torch.Tensor], torch.Tensor]]] = {
    "products": (lambda x: (x * _number(1e30)) * _number(1e-30), lambda x: (x * 1e30) * 1e-30),
    "sums": (lambda x: (x + _number(1e8)) - _number(1e8), lambda x: (x + 1e8) - 1e8),
    "quotient": (lambda x: numeric.quotient(x, _number(3)), lambda x: x / 3),
    "quotients": (
        lambda x: numeric.quotient(numeric.quotient(x * _number(1e10), x * _number(1e20)), x * _number(1e20)),
        lambda x: ((x * 1e10) / (x * 1e20)) / (x * 1e20),
    ),
    "quotient by quotient": (
        lambda x: numeric.quotient(x * _number(1e20), numeric.quotient(x * _number(1e20), x * _number(1e20))),
        lambda x: (x * 1e20) / ((x * 1e20) / (x * 1e20)),
    ),
    "quotient by a row": (lambda x: numeric.quotient(x[None] + x[:, None], x), lambda x: (x[None] + x[:, None]) / x),
    "logarithm of exponential": (
        lambda x: numeric.sealed(jnp.log(numeric.sealed(jnp.exp(x * _number(10))))),
        lambda x: torch.log(torch.exp(x * 10)),
    ),
    "product of exponentials": (
        lambda x: numeric.sealed(jnp.exp(x * _number(8))) * numeric.sealed(jnp.exp(x * _number(-6))),
        lambda x: torch.exp(x * 8) * torch.exp(x * -6),
    ),
}


@pytest.mark.parametrize("name", CHAINS)
def test_chains_are_computed_in_order(name: str) -> None:
    """Each is rewritten by XLA's simplifier where nothing hinders it; infinities and lost digits then differ."""
    ours, theirs = CHAINS[name]
    x = torch.tensor([1.1, 3.3, 12.3, 1e5, float("inf")])
    torch.testing.assert_close(run(ours, x), theirs(x), rtol=5e-7, atol=0, equal_nan=True)


def test_simplifier_does_rewrite_bare_chains() -> None:
    """What the barrier is for: this fails when XLA stops doing so, and then the barrier can go."""
    x = torch.tensor([1.1])
    assert run(lambda a: (a + 1e8) - 1e8, x).item() == x.item()


def test_sealed_keeps_every_number() -> None:
    x = torch.tensor([float("inf"), -float("inf"), float("nan"), -0.0, 1.5])
    assert bits(run(numeric.sealed, x)) == bits(x)
    pairs = torch.complex(x, x.flip(0))
    got = run(numeric.sealed, pairs)
    assert bits(got.real) == bits(pairs.real)
    assert bits(got.imag) == bits(pairs.imag)


def test_numbers_and_0_dim_operands_are_rounded_to_a_narrow_result_but_not_as_factors() -> None:
    out = TensorType((1,), DType.BF16)
    x = jnp.ones((1,), jnp.bfloat16)
    third = float(np.float32(1 / 3))
    rounded = float(torch.tensor(1 / 3).bfloat16())
    for given in (1 / 3, jnp.asarray(1 / 3, jnp.float32), jnp.asarray(1 / 3, jnp.float64)):
        assert [float(a) for a in numeric.working(out, x[0], given)] == [1.0, rounded]
        assert [float(a) for a in numeric.working_with_exact_factor(out, given, given)] == [rounded, third]
    wide = TensorType((1,), DType.F32)
    assert [float(a) for a in numeric.working(wide, 1 / 3, jnp.asarray(1 / 3, jnp.float64))] == [third, third]


def test_half_precisions_are_computed_in_float32_and_rounded_once() -> None:
    x = torch.tensor([1.0, 2.0], dtype=torch.bfloat16)
    out = TensorType((2,), DType.BF16)

    def rule(a: jax.Array) -> jax.Array:
        (wide,) = numeric.working(out, a)
        return numeric.narrow(wide + numeric.scalar(2**-9, wide) + numeric.scalar(2**-9, wide), out)

    assert numeric.widened(DType.BF16) is DType.F32
    assert numeric.widened(DType.F64) is DType.F64
    assert run(rule, x).tolist() == (x.float() + 2**-8).to(torch.bfloat16).tolist()
    assert run(rule, x).tolist() == [1.0, 2.0]
    assert (x + 2**-7).tolist() == [1.0078125, 2.0]


@pytest.mark.parametrize(
    ("dim", "rank", "axes"),
    [(None, 3, (0, 1, 2)), ((), 2, (0, 1)), (-1, 3, (2,)), ((1, -3), 3, (0, 1)), (0, 0, ()), (-1, 0, ())],
)
def test_dims_count_from_either_end(dim: Any, rank: int, axes: tuple[int, ...]) -> None:
    assert numeric.dims_of(dim, rank) == axes
