"""Floating-point numbers: double precision, signed zeros, NaN and infinity, order of operations, rounding points."""

from __future__ import annotations

import math

import pytest
import torch
from agreement import assert_agree, compiled

NAN, INF = math.nan, math.inf


def special(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor([1.0, NAN, -INF, INF, -0.0, 0.0, -2.5, 3.0, 0.5, -0.5, 1.5, 2.5], dtype=dtype)


def test_double_precision_is_double_precision() -> None:
    x = torch.tensor([1.0, 1 / 3, 1e300, 1e-300], dtype=torch.float64)
    programs = {
        "add": lambda x: x + 1e-12,
        "difference": lambda x: (x + 2.0**-50) - x,
        "product": lambda x: x * 1e5,
        "number": lambda x: x * 0.1,
        "root": lambda x: x.sqrt(),
        "full": lambda x: torch.full((2,), 0.1, dtype=torch.float64),
        "range": lambda x: torch.linspace(0, 1, 4, dtype=torch.float64),
        "from float32": lambda x: x.float().double(),
    }
    assert_agree(programs, x)
    torch.testing.assert_close(compiled(lambda x: x.exp())(x[:2]), x[:2].exp(), rtol=1e-15, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_the_sign_of_zero(dtype: torch.dtype) -> None:
    z = torch.tensor([0.0, -0.0], dtype=dtype).repeat(24)
    programs = {
        "negate": lambda z: -z,
        "abs": lambda z: z.abs(),
        "add": lambda z: (z + 0.0, z + z, z - z),
        "multiply": lambda z: (z * -1, z * 2, 0 * z),
        "divide": lambda z: (z / 2, z / -2, 1 / z),
        "root": lambda z: z.sqrt(),
        "round": lambda z: (z.round(), (z - 0.25).round(), (z - 0.25).trunc(), (z - 0.25).ceil(), z.floor()),
        "sign": lambda z: (z.sign(), z.signbit(), torch.copysign(torch.ones_like(z), z)),
        "relu": lambda z: torch.relu(z),
        "relu6": lambda z: torch.nn.functional.relu6(z),
        "hardtanh": lambda z: torch.nn.functional.hardtanh(z, 0.0, 1.0),
        "leaky": lambda z: torch.nn.functional.leaky_relu(z),
        "clamp": lambda z: (z.clamp(min=0), z.clamp(max=0), z.clamp(-1, 0), z.clamp(0, 1)),
        "threshold": lambda z: torch.nn.functional.threshold(z, 0.0, 0.0),
        "compare": lambda z: (z == 0, z < 0, z.bool()),
        "where": lambda z: torch.where(z == 0, z, 1.0),
        "sine": lambda z: (z.sin(), z.tan(), z.asin(), z.atan(), z.sinh(), z.tanh(), z.expm1(), z.log1p()),
        "atan2": lambda z: torch.atan2(z, torch.ones_like(z)),
        "half circle": lambda z: torch.atan2(z, z).signbit(),
        "sort": lambda z: z.sort(stable=True).values,
        "maximum of itself": lambda z: torch.maximum(z, z),
        "sum": lambda z: (z[1::2].sum(), z.sum()),
        "to int": lambda z: z.int(),
        "to double": lambda z: z.double(),
        "moved": lambda z: z.flip(0).reshape(6, 8).t().contiguous(),
        "rest": lambda z: (torch.fmod(z, 3), z % 3),
        "lerp": lambda z: torch.lerp(z, z, 0.25),
        "mean": lambda z: z[1::2].mean(),
    }
    assert_agree(programs, z)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_nan_and_infinity_where_elements_are_compared(dtype: torch.dtype) -> None:
    programs = {
        "clamp": lambda x: (x.clamp(-1, 1), x.clamp(min=0), x.clamp(max=0), x.clamp(NAN, 1), x.clamp(-INF, INF)),
        "clamp crossed": lambda x: x.clamp(2, 1),
        "maximum": lambda x: (torch.maximum(x + 1, x.flip(0)), torch.minimum(x + 1, x.flip(0))),
        "fmax": lambda x: (torch.fmax(x + 1, x.flip(0)), torch.fmin(x + 1, x.flip(0))),
        "max": lambda x: (x.max(0), x.min(0), x.amax(), x.amin(), x.argmax(), x.argmin()),
        "max without NaN": lambda x: (x[2:].max(0), x[2:].min(0)),
        "sort": lambda x: (x.sort(stable=True), x.sort(stable=True, descending=True)),
        "topk": lambda x: (x.topk(3).values, x.topk(3, largest=False).values),
        "median": lambda x: (x.median(), x[5:].median(), x[5:].nanmedian()),
        "cumulative": lambda x: (x.cummax(0), x.cummin(0), x[2:].cummax(0)),
        "where": lambda x: torch.where(x > 0, x, -x),
        "compare": lambda x: (x == x, x != x, x < 1, x >= 1, x == INF),
        "tests": lambda x: (x.isnan(), x.isinf(), x.isfinite(), x.isposinf(), x.isneginf()),
        "replace": lambda x: (x.nan_to_num(), x.nan_to_num(7.0, 8.0, -9.0)),
        "nansum": lambda x: (x.nansum(), x.sum(), x.prod()),
        "relu": lambda x: (torch.relu(x), torch.nn.functional.relu6(x), torch.nn.functional.hardtanh(x)),
        "sign": lambda x: (x.sign(), x.sgn()),
        "any": lambda x: (x.any(), x.all(), x.bool(), x.logical_not(), x.count_nonzero()),
        "round": lambda x: (x.round(), x.floor(), x.ceil(), x.trunc(), x.frac()),
        "arithmetic": lambda x: (x - x, x * 0, x / x, x + INF, 1 / x, x // 1, x % 2, torch.fmod(x, 2)),
        "max pool": lambda x: torch.nn.functional.max_pool1d(x[None], 3),
        "close": lambda x: torch.isclose(x, x, equal_nan=True),
        "search": lambda x: torch.searchsorted(x[2:].sort().values, x),
    }
    assert_agree(programs, special(dtype))


@pytest.mark.parametrize(
    "target", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool], ids=str
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_conversion_to_integers(dtype: torch.dtype, target: torch.dtype) -> None:
    # Whole registers: at the end of a tensor eager converts one by one, and what does not fit becomes another number.
    large = [NAN, INF, -INF, 1e10, -1e10, 300.7, -300.7, 2.0**31, -(2.0**31) - 4096, 65504.0]
    values = [*large, 2.5, -2.5, 0.0, -0.0, 255.0, 256.0]
    x = torch.tensor(values, dtype=torch.float64).to(dtype).repeat(8)
    assert_agree({"to": lambda x: x.to(target)}, x)


def test_operations_with_constants_in_the_order_written() -> None:
    x = torch.tensor([1e10, 1.1, 3.3, 1e-10, 7.7e7])
    programs = {
        "overflows": lambda x: (x * 1e30) * 1e-30,
        "vanishes": lambda x: (x * 1e-30) * 1e30,
        "absorbs": lambda x: (x + 1e8) - 1e8,
        "thirds": lambda x: x / 3,
        "thirds twice": lambda x: (x / 3) / 3,
        "there and back": lambda x: (x / 3) * 3,
        "powers": lambda x: (x * 2) ** 2 / 4,
        "itself": lambda x: (x - x, x / x, (x * 1e38 * 10) - (x * 1e38 * 10)),
        "product of all": lambda x: ((x * 0 + 1e-19) * 1e20).prod(),
        "negated": lambda x: -(1 - x),
        "reciprocal of a reciprocal": lambda x: 1 / (1 / x),
    }
    assert_agree(programs, x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_half_precision_rounds_after_every_operation(dtype: torch.dtype) -> None:
    x = torch.linspace(-3, 3, 64)
    programs = {
        "explicit cast": lambda x: (x.to(dtype).float() + x).to(dtype).float(),
        "chain": lambda x: ((x.to(dtype) * 1.1 + 0.3) * 7.7 - 0.01).float(),
        "cast twice": lambda x: x.to(dtype).to(torch.float32).to(dtype).double(),
        "residual": lambda x: x - x.to(dtype).float(),
        "root": lambda x: x.to(dtype).abs().sqrt() * x.to(dtype),
        "quotient": lambda x: x.to(dtype) / (x.to(dtype) + 4),
        "overflow": lambda x: (x * 65504).to(dtype) * 2,
        "sum of casts": lambda x: (x.to(dtype) + x.flip(0).to(dtype)).float() - x,
        "to integer": lambda x: (x.to(dtype) * 100).int(),
        "in place": lambda x: x.to(dtype).mul_(1.1).add_(0.3).sub_(0.7),
    }
    assert_agree(programs, x)


def test_rounding_of_halves_is_to_even() -> None:
    x = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 3.5])
    assert compiled(lambda x: x.round())(x).tolist() == [0.0, 2.0, 2.0, -0.0, -2.0, 4.0]
    assert_agree({"decimals": lambda x: (x * 1.11).round(decimals=2), "tens": lambda x: (x * 10).round(decimals=-1)}, x)
