"""``torch.accelerator`` means this device."""

from __future__ import annotations

import gc

import pytest
import torch


def test_what_the_accelerator_is() -> None:
    assert torch.accelerator.current_accelerator() == torch.device("neuron")
    assert torch.accelerator.device_count() == torch.neuron.device_count() == 1
    assert torch.get_device_module("neuron") is torch.neuron
    assert torch.get_device_module() is torch.neuron
    assert torch.device(0) == torch.device("neuron:0")
    with torch.accelerator.device_index(0):
        assert torch.accelerator.current_device_index() == 0


@pytest.mark.filterwarnings("ignore:.*omplex")
def test_types_that_the_device_has() -> None:
    types = torch.accelerator.get_device_capability()["supported_dtypes"]
    assert types >= {torch.bool, torch.int64, torch.uint16, torch.float8_e4m3fn, torch.bfloat16, torch.complex64}
    assert types.isdisjoint({torch.qint8, torch.bits8, torch.int4})
    for dtype in types:
        made = torch.ones(2, device="neuron").to(dtype)
        assert (made.dtype, made.to(torch.float32).tolist()) == (dtype, [1, 1])


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
