"""Derivatives on the device: checks, higher orders, checkpoints, errors, threads, and torch.func."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint


def test_gradients_are_those_of_differences() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4, dtype=torch.float64, device="neuron", requires_grad=True)
    y = torch.randn(4, 2, dtype=torch.float64, device="neuron", requires_grad=True)

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ y).softmax(0)

    assert torch.autograd.gradcheck(function, (x, y))
    assert torch.autograd.gradgradcheck(function, (x, y))


def test_second_derivatives() -> None:
    x = torch.tensor([1.0, 2.0], device="neuron", requires_grad=True)
    (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert (first.tolist(), second.tolist()) == ([3, 12], [6, 12])


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_draw_the_same_numbers_again(reentrant: bool) -> None:
    def block(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x * x, 0.5)

    gradients = []
    for run in (block, lambda x: checkpoint(block, x, use_reentrant=reentrant)):
        torch.manual_seed(4)
        x = torch.arange(32.0, device="neuron").requires_grad_()
        run(x).sum().backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)
    assert 0 < gradients[0].count_nonzero() < 31


def test_a_value_that_was_changed_since() -> None:
    x = torch.ones(3, device="neuron", requires_grad=True)
    y = x.exp()
    z = y * y
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        x.add_(1)


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise ValueError("this backward fails")


def test_errors_of_the_backward_reach_the_caller() -> None:
    x = torch.ones(3, device="neuron", requires_grad=True)
    for _ in range(2):
        with pytest.raises(ValueError, match="this backward fails"):
            Failing.apply(x * 2).sum().backward()
    y = x * 2
    y.register_hook(lambda g: g + torch.ones(2, device="neuron"))
    with pytest.raises(RuntimeError, match="must match"):
        y.sum().backward()
    (x * 2).sum().backward()
    assert x.grad.tolist() == [2, 2, 2]


def test_hooks_see_tensors_of_the_device() -> None:
    seen = []
    x = torch.ones(2, device="neuron", requires_grad=True)
    x.register_hook(lambda g: seen.append(g.device.type))
    x.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad.tolist()))
    (x * 3).sum().backward()
    assert seen == ["neuron", [3, 3]]


def test_anomalies_are_detected() -> None:
    x = torch.zeros(1, device="neuron", requires_grad=True)
    with (
        pytest.warns(UserWarning, match="Error detected in"),
        torch.autograd.detect_anomaly(check_nan=True),
        pytest.raises(RuntimeError, match="returned nan"),
    ):
        (x / x).backward()


def test_threads() -> None:
    results: dict[int, list[float]] = {}

    def work(seed: int) -> None:
        w = torch.full((4, 4), float(seed), device="neuron", requires_grad=True)
        for _ in range(25):
            w.grad = None
            (w @ w).sum().backward()
        results[seed] = w.grad[0].tolist()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {seed: [8.0 * seed] * 4 for seed in range(4)}


def test_functional_transforms() -> None:
    x = torch.arange(6.0).view(2, 3)

    def loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (w * x).sin().sum()

    for transform in (
        lambda w, x: torch.func.grad(loss)(w, x),
        lambda w, x: torch.func.vmap(torch.func.grad(loss), (None, 0))(w, x),
        lambda w, x: torch.func.jacrev(lambda w: (w * x).cos())(w),
        lambda w, x: torch.func.jacfwd(lambda w: (w * x).cos())(w),
        lambda w, x: torch.func.hessian(lambda w: loss(w, x))(w),
        lambda w, x: torch.func.jvp(lambda w: w * x, (w,), (torch.ones_like(w),))[1],
        lambda w, x: torch.vmap(torch.dot, (None, 0))(w, x),
    ):
        w = torch.tensor([0.5, -1.0, 2.0])
        there = transform(w.to("neuron"), x.to("neuron"))
        assert there.device.type == "neuron"
        assert torch.equal(there.cpu(), transform(w, x))


def test_a_module_as_a_function() -> None:
    model = torch.nn.Linear(3, 2).to("neuron")
    x = torch.ones(4, 3, device="neuron")
    doubled = {name: 2 * p for name, p in model.named_parameters()}
    assert torch.allclose(torch.func.functional_call(model, doubled, x), 2 * model(x))
