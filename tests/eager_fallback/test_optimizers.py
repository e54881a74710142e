"""Training with PyTorch's optimizers: the CPU's numbers, in the parameters' own memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn, optim

OPTIMIZERS: dict[str, tuple[type[optim.Optimizer], dict[str, Any]]] = {
    "Adam": (optim.Adam, {}),
    "AdamW without foreach": (optim.AdamW, {"foreach": False}),
    "AdamW with foreach": (optim.AdamW, {"foreach": True}),
    "SGD": (optim.SGD, {"momentum": 0.9, "nesterov": True}),
    "RMSprop": (optim.RMSprop, {"centered": True}),
    "Adagrad": (optim.Adagrad, {}),
    "Adamax": (optim.Adamax, {}),
    "NAdam": (optim.NAdam, {"decoupled_weight_decay": True, "weight_decay": 0.1}),
    "RAdam": (optim.RAdam, {}),
    "ASGD": (optim.ASGD, {}),
    "Adadelta": (optim.Adadelta, {"lr": 1.0}),
    "Adafactor": (optim.Adafactor, {}),
    "Rprop": (optim.Rprop, {}),
    "AdamW fused": (optim.AdamW, {"fused": True}),
    "NAdam with foreach": (optim.NAdam, {"foreach": True}),
    "LBFGS": (optim.LBFGS, {"max_iter": 4}),
}


def train(name: str, device: str, steps: int) -> list[torch.Tensor]:
    kind, options = OPTIMIZERS[name]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
    pointers = [p.data_ptr() for p in model.parameters()]
    x, y = torch.randn(16, 4).to(device), torch.randn(16, 1).to(device)
    optimizer = kind(model.parameters(), **({"lr": 0.05} | options))
    losses = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        losses.append(loss.detach().cpu())
        return loss

    for _ in range(steps):
        optimizer.step(closure)
    assert [p.data_ptr() for p in model.parameters()] == pointers
    assert losses[-1] < losses[0]
    return [*losses, *(p.detach().cpu() for p in model.parameters())]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_is_the_cpus(name: str) -> None:
    for here, there in zip(train(name, "cpu", 20), train(name, "neuron", 20), strict=True):
        assert torch.equal(there, here)


@pytest.mark.parametrize("kind", [optim.NAdam, optim.RAdam, optim.ASGD])
def test_a_step_of_those_that_choose_is_compiled(kind: type[optim.Optimizer]) -> None:
    found = []
    for compile_ in (lambda step: step, torch.compile):
        weights = [torch.full((3,), number + 1.0, device="neuron", requires_grad=True) for number in range(2)]
        optimizer = kind(weights, lr=0.05)
        step = compile_(optimizer.step)
        for _ in range(3):
            for weight in weights:
                weight.grad = weight.detach() * 2
            step()
        found.append(torch.stack(weights).detach().cpu())
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=0)


def test_norms_are_clipped() -> None:
    found = []
    for device in ("cpu", "neuron"):
        weight = torch.arange(4.0).to(device).requires_grad_()
        (weight**3).sum().backward()
        norm = nn.utils.clip_grad_norm_([weight], 1.0)
        found.append((norm.cpu(), weight.grad.cpu()))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


def test_losses_are_scaled() -> None:
    weight = torch.ones(3, device="neuron", requires_grad=True)
    optimizer = optim.SGD([weight], lr=0.5)
    scaler = torch.amp.GradScaler("neuron", init_scale=4.0)
    with torch.autocast("neuron", dtype=torch.float16):
        loss = (weight * 2).sum()
    scaler.scale(loss).backward()
    assert weight.grad.tolist() == [8, 8, 8]
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == [0, 0, 0]
    weight.grad.fill_(float("inf"))
    scaler.scale(loss.detach())
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == [0, 0, 0]
    assert scaler.get_scale() == 2.0


def test_state_moves_with_the_parameters() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = optim.Adam([weight])
    weight.sum().backward()
    optimizer.step()
    moved = nn.Parameter(weight.detach().to("neuron"))
    other = optim.Adam([moved])
    other.load_state_dict(optimizer.state_dict())
    assert other.state[moved]["exp_avg"].device.type == "neuron"
