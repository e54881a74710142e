"""Reductions of segments: empty ones, zeros and NaN, rows of no segment, batches of lengths, and what is refused."""

from __future__ import annotations

import itertools

import pytest
import torch
from many_calls import Batch, failures

aten = torch.ops.aten
NAN = float("nan")

ROWS = torch.tensor([[2.0, 0.0], [3.0, NAN], [3.0, 0.0], [-1.0, 4.0], [0.5, 0.0], [7.0, 1.0]])
LENGTHS = torch.tensor([2, 0, 3, 1])
OFFSETS = torch.tensor([0, 2, 2, 4, 5])
"""The last row belongs to no segment."""


@pytest.mark.parametrize("reduce", ["sum", "mean", "prod", "max", "min"])
def test_values_and_gradients(reduce: str) -> None:
    with Batch() as check:
        for given, initial in itertools.product(({"lengths": LENGTHS}, {"offsets": OFFSETS}), (None, 2.5)):
            for dtype in (torch.float32, torch.bfloat16):
                rows = ROWS.to(dtype)
                options = {**given, "initial": initial}
                check(aten.segment_reduce.default, rows, reduce, unsafe=True, **options)
                result = aten.segment_reduce.default(rows, reduce, unsafe=True, **options)
                grad = torch.arange(result.numel(), dtype=dtype).reshape(result.shape) + 1
                check(aten._segment_reduce_backward.default, grad, result, rows, reduce, **options)


def test_each_batch_has_lengths_of_its_own() -> None:
    x = torch.arange(24.0).reshape(2, 4, 3)
    lengths = torch.tensor([[1, 3], [4, 0]])
    with Batch() as check:
        for reduce in ("sum", "max"):
            check(aten.segment_reduce.default, x, reduce, lengths=lengths, axis=1, initial=0)


def test_lengths_that_do_not_fit_are_refused() -> None:
    x = torch.arange(4.0)
    assert not failures(aten.segment_reduce.default, x, "sum", lengths=torch.tensor([1, 3]))
    for lengths in ([1, 2], [5, -1]):
        found = failures(aten.segment_reduce.default, x, "sum", lengths=torch.tensor(lengths))
        assert [error for error, _ in found[:1]] == [RuntimeError]
