"""Embeddings and bags against ATen: padding, frequency, empty bags, what a bad index raises."""

from __future__ import annotations

import pytest
import torch
from many_calls import Batch, failures

from neuron_compiler.ir.graph import DType, Op, TensorType, Value
from neuron_compiler.opdef import REGISTRY, Call

aten = torch.ops.aten
WEIGHT = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
INDICES = torch.tensor([0, 5, 3, 3, 1, 2, 0])
OFFSETS = torch.tensor([0, 2, 2, 5])


def test_rows_and_their_gradients() -> None:
    indices = INDICES[:6].reshape(2, 3)
    grad = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1))
    with Batch() as check:
        check(aten.embedding.default, WEIGHT, indices)
        check(aten.embedding.default, WEIGHT.bfloat16(), indices.int())
        check(aten.embedding.default, WEIGHT, torch.tensor(5))
        for padding in (-1, 3):
            for by_frequency in (False, True):
                check(aten.embedding_dense_backward.default, grad, indices, 6, padding, by_frequency)
        check(aten.embedding_dense_backward.default, grad[:0], indices[:0], 6, -1, False)


def test_many_gradients_of_one_row_accumulate_in_float32() -> None:
    grad = torch.ones(600, 4, dtype=torch.bfloat16)
    indices = torch.zeros(600, dtype=torch.int64)
    with Batch() as check:
        check(aten.embedding_dense_backward.default, grad, indices, 2, -1, False)


def test_a_bad_index_raises_in_aten_s_words() -> None:
    for bad in (6, -1):
        assert failures(aten.embedding.default, WEIGHT, torch.tensor([0, bad])) == [
            (IndexError, "index out of range in self")
        ]
        assert failures(aten._embedding_bag.default, WEIGHT, torch.tensor([0, bad]), torch.tensor([0])) == [
            (RuntimeError, "an index of input is not in the valid range [0, 6)")
        ]
    for offsets, message in (([1], "offsets[0] has to be 0"), ([0, 9], "offsets[-1] can not be greater")):
        ((error, text),) = failures(aten._embedding_bag.default, WEIGHT, torch.tensor([0, 1]), torch.tensor(offsets))
        assert error is RuntimeError
        assert text.startswith(message)


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_bags_some_of_them_empty(mode: int) -> None:
    with Batch() as check:
        for padding in (-1, 3):
            check(aten._embedding_bag.default, WEIGHT, INDICES, OFFSETS, False, mode, False, None, False, padding)
        ends = torch.tensor([0, 2, 2, 7])
        check(aten._embedding_bag.default, WEIGHT, INDICES, ends, False, mode, False, None, True, -1)
        check(aten._embedding_bag.default, WEIGHT.double(), INDICES, OFFSETS, False, mode)
        if mode == 0:
            of_samples = torch.rand(7, generator=torch.Generator().manual_seed(2))
            check(aten._embedding_bag.default, WEIGHT, INDICES, OFFSETS, False, 0, False, of_samples)


def test_frequency_of_bags_is_refused() -> None:
    """ATen's kernel divides by the count of another index."""
    operands = (Value("g"), *(Value("i"),) * 5, 6, True, 0, False, None)
    op = Op("r", "aten._embedding_bag_backward.default", operands, TensorType((6, 4), DType.F32))
    types = {"g": TensorType((4, 4), DType.F32), "i": TensorType((7,), DType.I64)}
    assert REGISTRY[op.kind].when(Call(op, types)) == "scale_grad_by_freq of bags"
