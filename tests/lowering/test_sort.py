"""Sorting, ranks and searches against ATen: stability, NaN, ties, unsorted sequences."""

from __future__ import annotations

import pytest
import torch
from against_aten import lower
from many_calls import Batch

aten = torch.ops.aten
INF, NAN = float("inf"), float("nan")
ROWS = [[3.0, NAN, 1.0, -0.0, 0.0, 3.0, -INF, NAN], [2.0, 2.0, INF, 2.0, -1.0, 2.0, INF, -1.0]]


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_stable_sort_with_nan_greatest(dtype: torch.dtype, descending: bool) -> None:
    with Batch() as check:
        x = torch.tensor(ROWS, dtype=dtype)
        for dim in (0, 1):
            check(aten.sort.stable, x, stable=True, dim=dim, descending=descending)


def test_long_rows_of_few_values_stay_in_order() -> None:
    with Batch() as check:
        x = torch.randint(0, 3, (4, 5000), generator=torch.Generator().manual_seed(0))
        for dtype in (torch.int64, torch.int32, torch.bool, torch.float32):
            check(aten.sort.stable, x.to(dtype), stable=True, dim=1, descending=True)


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8])
def test_topk_values_and_where_they_are(dtype: torch.dtype, largest: bool) -> None:
    x = (
        (torch.tensor(ROWS).nan_to_num(7, 99, -99) if not dtype.is_floating_point else torch.tensor(ROWS))
        .abs()
        .to(dtype)
    )
    for k in (0, 1, 5, 8):
        values, indices = lower(aten.topk.default, x, k, 1, largest)
        torch.testing.assert_close(values, torch.topk(x, k, 1, largest).values, rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(x.gather(1, indices), values, rtol=0, atol=0, equal_nan=True)
        assert all(len(set(row.tolist())) == k for row in indices)


def test_topk_orders_minus_infinity_zeros_and_nan() -> None:
    x = torch.tensor([NAN, -INF, -0.0, 0.0, -NAN, INF, -1e-42, 1e-42])
    _, largest = lower(aten.topk.default, x, 8)
    assert largest.tolist() == [0, 4, 5, 7, 2, 3, 6, 1]
    _, smallest = lower(aten.topk.default, x, 8, 0, False)
    assert smallest.tolist() == [1, 6, 2, 3, 7, 5, 0, 4]


def test_topk_along_a_leading_dimension() -> None:
    with Batch() as check:
        x = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
        check(aten.topk.default, x, 3, 0)
        check(aten.topk.default, x.double(), 3, -2, False)


def test_median_is_the_lower_one_and_nan_wins_unless_left_out() -> None:
    with Batch() as check:
        x = torch.tensor([[4.0, 1.0, 3.0, 2.0], [1.0, NAN, 0.0, NAN], [5.0, 6.0, NAN, 7.0]])
        for overload in (aten.median.dim, aten.nanmedian.dim):
            check(overload, x, 1)
            check(overload, x, 0, True)
        for overload in (aten.median.default, aten.nanmedian.default):
            check(overload, x)
            check(overload, torch.tensor([3, 1, 2, 9]))
            check(overload, torch.zeros(0))


def test_kthvalue_counts_nan_last() -> None:
    with Batch() as check:
        x = torch.tensor([[4.0, NAN, 3.0, 2.0], [1.0, 5.0, 0.0, NAN]])
        for k in (1, 3, 4):
            check(aten.kthvalue.default, x, k, 1)


def test_mode_is_the_smallest_of_the_most_frequent() -> None:
    with Batch() as check:
        check(aten.mode.default, torch.tensor([[3, 1, 3, 1, 2], [5, 4, 3, 2, 1], [7, 7, 7, 0, 0]]), 1)
        check(aten.mode.default, torch.tensor([[3.0, 1.0], [3.0, 2.0]]), 0, True)


@pytest.mark.parametrize("right", [False, True])
def test_search_is_aten_s_also_for_nan_and_unsorted_sequences(right: bool) -> None:
    with Batch() as check:
        values = torch.tensor([-INF, -1.0, 0.0, 2.0, 2.5, 9.0, INF, NAN])
        for sequence in ([0.0, 2.0, 2.0, 9.0], [5.0, 1.0, 4.0, 2.0, 3.0], [0.0, NAN, NAN], [1.0]):
            check(aten.searchsorted.Tensor, torch.tensor(sequence), values, right=right)
            check(aten.bucketize.Tensor, values, torch.tensor(sequence), right=right, out_int32=True)
        rows = torch.tensor([[0, 2, 4], [1, 1, 1]])
        check(aten.searchsorted.Tensor, rows, torch.tensor([[2, 3, 9, -5], [1, 0, 2, 1]]), right=right)
        check(aten.searchsorted.Tensor, rows, torch.tensor([[2.5], [0.5]]), right=right)


def test_search_through_a_sorter() -> None:
    with Batch() as check:
        sequence = torch.tensor([5.0, 1.0, 3.0])
        check(aten.searchsorted.Tensor, sequence, torch.tensor([2.0, 5.0]), sorter=sequence.argsort(), side="right")
