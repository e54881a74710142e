"""Writing by index tensors against ATen: order of equal indices, masks, reductions, what a bad index raises."""

from __future__ import annotations

import pytest
import torch
from against_aten import lower
from many_calls import Batch, failures

aten = torch.ops.aten
NAN = float("nan")
X = torch.arange(60.0).reshape(3, 4, 5)
ROWS, COLUMNS = torch.tensor([2, 0, -3]), torch.tensor([1, -1, 3])


@pytest.mark.parametrize("accumulate", [False, True])
def test_values_broadcast_to_the_selection(accumulate: bool) -> None:
    with Batch() as check:
        for indices, shape in (
            ([ROWS], (3, 4, 5)),
            ([ROWS], (5,)),
            ([ROWS, COLUMNS], (1, 5)),
            ([None, COLUMNS], (3, 3, 5)),
            ([None, None, COLUMNS], (4, 3)),
            ([ROWS, None, COLUMNS], (3, 4)),
            ([ROWS], ()),
        ):
            if accumulate or ROWS is not indices[0]:
                check(aten.index_put.default, X, indices, torch.full(shape, 0.5), accumulate)
        check(aten.index_put.default, X.bfloat16(), [ROWS[:2]], torch.ones(2, 4, 5).bfloat16(), accumulate)
        check(aten.index_put.default, X > 7, [ROWS[:2]], torch.ones(4, 5, dtype=torch.bool), accumulate)


def test_the_last_of_equal_indices_stays() -> None:
    index, values = torch.tensor([1, 0, 1, 1]), torch.arange(4.0)
    assert lower(aten.index_put.default, torch.zeros(2), [index], values).tolist() == [1, 3]
    assert lower(aten.index_copy.default, torch.zeros(2), 0, index, values).tolist() == [1, 3]
    assert lower(aten.scatter.src, torch.zeros(2), 0, index, values).tolist() == [1, 3]


def test_half_precision_sums_accumulate_in_float32() -> None:
    index, ones = torch.zeros(600, dtype=torch.int64), torch.ones(600, dtype=torch.bfloat16)
    zero = torch.zeros(1, dtype=torch.bfloat16)
    assert lower(aten.scatter_add.default, zero, 0, index, ones).item() == 600
    assert lower(aten.index_add.default, zero[None], 1, index, ones[None], alpha=2).item() == 1200


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_sums_are_rounded_one_by_one_where_atens_are(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(0, 2, (400,), generator=generator)
    values, rows = (torch.rand(shape, generator=generator).to(dtype) for shape in ((400,), (400, 3)))
    zero, zeros = torch.zeros(2, dtype=dtype), torch.zeros(2, 3, dtype=dtype)
    for overload, *args in (
        (aten.index_put.default, zero, [index], values, True),
        (aten.index_put.default, zeros, [index], rows, True),
        (aten._unsafe_index_put.default, zeros, [index], rows, True),
        (aten.put.default, zeros, index, values, True),
        (aten.index_add.default, zero, 0, index, values),
    ):
        assert torch.equal(lower(overload, *args), overload(*args)), overload
    scaled = aten.index_add.default(zero, 0, index, values, alpha=3)
    assert torch.equal(lower(aten.index_add.default, zero, 0, index, values, alpha=3), scaled)


@pytest.mark.parametrize("accumulate", [False, True])
def test_a_mask_writes_without_indices(accumulate: bool) -> None:
    over_rows, over_both, over_last = torch.tensor([True, False, True]), X[..., 0] % 2 == 0, X[0, 0] > 2
    with Batch() as check:
        for indices, shape in (
            ([over_rows], ()),
            ([over_rows], (4, 5)),
            ([over_rows], (1, 4, 5)),
            ([over_rows], (2, 4, 5)),
            ([over_both], (int(over_both.sum()), 5)),
            ([over_both], (5,)),
            ([None, None, over_last], (3, 4, 2)),
            ([None, None, over_last], (2,)),
            ([X > 30], (29,)),
            ([torch.zeros(3, dtype=torch.bool)], (4, 5)),
        ):
            check(aten.index_put.default, X, indices, -torch.rand(shape) - 1, accumulate)
    assert failures(aten.index_put.default, X, [over_rows], torch.ones(3, 4, 5))[0][0] is RuntimeError


def test_slices_along_one_dimension() -> None:
    index = torch.tensor([2, 0, 2])
    with Batch() as check:
        for dim, shape in ((0, (3, 4, 5)), (1, (3, 3, 5)), (-1, (3, 4, 3))):
            source = torch.rand(shape)
            check(aten.index_add.default, X, dim, index, source, alpha=-2)
            check(aten.index_copy.default, X, dim, index[:2], source.narrow(dim, 0, 2))
            check(aten.index_fill.int_Scalar, X, dim, torch.tensor([-1, 0]), 9)
            check(aten.index_fill.int_Tensor, X, dim, index, torch.tensor(NAN))
            for how in ("prod", "mean", "amax", "amin"):
                for include_self in (True, False):
                    check(aten.index_reduce.default, X, dim, index, source, how, include_self=include_self)
        check(aten.index_fill.int_Scalar, torch.tensor(1.0), 0, torch.tensor([0]), 5.0)


def test_elements_along_one_dimension() -> None:
    index = torch.tensor([[[0, 1, 0, 2]], [[2, 1, 2, 2]]])
    source = torch.rand(3, 4, 5)
    with Batch() as check:
        for dim in (0, 1, 2):
            check(aten.scatter_add.default, X, dim, index, source)
            check(aten.scatter.value, X, dim, index, -1)
            check(aten.scatter.value_reduce, X, dim, index, 3, reduce="multiply")
            check(aten.scatter.reduce, X, dim, index, source, reduce="add")
            for how in ("sum", "prod", "mean", "amax", "amin"):
                for include_self in (True, False):
                    check(aten.scatter_reduce.two, X, dim, index, source, how, include_self=include_self)
        check(aten.scatter.src, torch.tensor(1.0), 0, torch.tensor(0), torch.tensor(5.0))


def test_one_index_a_line_is_a_comparison() -> None:
    index = torch.tensor([[[0], [2], [4], [1]]] * 3)
    with Batch() as check:
        check(aten.scatter.value, X, 2, index, 1.5)
        check(aten.scatter.src, X, 2, index, -X)
        check(aten.scatter_add.default, X, 2, index, X)
        check(aten.scatter_add.default, X > 7, 2, index, X > 20)
        check(aten.scatter.src, torch.full((3,), NAN), 0, torch.tensor([1]), torch.ones(1))


def test_reductions_of_integers_bools_and_nan() -> None:
    index = torch.tensor([0, 0, 1, 1, 1])
    x, source = torch.tensor([7, -8, 9]), torch.tensor([-3, 4, 5, -6, 1])
    nan = torch.tensor([1.0, NAN, 2.0, 3.0, 4.0])
    with Batch() as check:
        for include_self in (True, False):
            for how in ("sum", "prod", "mean", "amax", "amin"):
                check(aten.scatter_reduce.two, x, 0, index, source, how, include_self=include_self)
                check(aten.scatter_reduce.two, torch.zeros(3), 0, index, nan, how, include_self=include_self)
            for how in ("sum", "prod"):
                check(aten.scatter_reduce.two, x > 0, 0, index, source > 0, how, include_self=include_self)


def test_put_counts_through_the_whole_tensor() -> None:
    with Batch() as check:
        check(aten.put.default, X, torch.tensor([[0, -1], [7, -60]])[:, :1], torch.tensor([[1.0], [2.0]]))
        check(aten.put.default, X, torch.tensor([5, 5]), torch.tensor([1.0, 2.0]), True)


def test_a_bad_index_raises_in_aten_s_words() -> None:
    message = "index is out of bounds for dimension {} with size {}"
    one = torch.ones(1, 1, 1)
    for bad in (4, -1):
        index = torch.tensor([[[bad]]])
        assert failures(aten.scatter.src, X, 1, index, one) == [(RuntimeError, message.format(1, 4))]
        assert failures(aten.scatter_add.default, X, 1, index, one) == [(RuntimeError, message.format(1, 4))]
        assert failures(aten.index_add.default, X, 1, index[0, 0], X[:, :1]) == [(RuntimeError, message.format(1, 4))]
        assert failures(aten.index_copy.default, X, 1, index[0, 0], X[:, :1]) == [
            (IndexError, "index_copy_(): " + message.format(1, 4))
        ]
    assert failures(aten.index_put.default, X, [torch.tensor([3])], one[0]) == [(IndexError, message.format(0, 3))]
    assert failures(aten.index_fill.int_Scalar, X, 0, torch.tensor([-3]), 1.0) == []
    assert failures(aten.index_fill.int_Scalar, X, 0, torch.tensor([-4]), 1.0) == [(IndexError, message.format(0, 3))]
