"""Layers in forward and backward, equal to the CPU's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn


def run(make: Callable[[], nn.Module], x: torch.Tensor, device: str) -> list[torch.Tensor]:
    """Result, gradients of parameters and input, and buffers afterwards, on the CPU."""
    torch.manual_seed(0)
    model = make().to(device)
    given = x.to(device, copy=True)
    if given.is_floating_point():
        given.requires_grad_()
    result = model(given)
    result.square().sum().backward()
    gradients = [p.grad for p in model.parameters()] + ([given.grad] if given.requires_grad else [])
    return [t.detach().cpu() for t in (result, *gradients, *model.buffers())]


LAYERS: dict[str, tuple[Callable[[], nn.Module], torch.Size]] = {
    "convolutions": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        torch.Size((2, 3, 8, 8)),
    ),
    "depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4, stride=2, bias=False), torch.Size((2, 4, 9, 9))),
    "convolution of three dimensions": (lambda: nn.Conv3d(2, 3, 2), torch.Size((1, 2, 4, 4, 4))),
    "pools": (lambda: nn.Sequential(nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(2)), torch.Size((2, 3, 8, 8))),
    "upsampling": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), torch.Size((1, 2, 4, 4))),
    "norms": (lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.InstanceNorm1d(4, affine=True)), torch.Size((2, 4, 6))),
    "layer norm": (lambda: nn.Sequential(nn.LayerNorm(6), nn.RMSNorm(6), nn.Dropout(0.3)), torch.Size((3, 6))),
    "transformer": (
        lambda: nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True),
        torch.Size((2, 5, 16)),
    ),
    "decoder": (lambda: Decoder(), torch.Size((2, 5, 16))),
    "perceptron": (
        lambda: nn.Sequential(nn.Linear(6, 9), nn.GELU(), nn.Linear(9, 2), nn.Softmax(-1)),
        torch.Size((4, 6)),
    ),
}


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        return self.layer(x, x.flip(1), tgt_mask=mask, tgt_is_causal=True)


@pytest.mark.parametrize("name", LAYERS)
def test_forward_and_backward(name: str) -> None:
    make, shape = LAYERS[name]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    for here, there in zip(run(make, x, "cpu"), run(make, x, "neuron"), strict=True):
        assert torch.equal(there, here)


def test_embeddings() -> None:
    x = torch.tensor([[1, 2, 2], [0, 4, 1]])
    for make in (lambda: nn.Embedding(5, 3, padding_idx=0), lambda: nn.EmbeddingBag(5, 3, mode="mean")):
        for here, there in zip(run(make, x, "cpu"), run(make, x, "neuron"), strict=True):
            assert torch.equal(here, there)


def test_the_fast_path_of_evaluation() -> None:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(2, 5, 16)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.no_grad():
        here = model(x, src_key_padding_mask=padding)
        model.to("neuron")
        with torch.neuron.track_ops():
            there = model(x.to("neuron"), src_key_padding_mask=padding.to("neuron"))
    assert torch.equal(there.cpu()[~padding], here[~padding])
    ran = torch.neuron.get_executed_ops()
    torch.neuron.clear_op_tracking()
    assert "aten::_transformer_encoder_layer_fwd" in ran
    assert "aten::softmax" not in ran


def test_losses() -> None:
    x, classes = torch.randn(4, 5), torch.tensor([0, 3, 1, 4])
    for loss in (nn.CrossEntropyLoss(label_smoothing=0.1), nn.NLLLoss(), nn.MultiMarginLoss()):
        found = []
        for device in ("cpu", "neuron"):
            given = x.to(device, copy=True).requires_grad_()
            result = loss(given, classes.to(device))
            result.backward()
            found.append((result.detach().cpu(), given.grad.cpu()))
        assert torch.equal(found[0][0], found[1][0])
        assert torch.equal(found[0][1], found[1][1])


def test_parametrizations() -> None:
    torch.manual_seed(0)
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    x = torch.randn(4, 3)
    here = layer(x)
    assert torch.equal(layer.to("neuron")(x.to("neuron")).cpu(), here)


def test_weights_are_loaded_across_devices() -> None:
    source = nn.Linear(3, 2)
    target = nn.Linear(3, 2).to("neuron")
    pointer = target.weight.data_ptr()
    target.load_state_dict(source.state_dict())
    assert (target.weight.data_ptr(), target.weight.device.type) == (pointer, "neuron")
    assert torch.equal(target.weight.cpu(), source.weight)
    assert nn.Linear(3, 2, device="meta").to_empty(device="neuron").weight.device.type == "neuron"


def test_moving_a_module_keeps_its_parameters_tied_weights_and_optimizer():
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    model = nn.Sequential(first, second)
    weight, optimizer = first.weight, torch.optim.SGD(model.parameters(), lr=0.5)
    model(torch.ones(2, 3)).sum().backward()
    for device in ("neuron", "cpu"):
        model.to(device)
        assert first.weight is second.weight is weight
        assert weight.device.type == weight.grad.device.type == device
        before = weight.detach().clone()
        model(torch.ones(2, 3, device=device)).sum().backward()
        optimizer.step()
        assert torch.equal(weight.detach(), before - 0.5 * weight.grad)
