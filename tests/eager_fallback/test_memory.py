"""Memory of the device: where it lies, how it is counted, what happens at its limit, and when it was written."""

from __future__ import annotations

import gc

import pytest
import torch
from in_fresh_process import on_device

from neuron_compiler.eager_fallback.loader import Shim
from neuron_compiler.errors import OptionsError


def epochs(*tensors: torch.Tensor) -> list[int]:
    return torch.ops.neuron_compiler.write_epochs(list(tensors))


@pytest.mark.parametrize("size", [1, 7, 1000, 100_000])
def test_memory_is_aligned_and_counted(size: int) -> None:
    gc.collect()
    before = torch.neuron.memory_allocated()
    made = torch.empty(size, device="neuron")
    assert made.data_ptr() % 64 == 0
    assert torch.neuron.memory_allocated() - before == 4 * size
    summed = made + made  # memory of a CPU kernel's result
    assert summed.data_ptr() % 64 == 0
    assert torch.neuron.memory_allocated() - before == 8 * size
    del made, summed
    assert torch.neuron.memory_allocated() == before


def test_a_thousand_cycles_leave_no_trace() -> None:
    gc.collect()
    before = torch.neuron.memory_stats()
    for size in range(1000):
        made = torch.ones(size, device="neuron")
        made.mul_(2).resize_(size // 2)
        torch.cat([made, made]).view(2, -1).sum()
    del made
    after = torch.neuron.memory_stats()
    for name in ("allocated_bytes.all.current", "allocation.all.current", "reserved_bytes.all.current"):
        assert after[name] == before[name]
    allocations = after["num_device_alloc"] - before["num_device_alloc"]
    assert allocations >= 1000
    assert after["num_device_free"] - before["num_device_free"] == allocations


def test_peak() -> None:
    gc.collect()
    torch.neuron.reset_peak_memory_stats()
    before = torch.neuron.max_memory_allocated()
    assert before == torch.neuron.memory_allocated()
    torch.empty(1 << 20, dtype=torch.uint8, device="neuron")
    assert torch.neuron.max_memory_allocated() - before == 1 << 20
    torch.neuron.reset_peak_memory_stats()
    assert torch.neuron.max_memory_allocated() == before


def test_beyond_the_limit(shim: Shim) -> None:
    gc.collect()
    limit = shim.memory_limit(0)
    try:
        torch.neuron.set_per_process_memory_fraction(0.5)
        assert torch.neuron.get_device_properties().total_memory == limit // 2
        shim.set_memory_limit(0, torch.neuron.memory_allocated() + 4096)
        kept = torch.empty(1024, device="neuron")
        with pytest.raises(torch.OutOfMemoryError, match="NEURON out of memory. Tried to allocate 4 bytes"):
            torch.empty(1, device="neuron")
        with pytest.raises(torch.OutOfMemoryError, match="4.00 KiB"):
            kept + kept
        with pytest.raises(torch.OutOfMemoryError):
            torch.ones(1024).to("neuron")
        del kept
        torch.empty(1024, device="neuron")
    finally:
        shim.set_memory_limit(0, limit)
    assert torch.neuron.memory_stats()["num_ooms"] >= 3


def test_a_share_of_memory_is_checked() -> None:
    with pytest.raises(OptionsError, match="above 0 and up to 1, not at 1.5"):
        torch.neuron.set_per_process_memory_fraction(1.5)


def test_limit_is_the_share_of_the_chip_or_what_is_set() -> None:
    ask = "print(torch.neuron.get_device_properties())"
    assert on_device(ask, NEURON_COMPILER_TARGET="trn3") == [f"DeviceProperties(name='trn3', total_memory={36 << 30})"]
    assert on_device(ask, NEURON_COMPILER_DEVICE_MEMORY="5000") == ["DeviceProperties(name='trn2', total_memory=5000)"]


def test_write_epochs_change_with_writes_alone() -> None:
    written, other = torch.zeros(4, device="neuron"), torch.zeros(4, device="neuron")
    first = epochs(written, other)
    assert first[0] != first[1]
    torch.add(written, other)
    written.view(2, 2).sum()
    written[1:]
    assert epochs(written, other) == first
    seen = set(first)
    for write in (
        lambda: written.add_(1),
        lambda: written[1:].zero_(),
        lambda: written.copy_(torch.ones(4)),
        lambda: torch.add(other, 1, out=written),
        lambda: written.resize_(8),
        lambda: torch._foreach_mul_([written], 2.0),
        lambda: torch.ops.neuron_compiler.mark_written(written),
    ):
        write()
        now = epochs(written)[0]
        assert now not in seen
        seen.add(now)
    assert epochs(other)[0] == first[1]


def test_running_statistics_are_written() -> None:
    layer = torch.nn.BatchNorm1d(3).to("neuron")
    before = epochs(layer.running_mean, layer.running_var)
    layer(torch.rand(5, 3, device="neuron"))
    after = epochs(layer.running_mean, layer.running_var)
    assert before[0] != after[0]
    assert before[1] != after[1]


def test_an_alias_shares_and_keeps_the_memory() -> None:
    made = torch.arange(6.0, device="neuron")
    alias = torch.ops.neuron_compiler.as_cpu(made[2:])
    assert alias.device.type == "cpu"
    assert alias.data_ptr() == made.data_ptr() + 8
    made.add_(1)
    del made
    torch.empty(6, device="neuron").fill_(7)
    assert alias.tolist() == [3, 4, 5, 6]


def test_cpu_memory_as_device_memory() -> None:
    given = torch.arange(6.0).view(2, 3).t()
    made = torch.ops.neuron_compiler.from_cpu(given, 0)
    assert (made.device, made.stride(), made.data_ptr()) == (torch.device("neuron:0"), (1, 3), given.data_ptr())
    made.mul_(2)
    assert given.tolist() == [[0, 6], [2, 8], [4, 10]]


def test_pinned() -> None:
    plain = torch.arange(4)
    pinned = plain.pin_memory()
    assert (plain.is_pinned(), pinned.is_pinned(), pinned[2:].is_pinned()) == (False, True, True)
    assert pinned.tolist() == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        torch.empty(3, device="neuron", pin_memory=True)


def test_storages() -> None:
    storage = torch.UntypedStorage(8, device="neuron")
    made = torch.empty(0, dtype=torch.uint8, device="neuron").set_(storage)
    made.copy_(torch.arange(8))
    storage.resize_(16)
    assert storage.device == torch.device("neuron:0")
    assert (storage.nbytes(), made.tolist()) == (16, list(range(8)))
    made.resize_(0)
    storage.resize_(0)
    assert (storage.nbytes(), storage.device) == (0, torch.device("neuron:0"))
    with pytest.raises(RuntimeError, match="devices must match"):
        made.set_(torch.UntypedStorage(4))
    assert made.set_().numel() == 0
