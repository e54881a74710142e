"""The built-in models: what is redrawn, and that nobody's random state is touched."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from neuron_compiler.errors import OptionsError
from neuron_compiler.models import CATALOGUE, Example, Size, build, find
from neuron_compiler.models.example import redraw


def test_names_are_unique_and_found() -> None:
    names = [entry.name for entry in CATALOGUE]
    assert len(names) == len(set(names))
    assert find("gpt2").title == "GPT-2 124M, 128 tokens"
    with pytest.raises(OptionsError, match="no model 'resnet'"):
        find("resnet")


def test_redrawn_weights_keep_the_scale_and_matter() -> None:
    module = nn.Sequential(nn.Linear(256, 64), nn.BatchNorm1d(64), nn.Conv1d(64, 32, 3), nn.LayerNorm(32))
    linear, batch, convolution, layer = redraw(module)
    assert linear.weight.std().item() == pytest.approx(1 / 16, rel=0.05)
    assert convolution.weight.std().item() == pytest.approx(1 / (64 * 3) ** 0.5, rel=0.05)
    assert 0.05 < linear.bias.std().item() < 0.15
    assert 0.5 <= layer.weight.min().item() < layer.weight.max().item() <= 1.5
    assert 0.01 <= batch.running_var.min().item() < 0.1
    assert batch.running_mean.abs().max().item() > 0
    assert torch.all(batch.weight / batch.running_var.sqrt() >= 0.5)
    assert not module.training


def test_the_same_seed_gives_the_same_weights_and_leaves_the_users_alone() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    first, second = build("vit", Size.SMALL), build("vit", Size.SMALL)
    assert torch.equal(torch.rand(3), expected)
    for a, b in zip(first.module.parameters(), second.module.parameters(), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(first.args[0], second.args[0])


def test_a_copy_in_16_bits_leaves_the_original() -> None:
    example = Example(nn.Linear(2, 2), (torch.ones(1, 2), torch.tensor([1])))
    half = example.to(torch.bfloat16)
    assert half.module.weight.dtype is half.args[0].dtype is torch.bfloat16
    assert half.args[1].dtype is torch.int64
    assert example.module.weight.dtype is torch.float32


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_results_are_of_a_healthy_size(entry: object) -> None:
    example = entry.builder(Size.SMALL)  # type: ignore[attr-defined]
    with torch.no_grad():
        result = example.call()[0]
    assert torch.isfinite(result).all()
    assert 0.05 < result.std().item() < 5.0
