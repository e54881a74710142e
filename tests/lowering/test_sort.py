"""Sorting, ranks and searches against ATen: stability, NaN, ties, unsorted sequences."""

from __future__ import annotations

import pytest
import torch
from against_aten import lower
from many_calls import Batch

from neuron_compiler import interop

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


FEW_VALUES = torch.randint(0, 9, (4, 3000), generator=torch.Generator().manual_seed(1))
"""Every algorithm that ATen chooses by size leaves equal elements in an order of its own."""
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8]


def few_values(dtype: torch.dtype, size: int) -> torch.Tensor:
    """[4, size], with NaN and zeros of both signs where the type has them."""
    x = FEW_VALUES[:, :size].to(dtype)
    if dtype.is_floating_point:
        x[1, 3], x[2, 2], x[2, 4] = NAN, -0.0, NAN
    return x


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool])
def test_equal_elements_are_sorted_as_by_eager(dtype: torch.dtype) -> None:
    with Batch() as check:
        for size in (16, 17, 300, 3000):
            x = few_values(dtype, size)
            for descending in (False, True):
                check(aten.sort.default, x, 1, descending)
                check(aten.sort.stable, x, stable=False, dim=1, descending=descending)
            check(aten.sort.default, x.t(), 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_of_equal_elements_topk_and_kthvalue_take_eager_s(dtype: torch.dtype) -> None:
    with Batch() as check:
        for size in (5, 17, 300, 3000):
            x = few_values(dtype, size)
            for k in sorted({1, size // 100, size // 3, size - 1, size} - {0}):
                for largest in (True, False):
                    check(aten.topk.default, x, k, 1, largest)
                check(aten.topk.default, x, k, 1, True, False)
                check(aten.kthvalue.default, x, k, 1)
            check(aten.topk.default, x, 0, 1)
            check(aten.mode.default, x)


def test_long_rows_of_integers_are_sorted_as_by_eager() -> None:
    with Batch() as check:
        x = torch.arange(2 * 32768).remainder(1009)
        check(aten.sort.default, x)
        check(aten.sort.default, x, 0, True)
        check(aten.sort.default, x[:32767])
        check(aten.sort.default, x.float())
        check(aten.sort.default, x.view(2, -1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_the_host_s_library_equal_elements_keep_their_order(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(interop, "orders_as_pytorch", lambda call: False)
    x = few_values(dtype, 300)
    for descending in (False, True):
        positions = lower(aten.sort.default, x, 1, descending)[1]
        assert torch.equal(positions, x.sort(stable=True, descending=descending).indices)
        assert torch.equal(lower(aten.topk.default, x, 40, 1, descending)[1], positions[:, :40])
    assert torch.equal(lower(aten.kthvalue.default, x, 7, 1)[1], x.sort(stable=True).indices[:, 6])
    without_nan = x[:1]
    assert lower(aten.mode.default, without_nan)[0].tolist() == without_nan.mode().values.tolist()


def test_without_it_topk_orders_minus_infinity_zeros_and_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interop, "orders_as_pytorch", lambda call: False)
    x = torch.tensor([NAN, -INF, -0.0, 0.0, -NAN, INF, -1e-42, 1e-42])
    _, largest = lower(aten.topk.default, x, 8)
    assert largest.tolist() == [0, 4, 5, 7, 2, 3, 6, 1]
    _, smallest = lower(aten.topk.default, x, 8, 0, False)
    assert smallest.tolist() == [1, 6, 2, 3, 7, 5, 0, 4]


@pytest.mark.parametrize("largest", [False, True])
def test_topk_orders_subnormals_infinities_and_nan(largest: bool) -> None:
    with Batch() as check:
        x = torch.tensor([NAN, -INF, -0.0, 0.0, -NAN, INF, -1e-42, 1e-42])
        for k in (1, 5, 8):
            check(aten.topk.default, x, k, 0, largest)
            check(aten.topk.default, torch.tensor(ROWS), k, 1, largest)


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
