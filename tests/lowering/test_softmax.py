"""Softmax and its logarithm at infinities and NaN, in half precision, along every dimension."""

from __future__ import annotations

import pytest
import torch
from many_calls import Batch

aten = torch.ops.aten
INF, NAN = float("inf"), float("nan")

ROWS = [[1.0, 2.0, 3.0], [-INF, -INF, -INF], [INF, 1.0, 2.0], [NAN, 1.0, 2.0], [-INF, 0.0, 1.0], [1e4, -1e4, 0.0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_rows_of_infinities_and_nan(dtype: torch.dtype) -> None:
    x = torch.tensor(ROWS, dtype=dtype)
    with Batch() as check:
        for overload in (aten._softmax.default, aten._log_softmax.default):
            for dim in (0, 1, -1):
                check(overload, x, dim, False)
            check(overload, torch.tensor(2.0, dtype=dtype), 0, False)
            check(overload, torch.zeros(0, 3, dtype=dtype), 1, False)
            check(overload, torch.zeros(3, 0, dtype=dtype), 1, False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    grad = torch.randn(3, 4, 5, generator=generator).to(dtype)
    x = torch.randn(3, 4, 5, generator=generator)
    with Batch() as check:
        for dim in (0, 1, 2):
            check(aten._softmax_backward_data.default, grad, x.softmax(dim).to(dtype), dim, dtype)
            check(aten._log_softmax_backward_data.default, grad, x.log_softmax(dim).to(dtype), dim, dtype)


def test_long_rows_sum_to_one() -> None:
    x = torch.randn(2, 100_000, generator=torch.Generator().manual_seed(0))
    with Batch(rtol=2e-6, atol=0) as check:
        check(aten._softmax.default, x, 1, False)
    with Batch(rtol=1e-6, atol=1e-5) as check:
        check(aten._log_softmax.default, x, 1, False)
