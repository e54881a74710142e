"""Numbers below the smallest normal one are numbers, in arguments, constants and results."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from agreement import Programs, assert_agree, compiled

DTYPES = [torch.float32, torch.bfloat16, torch.float64]


def numbers(dtype: torch.dtype) -> torch.Tensor:
    info = torch.finfo(dtype)
    least = info.smallest_normal * info.eps
    x = torch.tensor([0.5, -0.5, 0.25, 1.0, -1.0, 1.5, 0.0, -0.0], dtype=torch.float64) * info.smallest_normal
    return torch.cat([x, torch.tensor([least, -least, 3 * least], dtype=torch.float64)]).to(dtype)


ARITHMETIC: Programs = {
    "add": lambda x: x + x,
    "subtract": lambda x: x - x.flip(0),
    "multiply": lambda x: x * 0.5,
    "multiply up": lambda x: x * 2.0**60,
    "divide": lambda x: x / 4,
    "negate": lambda x: -x,
    "abs": lambda x: x.abs(),
    "reciprocal": lambda x: (x * 2.0**60).reciprocal(),
    "sign": lambda x: x.sign(),
    "relu": lambda x: x.relu(),
    "clamp": lambda x: x.clamp(min=0),
    "maximum": lambda x: torch.maximum(x, x.flip(0)),
    "copysign": lambda x: torch.copysign(x, -x),
    "round": lambda x: x.ceil(),
    "result of normal numbers": lambda x: torch.full_like(x, torch.finfo(x.dtype).smallest_normal) * 0.25,
    "cumulative": lambda x: x.cumsum(0),
    "power": lambda x: x**1,
}

DECISIONS: Programs = {
    "equal to zero": lambda x: x == 0,
    "above zero": lambda x: x > 0,
    "order": lambda x: x < x.flip(0),
    "truth": lambda x: x.bool(),
    "where": lambda x: torch.where(x != 0, 1, 2),
    "not": lambda x: x.logical_not(),
    "any": lambda x: x.any(),
    "count": lambda x: x.count_nonzero(),
    "largest": lambda x: (x.max(0), x.argmin()),
    "sort": lambda x: x.sort(stable=True),
    "search": lambda x: torch.searchsorted(x.sort().values, x),
    "sign bit": lambda x: x.signbit(),
    "finite": lambda x: x.isfinite(),
    "to float32": lambda x: x.float(),
    "to float64": lambda x: x.double(),
    "to int": lambda x: x.int(),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_arithmetic_keeps_them(dtype: torch.dtype) -> None:
    assert_agree(ARITHMETIC, numbers(dtype))
    assert (compiled(lambda x: x + x)(numbers(dtype))[:6] != 0).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_roots(dtype: torch.dtype) -> None:
    """To the last bit but one: in double, that of eager's depends on the processor."""
    x = numbers(dtype).abs()
    found = compiled(lambda x: x.sqrt())(x)
    torch.testing.assert_close(found, x.sqrt(), rtol=torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_they_are_not_zero_where_something_is_decided(dtype: torch.dtype) -> None:
    assert_agree(DECISIONS, numbers(dtype))


def test_constants_of_a_program() -> None:
    small, other = torch.tensor([1e-40, 3e-42]), torch.tensor(1e-30)
    programs: Programs = {
        "captured": lambda x: x + small,
        "converted": lambda x: x.double() + small.double(),
        "computed of constants": lambda x: x + small * 2,
        "computed of normal ones": lambda x: x + other * 1e-10,
        "a number": lambda x: x + 1e-40,
        "compared": lambda x: x.bool() | (small > 0),
    }
    assert_agree(programs, torch.zeros(2))


def test_exponentials_and_logarithms() -> None:
    x = torch.tensor([-88.0, -95.5, -103.0, -104.5, -200.0, -float("inf"), -80.0, 3.0])
    found = compiled(lambda x: (x.exp(), (x * 1.4).exp2(), (x.double() * 7.2).exp()))(x)
    for got, want in zip(found, (x.exp(), (x * 1.4).exp2(), (x.double() * 7.2).exp()), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=3e-45)
        assert ((got == 0) == (want == 0)).all()
    y = numbers(torch.float32)
    found = compiled(lambda y: (y.log(), y.log2(), y.log10(), y.rsqrt(), torch.xlogy(1.0, y)))(y)
    for got, want in zip(found, (y.log(), y.log2(), y.log10(), y.rsqrt(), torch.xlogy(1.0, y)), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=0, equal_nan=True)


def test_sums_and_products_of_matrices() -> None:
    x = torch.full((64, 64), 1e-41)
    ones = torch.ones(64, 64)
    total, product, mean = compiled(lambda x, y: (x.sum(), x @ y, x.mean(0)))(x, ones)
    torch.testing.assert_close(total, x.sum(), rtol=1e-4, atol=0)
    torch.testing.assert_close(product, x @ ones, rtol=1e-4, atol=0)
    torch.testing.assert_close(mean, x.mean(0), rtol=1e-4, atol=0)


def test_on_every_thread_of_a_wide_program() -> None:
    # Many independent parts, which XLA spreads over its threads in an order of its own.
    parts = [torch.full((64, 64), 1e-40) for _ in range(24)]

    def program(parts: list[torch.Tensor]) -> list[torch.Tensor]:
        return [(x + x).flip(0).cumsum(0).amin() for x in parts] + [(x.sum(0) * 0.5).amin() for x in parts]

    function = compiled(program)
    want = torch.stack(program(parts))
    for _ in range(20):
        torch.testing.assert_close(torch.stack(function(parts)), want, rtol=1e-4, atol=0)


def test_the_callers_own_setting_is_as_before() -> None:
    x = torch.full((5,), 1e-30)
    function = compiled(lambda a: a * 1e-10)
    assert torch.equal(function(x), x * 1e-10)
    if torch.set_flush_denormal(True):
        try:
            assert (x * 1e-10).eq(0).all()
            function(x)
            assert (x * 1e-10).eq(0).all(), "still off"
        finally:
            torch.set_flush_denormal(False)
    assert (x * 1e-10).gt(0).all(), "still on"


WITHOUT = """
import logging, torch
x = torch.full((5,), 1e-30)
product = torch.compile(lambda a: a * 1e-10, backend="neuron")
assert product(x).eq(0).all()
assert (x * 1e-10).gt(0).all()
assert torch.equal(torch.compile(lambda a: a.flip(0), backend="neuron")(x * 1e-10), x * 1e-10)
"""


def test_without_a_compiler_they_count_as_zero_and_a_warning_says_so(tmp_path: object) -> None:
    environment = os.environ | {
        "CXX": "no-such-compiler",
        "NEURON_COMPILER_CACHE": str(tmp_path),
        "NEURON_COMPILER_DEVICE": "0",
    }
    done = subprocess.run([sys.executable, "-c", WITHOUT], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("take subnormal numbers for zero") == 1
    assert "no-such-compiler" in done.stderr
