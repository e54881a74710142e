"""DataLoader beside the device: workers, pinned memory, and samples that lie on it."""

from __future__ import annotations

import pytest
import torch
from in_fresh_process import on_device
from torch.utils.data import DataLoader, TensorDataset


@pytest.mark.parametrize("pinned", [False, True])
def test_batches_move_to_the_device(pinned: bool) -> None:
    loader = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=4, pin_memory=pinned)
    batches = [batch for (batch,) in loader]
    assert [batch.is_pinned() for batch in batches] == [pinned] * 2
    moved = [batch.to("neuron", non_blocking=True) for batch in batches]
    assert [batch.tolist() for batch in moved] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_samples_on_the_device() -> None:
    loader = DataLoader(TensorDataset(torch.arange(4, device="neuron")), batch_size=2, shuffle=True)
    batches = [batch for (batch,) in loader]
    assert {batch.device.type for batch in batches} == {"neuron"}
    assert sorted(torch.cat(batches).tolist()) == [0, 1, 2, 3]


def test_workers_that_are_forked_after_the_device_was_used() -> None:
    code = """
from torch.utils.data import DataLoader, TensorDataset
x = torch.ones(3, device="neuron", requires_grad=True)
(x * x).sum().backward()
for pinned in (False, True):
    loader = DataLoader(TensorDataset(torch.arange(6.0)), batch_size=3, num_workers=1, pin_memory=pinned)
    print([(batch.to("neuron") * x.detach()).tolist() for (batch,) in loader])
"""
    assert on_device(code) == ["[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]"] * 2
