"""Counts of integers, as CUDA gives them: PyTorch programs ask a device other than the CPU for them."""

from __future__ import annotations

import pytest
import torch

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_are_counted(dtype: torch.dtype) -> None:
    x = torch.tensor([0, 3, 3, 5, 6, 9], dtype=dtype, device="neuron")
    counts = torch.histc(x, bins=7, min=0, max=6)
    assert (counts.dtype, counts.device.type, counts.tolist()) == (dtype, "neuron", [1, 0, 0, 2, 0, 1, 1])


def test_a_range_of_nothing_is_that_of_the_values() -> None:
    x = torch.tensor([2, 4, 4, 8], dtype=torch.int32, device="neuron")
    assert torch.histc(x, bins=3).tolist() == [1, 2, 1]  # 4 is at the edge of the second bin
    assert torch.histc(torch.full((3,), 5, device="neuron"), bins=2).tolist() == [0, 3]
    assert torch.histc(x[:0], bins=2).tolist() == [0, 0]


def test_large_integers_do_not_overflow() -> None:
    x = torch.tensor([-(2**62), 0, 2**62], device="neuron")
    assert torch.histc(x, bins=1000).nonzero().flatten().tolist() == [0, 500, 999]


def test_floats_are_the_cpus() -> None:
    x = torch.linspace(-2, 3, 50)
    assert torch.equal(torch.histc(x.to("neuron"), 7, min=-1, max=2).cpu(), torch.histc(x, 7, min=-1, max=2))


def test_out() -> None:
    x = torch.tensor([1, 1, 2], device="neuron")
    out = torch.empty(0, dtype=torch.int64, device="neuron")
    assert torch.histc(x, 2, min=1, max=2, out=out) is out
    assert out.tolist() == [2, 1]
    with pytest.raises(RuntimeError, match="the same dtype"):
        torch.histc(x, 2, out=torch.empty(2, device="neuron"))


@pytest.mark.parametrize(("bins", "low", "high", "message"), [(0, 0, 1, "bins"), (3, 2, 1, "max must be larger")])
def test_errors(bins: int, low: int, high: int, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        torch.histc(torch.tensor([1, 2], device="neuron"), bins, min=low, max=high)
