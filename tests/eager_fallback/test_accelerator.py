"""``torch.accelerator`` means this device, each call also as the first of a process."""

from __future__ import annotations

import gc

import pytest
import torch
from in_fresh_process import on_device

FIRST_CALLS = (
    "torch.accelerator.is_available()",
    "torch.accelerator.current_stream().query()",
    "torch.accelerator.memory_allocated() == 0",
    "torch.accelerator.synchronize() is None",
    "torch.accelerator.current_device_index() == 0",
    "torch.neuron.memory_stats()['num_ooms'] == 0",
    "torch.neuron.get_rng_state().numel() > 0",
    "torch.neuron.Stream().query()",
    "torch.neuron.Event().query()",
    "torch.neuron.manual_seed_all(1) is None",
    "torch.neuron.empty_cache() is None",
    "torch.neuron.ledger().rows == ()",
    "torch.neuron.memory_summary() != ''",
    "torch.neuron.get_dynamo_metrics() == []",
    "torch.Generator('neuron').manual_seed(3).initial_seed() == 3",
    "torch.UntypedStorage(4, device='neuron').nbytes() == 4",
    "torch.autocast('neuron').__enter__() is not None",
    "torch.ones(2).pin_memory().is_pinned()",
    "torch.empty(0, device='neuron').is_neuron",
    "torch.tensor([1.0]).neuron().item() == 1",
    "torch.random.fork_rng(device_type='neuron').__enter__() is None",
)


def test_each_call_may_be_the_first() -> None:
    code = """
import os
for call in CALLS:
    child = os.fork()
    if child == 0:
        try:
            good = eval(call)
        except BaseException as error:
            good = error
        if good is not True:
            print(call, repr(good), flush=True)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status:
        print(call, "ended with", status)
"""
    assert on_device(f"CALLS = {FIRST_CALLS!r}\n{code}") == []


def test_what_the_accelerator_is() -> None:
    assert torch.accelerator.current_accelerator() == torch.device("neuron")
    assert torch.accelerator.device_count() == torch.neuron.device_count() == 1
    assert torch.get_device_module("neuron") is torch.neuron
    assert torch.get_device_module() is torch.neuron
    assert torch.device(0) == torch.device("neuron:0")
    with torch.accelerator.device_index(0):
        assert torch.accelerator.current_device_index() == 0


def test_memory() -> None:
    gc.collect()
    torch.accelerator.reset_peak_memory_stats()
    before = torch.accelerator.memory_allocated()
    kept = torch.empty(1000, device="neuron")
    assert torch.accelerator.memory_allocated() - before == 4000
    assert torch.accelerator.max_memory_allocated() - before == 4000
    del kept
    assert torch.accelerator.memory_allocated() == before
    torch.accelerator.empty_cache()


def test_summary() -> None:
    kept = torch.empty(1 << 20, dtype=torch.uint8, device="neuron")
    lines = torch.neuron.memory_summary().splitlines()
    assert lines[0].startswith("Memory of neuron:0")
    row = next(line for line in lines if line.startswith("Allocated memory"))
    current = [cell.strip() for cell in row.split("|")][1]
    number, unit = current.split()
    assert unit in ("MiB", "GiB")
    assert float(number) >= 1
    assert len(torch.neuron.memory_summary(0, abbreviated=True).splitlines()) < len(lines)
    with pytest.raises(ValueError, match="no device neuron:7"):
        torch.neuron.memory_summary(7)
    del kept


def test_names_that_work_as_cudas() -> None:
    stream, event = torch.neuron.Stream(), torch.neuron.Event()
    torch.neuron.wait_stream(stream)
    assert torch.neuron.record_event(event) is not None
    torch.neuron.wait_event(event)
    assert torch.neuron.record_event().query()
    assert torch.neuron.query()
    torch.neuron._sleep(1000)
    properties = torch.neuron.get_device_properties()
    assert properties.name in ("trn1", "trn2", "trn3")
    assert "neuron" in torch.neuron.get_device_name()


def test_every_name_that_clients_call_is_there() -> None:
    names = """is_available is_initialized init device_count current_device set_device device get_device_name
    get_device_properties synchronize Stream Event stream current_stream default_stream set_stream wait_stream
    wait_event record_event query manual_seed manual_seed_all seed seed_all initial_seed get_rng_state set_rng_state
    get_rng_state_all set_rng_state_all get_amp_supported_dtype is_bf16_supported memory_stats memory_allocated
    max_memory_allocated memory_reserved max_memory_reserved memory_summary reset_peak_memory_stats
    reset_accumulated_memory_stats empty_cache get_dynamo_metrics reset_dynamo_metrics _sleep get_fallback_ops
    get_executed_ops clear_op_tracking ledger"""
    assert [name for name in names.split() if not callable(getattr(torch.neuron, name, None))] == []
