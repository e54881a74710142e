"""``torch.neuron`` and ``torch.accelerator``: streams, events, seeds, properties; saving, moving and counting calls."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch

from neuron_compiler.eager_fallback.loader import Shim


def test_devices() -> None:
    assert torch.neuron.is_available()
    assert torch.neuron.is_initialized()
    assert (torch.neuron.device_count(), torch.neuron.current_device()) == (1, 0)
    assert torch.neuron.get_device_name("neuron") == "neuron:0"
    properties = torch.neuron.get_device_properties(0)
    assert (properties.name, properties.total_memory) == ("trn2", 24 << 30)
    assert torch.neuron.mem_get_info()[1] == 24 << 30
    with torch.neuron.device("neuron:0"), torch.neuron.device_of(torch.ones(1)):
        assert torch.neuron.current_device() == 0
    with pytest.raises(ValueError, match="no device neuron:1"):
        torch.neuron.synchronize(1)
    with pytest.raises(ValueError, match="expected a device neuron, not cpu"):
        torch.neuron.set_device("cpu")


def test_streams_and_events() -> None:
    stream = torch.neuron.Stream()
    assert isinstance(stream, torch.Stream)
    assert isinstance(stream, torch.neuron.Stream)
    assert torch.neuron.current_stream() == torch.neuron.default_stream() != stream
    start, end = torch.neuron.Event(enable_timing=True), torch.neuron.Event(enable_timing=True)
    assert isinstance(start, torch.neuron.Event)
    start.record()
    with torch.neuron.stream(stream):
        assert torch.neuron.current_stream() == stream
        x = torch.ones(3, device="neuron")
        stream.record_event(end)
    assert torch.neuron.current_stream() == torch.neuron.default_stream()
    x.record_stream(stream)
    stream.wait_event(end)
    end.wait(stream)
    stream.wait_stream(torch.neuron.current_stream())
    stream.synchronize()
    end.synchronize()
    torch.neuron.synchronize()
    torch.accelerator.synchronize()
    assert stream.query()
    assert end.query()
    assert 0 < start.elapsed_time(end) < 60_000
    with torch.neuron.stream(None):
        assert torch.neuron.current_stream() == torch.neuron.default_stream()


def test_one_stream_of_random_numbers() -> None:
    torch.neuron.manual_seed(7)
    assert (torch.initial_seed(), torch.neuron.initial_seed()) == (7, 7)
    state = torch.neuron.get_rng_state()
    drawn = torch.rand(2), torch.rand(2, device="neuron")
    torch.neuron.set_rng_state_all([state])
    again = torch.rand(2, device="neuron"), torch.rand(2)
    assert torch.equal(drawn[0], again[0].cpu())
    assert torch.equal(drawn[1].cpu(), again[1])
    assert torch.equal(torch.neuron.get_rng_state_all()[0], torch.get_rng_state())
    torch.neuron.seed_all()
    assert torch.initial_seed() == torch.neuron.initial_seed() != 7


def test_graphs_are_traced_through_calls_of_the_module() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        torch.neuron.synchronize()
        with torch.autocast("neuron", dtype=torch.bfloat16):
            y = x @ torch.ones(3, 3, device=x.device)
        return y + torch.neuron.current_device() + torch.neuron.device_count()

    x = torch.arange(9.0, device="neuron").view(3, 3)
    traced = torch.compile(step, backend="aot_eager", fullgraph=True)
    assert torch.equal(traced(x), step(x))


def test_types() -> None:
    assert torch.neuron.is_bf16_supported()
    assert torch.bfloat16 in torch.neuron.get_amp_supported_dtype()


def test_methods_of_tensors_modules_and_storages() -> None:
    x = torch.arange(3.0)
    assert x.neuron().is_neuron
    assert not x.is_neuron
    assert torch.nn.Linear(2, 2).neuron().weight.device == torch.device("neuron:0")
    assert x.untyped_storage().neuron().device.type == "neuron"
    assert repr(x.neuron()) == "tensor([0., 1., 2.], device='neuron:0')"


def test_save_and_load() -> None:
    base = torch.arange(6.0, device="neuron")
    file = io.BytesIO()
    torch.save({"base": base, "view": base[2:]}, file)
    for where, device in ((None, "neuron:0"), ("cpu", "cpu"), ("neuron", "neuron:0")):
        file.seek(0)
        loaded = torch.load(file, map_location=where)
        assert (str(loaded["base"].device), loaded["view"].tolist()) == (device, [2, 3, 4, 5])
        loaded["view"].zero_()
        assert loaded["base"].tolist() == [0, 1, 0, 0, 0, 0]
    file = io.BytesIO()
    torch.save(torch.ones(2), file)
    file.seek(0)
    assert torch.load(file, map_location="neuron").device.type == "neuron"


def test_copies_of_objects() -> None:
    x = torch.arange(3.0, device="neuron")
    for made in (copy.deepcopy(x), pickle.loads(pickle.dumps(x)), copy.deepcopy(torch.nn.Parameter(x))):
        assert made.device.type == "neuron"
        assert made.data_ptr() != x.data_ptr()
        assert made.tolist() == [0, 1, 2]


def test_default_device() -> None:
    with torch.device("neuron"):
        assert torch.ones(2).device.type == torch.nn.Linear(2, 2).weight.device.type == "neuron"


def test_default_device_for_the_process() -> None:
    torch.set_default_device("neuron")
    try:
        assert torch.ones(2).is_neuron
        assert torch.tensor([1]).is_neuron
        assert torch.nn.Linear(2, 2)(torch.rand(3, 2)).is_neuron
        assert torch.get_default_device() == torch.device("neuron:0")
    finally:
        torch.set_default_device(None)
    assert torch.ones(2).is_cpu


def test_training_is_the_cpus() -> None:
    def train(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.GELU(), torch.nn.Linear(8, 2)
        )
        model.to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for _ in range(5):
            loss = model(torch.randn(16, 4, device=device)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return [loss.detach().cpu(), *(p.detach().cpu() for p in model.parameters())]

    for here, there in zip(train("cpu"), train("neuron"), strict=True):
        assert torch.equal(here, there)


def test_calls_are_counted(shim: Shim) -> None:
    x = torch.ones(8, device="neuron")
    x + x
    shim.clear_calls()
    shim.count_calls(True)
    try:
        for _ in range(3):
            x + x
        x.mul_(2).view(2, 4)
    finally:
        shim.count_calls(False)
    x + x
    found = {call.name: call for call in shim.calls()}
    assert found["aten::add.Tensor"].calls == 3
    assert found["aten::add.Tensor"].bytes == 3 * 3 * 32
    assert 0 < found["aten::add.Tensor"].nanoseconds < 1e9
    assert found["aten::mul_.Tensor"].calls == 1
    assert found["aten::view"].calls == 1
    shim.clear_calls()
    assert shim.calls() == []


def test_an_observer_is_told_and_can_refuse(shim: Shim) -> None:
    x = torch.ones(2, device="neuron")
    told: list[bytes] = []
    try:
        shim.observe(lambda name: told.append(name) or 0)  # type: ignore[func-returns-value]
        shim.set_notice("aten::sin", 1)
        x.sin()
        x.sin()
        assert told == [b"aten::sin"]
        shim.set_notice("aten::sin", 2)
        shim.observe(lambda name: 1)
        with pytest.raises(NotImplementedError, match="aten::sin would run on the CPU"):
            x.sin()
    finally:
        shim.set_notice("aten::sin", 0)
        shim.observe(None)
    assert torch.equal(x.sin().cpu(), torch.ones(2).sin())
