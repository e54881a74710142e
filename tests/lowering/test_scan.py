"""Cumulative ops against ATen: accumulation type, ties, NaN, every axis."""

from __future__ import annotations

import pytest
import torch
from against_aten import lower
from many_calls import Batch

aten = torch.ops.aten
INF, NAN = float("inf"), float("nan")


def test_float32_accumulates_in_double_as_aten_does_bit_for_bit() -> None:
    x = torch.randn(3, 2000, generator=torch.Generator().manual_seed(0)) * 1000
    assert torch.equal(lower(aten.cumsum.default, x, 1), x.cumsum(1))
    assert torch.equal(lower(aten.cumsum.default, x.t(), 0), x.t().cumsum(0))
    near = 1 + x[:, :200] * 1e-6
    assert torch.equal(lower(aten.cumprod.default, near, 1), near.cumprod(1))


def test_sums_of_exponentials_accumulate_in_double_too() -> None:
    x = torch.rand(3, 500, generator=torch.Generator().manual_seed(0)) * 4 + 1e4
    assert torch.equal(lower(aten.logcumsumexp.default, x, 1), x.logcumsumexp(1))


def test_bfloat16_accumulates_in_float32() -> None:
    x = torch.ones(600, dtype=torch.bfloat16)
    assert torch.equal(lower(aten.cumsum.default, x, 0), x.cumsum(0))
    assert lower(aten.cumsum.default, x, 0)[-1].item() == 600


def test_integers_promote_and_wrap() -> None:
    with Batch() as check:
        check(aten.cumsum.default, torch.full((5,), 100, dtype=torch.int8), 0)
        check(aten.cumsum.default, torch.tensor([True, True, False]), 0)
        check(aten.cumprod.default, torch.full((70,), 2), 0)
        check(aten.cumsum.default, torch.tensor([1.5, 2.5]), 0, dtype=torch.int32)


@pytest.mark.parametrize("overload", [aten.cummax.default, aten.cummin.default])
def test_a_later_equal_element_and_every_nan_replace(overload: object) -> None:
    with Batch() as check:
        x = torch.tensor([[1.0, 3.0, 3.0, 2.0, NAN, 9.0, NAN], [-INF, -INF, INF, INF, 0.0, 1.0, INF]])
        check(overload, x, 1)
        check(overload, x, 0)
        check(overload, torch.tensor([[True, False], [True, True]]), 0)
        check(overload, torch.tensor(2.0), 0)
        check(overload, torch.zeros(2, 0), 1)


def test_logcumsumexp_of_infinities() -> None:
    with Batch() as check:
        rows = [[-INF, -INF, 1.0, INF], [1.0, -INF, 2.0, NAN], [500.0, 500.0, -500.0, INF], [INF, INF, 1.0, -INF]]
        check(aten.logcumsumexp.default, torch.tensor(rows), 1)
        check(aten.logcumsumexp.default, torch.tensor(rows), -2)


def test_logcumsumexp_of_complex_infinities_and_nan() -> None:
    inf, nan = float("inf"), float("nan")
    values = [complex(-inf, 1), complex(1, 2), complex(-300, 1), complex(300, 1), complex(inf, 0.5), complex(inf, 2)]
    with Batch() as check:
        for row in (values, values[::-1], [*values[:2], complex(nan, 1), *values[2:]], [complex(1, inf), 2]):
            check(aten.logcumsumexp.default, torch.tensor(row, dtype=torch.complex64), 0)
