"""Reading by index tensors against ATen, and what a bad index raises."""

from __future__ import annotations

import pytest
import torch
from many_calls import Batch, failures

from neuron_compiler.ir.graph import DType, Op, TensorType, Value
from neuron_compiler.opdef import REGISTRY, Call

aten = torch.ops.aten
X = torch.arange(60.0).reshape(3, 4, 5)
ROWS, COLUMNS, LAST = torch.tensor([2, 0, -1]), torch.tensor([[-4], [3]]), torch.tensor(4)


def test_neighbouring_and_separated_indices() -> None:
    with Batch() as check:
        for indices in (
            [ROWS],
            [None, COLUMNS],
            [ROWS, COLUMNS],
            [ROWS, None, ROWS],
            [LAST - 2, None, COLUMNS],
            [None, None, LAST],
            [ROWS.int(), None, COLUMNS.int()],
            [torch.tensor([], dtype=torch.int64)],
        ):
            check(aten.index.Tensor, X, indices)


def test_selections_along_one_dimension() -> None:
    with Batch() as check:
        for dim in (0, 1, 2, -1):
            check(aten.index_select.default, X, dim, torch.tensor([1, 1, 0]))
            check(aten.index_select.default, X, dim, torch.tensor(2))
        check(aten.index_select.default, torch.tensor(7.0), 0, torch.tensor([0]))
        check(aten.index_select.default, torch.complex(X, X), 1, torch.tensor([3, 0]))
        index = torch.tensor([[[0, 1]], [[2, 1]]])
        for dim in (0, 1, 2):
            check(aten.gather.default, X, dim, index)
        check(aten.gather.default, torch.tensor(7.0), 0, torch.tensor(0))
        check(aten.gather.default, torch.tensor(7.0), 0, torch.tensor([0, 0]))
        check(aten.take.default, X, torch.tensor([[0, -1], [59, -60]]))


def test_a_bad_index_raises_in_aten_s_words() -> None:
    message = "index is out of bounds for dimension {} with size {}"
    for bad in (3, -4):
        assert failures(aten.index.Tensor, X, [torch.tensor([0, bad])]) == [(IndexError, message.format(0, 3))]
    assert failures(aten.index.Tensor, X, [ROWS, None, torch.tensor([9])]) == [(IndexError, message.format(2, 5))]
    assert failures(aten.index.Tensor, X, [ROWS, COLUMNS]) == []
    for bad in (5, -1):
        index = torch.tensor([[[bad]]])
        assert failures(aten.gather.default, X, 2, index) == [(RuntimeError, message.format(2, 5))]
        assert failures(aten.index_select.default, X, 2, index[0, 0]) == [(IndexError, "index out of range in self")]
    assert failures(aten.take.default, X, torch.tensor([60]))[0][0] is IndexError
    assert failures(aten.take.default, X, torch.tensor([-60, 59])) == []
    assert failures(aten._unsafe_index.Tensor, X, [torch.tensor([9])]) == []


def test_a_mask_is_refused_since_the_shape_depends_on_data() -> None:
    op = Op("r", "aten.index.Tensor", (Value("x"), (None, Value("m"))), TensorType((3, 2, 5), DType.F32))
    types = {"x": TensorType((3, 4, 5), DType.F32), "m": TensorType((4,), DType.BOOL)}
    assert "mask" in REGISTRY[op.kind].when(Call(op, types))
    assert REGISTRY[op.kind].when(Call(op, {**types, "m": TensorType((4,), DType.I32)})) is None


def test_repeats_of_known_total() -> None:
    with Batch() as check:
        check(aten.repeat_interleave.Tensor, torch.tensor([2, 0, 3, 1]), output_size=6)
        check(aten.repeat_interleave.Tensor, torch.tensor([0, 0, 1], dtype=torch.int32), output_size=1)
    assert failures(aten.repeat_interleave.Tensor, torch.tensor([1, 1]), output_size=3) == [
        (RuntimeError, "allocated size does not match required size")
    ]
    assert failures(aten.repeat_interleave.Tensor, torch.tensor([3, -1]), output_size=2) == [
        (RuntimeError, "repeats can not be negative")
    ]


@pytest.mark.parametrize(
    "mask", [torch.tensor([[True, False, True], [False, True, True]]), torch.tensor([True, False, True])]
)
def test_masked_scatter_takes_the_source_in_order(mask: torch.Tensor) -> None:
    x, source = torch.zeros(2, 3), torch.arange(1.0, 9.0)
    with Batch() as check:
        check(aten.masked_scatter.default, x, mask, source)
        check(aten.masked_scatter_backward.default, torch.rand(2, 3), mask.expand(2, 3), [2, 4])
    assert failures(aten.masked_scatter.default, x, mask, source[:3]) == [
        (RuntimeError, "Number of elements of source < number of ones in mask")
    ]


def test_nonzero_of_static_size() -> None:
    x = torch.tensor([[0.0, 2.0, float("nan")], [3.0, 0.0, 0.0]])
    with Batch() as check:
        for size in (0, 2, 3, 5):
            check(aten.nonzero_static.default, x, size=size, fill_value=-7)
