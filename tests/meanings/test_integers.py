"""Integers: signs of quotients and rests, division by zero, wrap-around, shifts, and all 64 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from agreement import assert_agree, compiled

SIGNED = [torch.int8, torch.int16, torch.int32, torch.int64]
ALL = [torch.uint8, *SIGNED]


def pairs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    a = torch.tensor([7, -7, 7, -7, 0, 6, -6, 1], dtype=torch.int64)
    b = torch.tensor([2, 2, -2, -2, 3, 3, 3, -1], dtype=torch.int64)
    return (a.to(dtype), b.to(dtype)) if dtype.is_signed else (a.abs().to(dtype), b.abs().to(dtype))


@pytest.mark.parametrize("dtype", [*ALL, torch.float32, torch.float64], ids=str)
def test_signs_of_quotients_and_rests(dtype: torch.dtype) -> None:
    programs = {
        "//": lambda a, b: a // b,
        "%": lambda a, b: a % b,
        "fmod": lambda a, b: torch.fmod(a, b),
        "floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
        "trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
        "/": lambda a, b: a / b,
        "number //": lambda a, b: 7 // b,
        "number %": lambda a, b: 7 % b,
        "// number": lambda a, b: a // 3,
        "% number": lambda a, b: a % 3,
    }
    if dtype.is_signed:
        programs |= {"// negative": lambda a, b: a // -2, "% negative": lambda a, b: a % -3}
    assert_agree(programs, *pairs(dtype))


def test_of_minus_seven_and_two() -> None:
    found = compiled(lambda a: (a // 2, a % 2, torch.fmod(a, 2), torch.div(a, 2, rounding_mode="trunc")))(
        torch.tensor([-7])
    )
    assert [x.item() for x in found] == [-4, 1, -1, -3]


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: a // b,
        lambda a, b: a % b,
        lambda a, b: torch.fmod(a, b),
        lambda a, b: torch.div(a, b, rounding_mode="trunc"),
        lambda a, b: a // 0,
        lambda a, b: 5 % b,
    ],
    ids=["//", "%", "fmod", "trunc", "number", "of a number"],
)
def test_division_by_zero_raises(function: Callable[..., Any]) -> None:
    a, b = torch.tensor([4, 5]), torch.tensor([2, 0])
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        function(a, b)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        compiled(function)(a, b)


def test_division_of_floats_by_zero_does_not() -> None:
    assert_agree(
        {"/": lambda a: a / 0, "//": lambda a: a // 0, "%": lambda a: a % 0, "int": lambda a: a.long() / 0},
        torch.tensor([1.0, -1.0, 0.0]),
    )


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_wrap_around(dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    programs = {
        "add": lambda x: x + x,
        "add number": lambda x: x + 1,
        "subtract": lambda x: x - 1,
        "multiply": lambda x: x * 3,
        "square": lambda x: x * x,
        "power": lambda x: x**3,
        "negate": lambda x: -x,
        "abs": lambda x: x.abs(),
        "cumulative": lambda x: x.cumsum(0, dtype=x.dtype),
        "sum": lambda x: x.sum(dtype=x.dtype),
        "product": lambda x: x.prod(dtype=x.dtype),
    }
    assert_agree(programs, torch.tensor([info.max, info.min, info.max // 2, 1], dtype=dtype))


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_shifts(dtype: torch.dtype) -> None:
    bits = torch.iinfo(dtype).bits
    x = torch.tensor([1, 3, 127, 100], dtype=dtype)
    x = torch.cat([x, -x]) if dtype.is_signed else x
    programs = {f"<< {n}": (lambda x, n=n: x << n) for n in (0, 1, bits - 1, bits, bits + 5)}
    programs |= {f">> {n}": (lambda x, n=n: x >> n) for n in (0, 1, bits - 1, bits, bits + 5)}
    programs |= {"by a tensor": lambda x: (x << (x & 3), x >> (x & 3), torch.bitwise_left_shift(x, 2))}
    assert_agree(programs, x)


def test_bits() -> None:
    programs = {
        "and": lambda a, b: a & b,
        "or": lambda a, b: a | b,
        "xor": lambda a, b: a ^ b,
        "not": lambda a, b: ~a,
        "gcd": lambda a, b: torch.gcd(a, b),
        "lcm": lambda a, b: torch.lcm(a, b),
        "of bools": lambda a, b: ((a > 0) & (b > 0), ~(a > 0), (a > 0) ^ (b > 0)),
    }
    for dtype in ALL:
        assert_agree(programs, *pairs(dtype))


def test_beyond_32_bits() -> None:
    x = torch.tensor([2**31, 2**40 + 1, -(2**50) - 3, 2**62, 2**63 - 1, -(2**63)])
    programs = {
        "add": lambda x: x + 1,
        "multiply": lambda x: x * 5,
        "floor": lambda x: x // 1000003,
        "rest": lambda x: x % 1000003,
        "sum": lambda x: x.sum(),
        "max": lambda x: x.max(0),
        "sort": lambda x: x.sort(),
        "compare": lambda x: (x > 2**40, x == 2**40 + 1),
        "to int32": lambda x: x.int(),
        "to float": lambda x: (x.float(), x.double()),
        "range": lambda x: torch.arange(2**33, 2**33 + 4),
        "full": lambda x: torch.full((2,), 2**40),
        "index": lambda x: torch.arange(10)[(x % 7).abs()],
        "cumulative": lambda x: x.cumsum(0),
        "where": lambda x: torch.where(x > 0, x, -(2**35)),
        "clamp": lambda x: x.clamp(-(2**35), 2**35),
        "bits": lambda x: x & (2**40 - 1),
    }
    assert_agree(programs, x)
    assert compiled(lambda x: x + 1)(x)[1].item() == 2**40 + 2


def test_negative_powers_leave_only_one_and_minus_one() -> None:
    a, b = torch.tensor([1, -1, -1, 2, 3]), torch.tensor([-2, -3, -2, -1, -4])
    assert compiled(lambda a, b: a**b)(a, b).tolist() == [1, -1, 1, 0, 0]
    with pytest.raises(RuntimeError, match="negative integer powers"):
        compiled(lambda a: a**-1)(a)
