"""Losses against ATen: ignored and weighted classes, empty batches, what a bad target raises."""

from __future__ import annotations

import pytest
import torch
from many_calls import Batch, failures

aten = torch.ops.aten
GENERATOR = torch.Generator().manual_seed(0)
LOGITS = torch.randn(5, 4, generator=GENERATOR)
TARGET = torch.tensor([0, 3, -100, 1, 2])
WEIGHT = torch.rand(4, generator=GENERATOR)


@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_class_losses_and_their_gradients(reduction: int) -> None:
    grad = torch.rand(5) if reduction == 0 else torch.tensor(0.7)
    with Batch() as check:
        for weight in (None, WEIGHT):
            for ignored in (-100, 1):
                target = TARGET.clamp(min=0) if ignored == 1 else TARGET
                check(aten.nll_loss_forward.default, LOGITS, target, weight, reduction, ignored)
                _, total = aten.nll_loss_forward(LOGITS, target, weight, reduction, ignored)
                check(aten.nll_loss_backward.default, grad, LOGITS, target, weight, reduction, ignored, total)
            check(aten.nll_loss_forward.default, LOGITS[0], torch.tensor(2), weight, reduction, -100)
        check(aten.nll_loss_forward.default, LOGITS, torch.full((5,), -100), None, reduction, -100)
        check(aten.nll_loss_forward.default, LOGITS[:0], TARGET[:0], None, reduction, -100)
        check(aten.nll_loss_forward.default, LOGITS.bfloat16(), TARGET, None, reduction, -100)


@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_class_losses_of_images(reduction: int) -> None:
    x = torch.randn(2, 4, 3, 2, generator=GENERATOR)
    target = torch.randint(0, 4, (2, 3, 2), generator=GENERATOR)
    target[0, 0, 0] = -100
    grad = torch.rand(2, 3, 2) if reduction == 0 else torch.tensor(0.7)
    with Batch() as check:
        for weight in (None, WEIGHT):
            check(aten.nll_loss2d_forward.default, x, target, weight, reduction, -100)
            _, total = aten.nll_loss2d_forward(x, target, weight, reduction, -100)
            check(aten.nll_loss2d_backward.default, grad, x, target, weight, reduction, -100, total)


def test_a_target_that_is_no_class_raises_unless_it_is_ignored() -> None:
    for bad in (4, -1):
        target = torch.tensor([0, bad])
        found = failures(aten.nll_loss_forward.default, LOGITS[:2], target, None, 1, -100)
        assert found == [(IndexError, "Target is out of bounds: there are 4 classes.")]
        assert failures(aten.nll_loss_forward.default, LOGITS[:2], target, None, 1, bad) == []


@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_binary_cross_entropy_at_its_limits(reduction: int) -> None:
    x = torch.tensor([0.0, 1.0, 1.0, 0.0, 0.3, 1e-20])
    target = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.25, 0.5])
    with Batch() as check:
        check(aten.binary_cross_entropy.default, x, target, None, reduction)
        check(aten.binary_cross_entropy.default, x, target, torch.arange(6.0), reduction)
        check(aten.binary_cross_entropy.default, x.bfloat16(), target.bfloat16(), None, reduction)


def test_binary_cross_entropy_requires_probabilities() -> None:
    half = torch.tensor([0.5])
    for bad in (1.5, -0.1, float("nan")):
        for which, args in (("input", (torch.tensor([bad]), half)), ("target", (half, torch.tensor([bad])))):
            assert failures(aten.binary_cross_entropy.default, *args) == [
                (RuntimeError, f"all elements of {which} should be between 0 and 1")
            ]
