"""Meanings of extremes that random samples do not reach: ties, NaN, zeros of either sign."""

from __future__ import annotations

import math

import pytest
import torch
from against_aten import lower
from many_calls import Batch

aten = torch.ops.aten
INF, NAN = float("inf"), float("nan")

ROWS = [
    [1.0, 5.0, 5.0, 2.0],
    [NAN, 7.0, NAN, 9.0],
    [3.0, NAN, INF, 1.0],
    [-INF, -INF, -INF, -INF],
    [INF, INF, 0.0, 1.0],
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("overload", [aten.max.dim, aten.min.dim, aten.argmax.default, aten.argmin.default])
def test_first_of_equals_and_first_nan(overload: object, dtype: torch.dtype) -> None:
    with Batch() as check:
        x = torch.tensor(ROWS, dtype=dtype)
        check(overload, x, 1)
        check(overload, x, 0, True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("overload", [aten.amax.default, aten.amin.default])
def test_nan_wins_over_any_dimensions(overload: object, dtype: torch.dtype) -> None:
    with Batch() as check:
        x = torch.tensor(ROWS, dtype=dtype)
        for dims in ([0], [1], [0, 1], []):
            check(overload, x, dims)
            check(overload, x, dims, True)
        check(aten.aminmax.default, x, dim=1)
        check(aten.max.default, x)
        check(aten.min.default, x[:1])


def test_value_is_the_element_at_the_position() -> None:
    values, indices = lower(aten.max.dim, torch.tensor([-0.0, 0.0]), 0)
    assert indices.item() == 0
    assert math.copysign(1.0, values.item()) == -1.0


def test_bools_and_integers_at_the_ends_of_their_range() -> None:
    with Batch() as check:
        check(aten.max.dim, torch.tensor([[False, True, True], [False, False, False]]), 1)
        check(aten.amin.default, torch.tensor([[False, True], [True, True]]), [1])
        check(aten.argmin.default, torch.tensor([2**63 - 1, -(2**63), 0]))
        check(aten.amax.default, torch.tensor([200, 100], dtype=torch.uint8))


def test_position_in_the_whole_tensor_counts_row_major() -> None:
    with Batch() as check:
        check(aten.argmax.default, torch.tensor([[1.0, 2.0], [9.0, 0.0]]))
        check(aten.argmax.default, torch.tensor([[1.0, 2.0], [9.0, 0.0]]).t(), None, True)
