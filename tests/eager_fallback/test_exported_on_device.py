"""Programs exported on device neuron: results and changes lie there, from a file too."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import neuron_compiler
from neuron_compiler.errors import ArtifactError, RuntimeFault

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(self.norm(self.linear(x)), 0.4, self.training).t()


def make(device: str) -> tuple[Model, torch.Tensor]:
    torch.manual_seed(0)
    return Model().to(device), torch.randn(8, 6).to(device)


def test_values_changes_and_draws_are_the_cpu_s_and_a_file_keeps_them(tmp_path: Path) -> None:
    model, x = make("neuron")
    compiled = neuron_compiler.compile_exported(torch.export.export(model, (x,)))
    compiled.save(tmp_path / "p")
    loaded = neuron_compiler.load(tmp_path / "p")
    eager, on_cpu = make("cpu")
    torch.manual_seed(3)
    expected = eager(on_cpu).detach()
    found = []
    for program in (compiled, loaded):
        torch.manual_seed(3)
        found.append(program(x))
    assert found[0].device == x.device
    assert torch.equal(found[0].cpu(), found[1].cpu())
    assert_close(found[0].cpu(), expected)
    assert found[0].stride() == expected.stride()
    assert {weight.device for weight in loaded.weights.values()} == {x.device}
    assert_close(model.norm.running_var.cpu(), eager.norm.running_var)
    assert_close(loaded.weights["norm.running_var"].cpu(), eager.norm.running_var)
    with pytest.raises(RuntimeFault, match="lies on cpu; compiled for"):
        loaded(on_cpu)


def test_weights_of_another_device_are_refused(tmp_path: Path) -> None:
    model, x = make("neuron")
    neuron_compiler.save(torch.export.export(model, (x,)), tmp_path / "p", weights="reference")
    with pytest.raises(ArtifactError, match=r"lies on cpu(.|\n)*module\.to\('neuron:0'\)"):
        neuron_compiler.load(tmp_path / "p", weights=make("cpu")[0])
    loaded = neuron_compiler.load(tmp_path / "p", weights=model)
    loaded(x)
    assert loaded.weights["norm.num_batches_tracked"].item() == model.norm.num_batches_tracked.item() == 1
