"""``torch.profiler`` sees the operators of the device, in tables and in Chrome's traces."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function


def test_tables_and_traces(tmp_path: Path) -> None:
    x = torch.randn(8, 8, device="neuron", requires_grad=True)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as found:
        for _ in range(2):
            with record_function("a step"):
                (x @ x).sum().backward()
    rows = {row.key: row for row in found.key_averages()}
    assert rows["a step"].count == 2
    assert rows["aten::mm"].count == 6
    assert rows["aten::mm"].cpu_time_total > 0
    assert "aten::mm" in found.key_averages().table(sort_by="cpu_time_total")
    trace = tmp_path / "trace.json"
    found.export_chrome_trace(str(trace))
    names = {event.get("name") for event in json.loads(trace.read_text())["traceEvents"]}
    assert {"a step", "aten::mm", "aten::sum"} <= names


def test_the_activity_of_the_device_is_accepted() -> None:
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as found:
        torch.ones(3, device="neuron").add_(1)
    assert any(row.key == "aten::add_" for row in found.key_averages())
