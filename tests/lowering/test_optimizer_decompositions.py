"""Fused optimizers and gradient scaling, against ATen's kernels; and a compiled step, whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from neuron_compiler.ledger import LEDGER
from neuron_compiler.lowering.optimizer_decompositions import DECOMPOSITIONS

aten = torch.ops.aten
SIZES = ((3, 4), (5,))


def tensors(seed: int, positive: bool = False) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(size, generator=generator) for size in SIZES]
    return [x.abs() for x in made] if positive else made


def steps(number: float) -> list[torch.Tensor]:
    return [torch.tensor(number) for _ in SIZES]


def against_aten(overload: Any, *args: Any, **kwargs: Any) -> None:
    wanted = overload(*args, **kwargs)
    found = DECOMPOSITIONS[overload](*args, **kwargs)
    torch.testing.assert_close(found, wanted, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["_fused_adam", "_fused_adamw"])
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("scaled", [None, 0.0, 1.0])
def test_adam(name: str, amsgrad: bool, maximize: bool, weight_decay: float, scaled: float | None) -> None:
    state = tensors(2), tensors(3, positive=True), tensors(4, positive=True) if amsgrad else []
    options = {"beta1": 0.9, "beta2": 0.999, "weight_decay": weight_decay, "eps": 1e-8}
    options |= {"amsgrad": amsgrad, "maximize": maximize}
    if scaled is not None:
        options |= {"grad_scale": torch.tensor(8.0), "found_inf": torch.tensor(scaled)}
    for overload, lr in (("default", 0.01), ("tensor_lr", torch.tensor(0.01))):
        call = getattr(getattr(aten, name), overload)
        against_aten(call, tensors(0), tensors(1), *state, steps(3.0), lr=lr, **options)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_sgd(momentum: float, nesterov: bool, first: bool, weight_decay: float) -> None:
    options = {"momentum": momentum, "nesterov": nesterov, "is_first_step": first, "weight_decay": weight_decay}
    buffers = tensors(2) if momentum else []
    for overload, lr in ((aten._fused_sgd.default, 0.1), (aten._fused_sgd.tensor_lr, torch.tensor(0.1))):
        against_aten(overload, tensors(0), tensors(1), buffers, lr=lr, dampening=0.2, maximize=True, **options)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adagrad(weight_decay: float) -> None:
    given = tensors(0), tensors(1), tensors(2, positive=True), steps(4.0)
    options = {"lr_decay": 0.1, "weight_decay": weight_decay, "eps": 1e-10, "maximize": False}
    against_aten(aten._fused_adagrad.default, *given, lr=0.1, **options)


@pytest.mark.parametrize("value", [1.0, float("inf"), float("nan")])
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_unscaling_finds_what_is_not_finite(value: float, scale: float) -> None:
    grads = tensors(0)
    grads[1][2] = value
    overload = aten._amp_foreach_non_finite_check_and_unscale.default
    against = overload(grads, torch.zeros(1), torch.tensor(scale))
    found = DECOMPOSITIONS[overload](grads, torch.zeros(1), torch.tensor(scale))
    torch.testing.assert_close(found, against, equal_nan=True)


@pytest.mark.parametrize("found", [0.0, 1.0])
@pytest.mark.parametrize("tracker", [0, 2])
@pytest.mark.parametrize("scale", [4.0, 3e38])
def test_scales_grow_and_back_off(found: float, tracker: int, scale: float) -> None:
    given = torch.tensor(scale), torch.tensor(tracker, dtype=torch.int32), torch.tensor(found)
    against_aten(aten._amp_update_scale.default, *given, 2.0, 0.5, 3)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_a_fused_step_is_compiled_whole(kind: Any) -> None:
    def train(compiled: bool) -> list[torch.Tensor]:
        params = [x.requires_grad_() for x in tensors(0)]
        optimizer = kind(params, lr=0.1, fused=True)
        step = torch.compile(optimizer.step, backend="neuron") if compiled else optimizer.step
        for seed in (1, 2, 3):
            for param, grad in zip(params, tensors(seed), strict=True):
                param.grad = grad
            step()
        return [param.detach() for param in params]

    torch.testing.assert_close(train(True), train(False), rtol=2e-6, atol=1e-6)
    assert LEDGER.total("fallback") == 0
