"""Backward passes of margin losses and of masked softmax, against ATen's kernels."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from neuron_compiler.ledger import LEDGER
from neuron_compiler.lowering import loss_decompositions

REDUCTIONS = ["none", "mean", "sum"]


def gradients(loss, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[no-untyped-def]
    """Of eager and of compiled."""
    found = []
    for function in (loss, torch.compile(loss, backend="neuron")):
        given = x.clone().requires_grad_()
        result = function(given)
        result.backward(torch.linspace(0.5, 2, result.numel()).reshape(result.shape))
        found.append(given.grad)
    return found[0], found[1]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("p", "margin", "weighted"), [(1, 1.0, False), (2, 0.3, True)])
@pytest.mark.parametrize("rows", [0, 4])
def test_multi_margin(reduction: str, p: int, margin: float, weighted: bool, rows: int) -> None:
    x = torch.randn(rows, 5) if rows else torch.randn(5)
    target = torch.tensor([0, 4, 2, 4]) if rows else torch.tensor(3)
    weight = torch.rand(5) if weighted else None
    wanted, found = gradients(lambda x: F.multi_margin_loss(x, target, p, margin, weight, reduction=reduction), x)
    torch.testing.assert_close(found, wanted)
    assert LEDGER.total("fallback") == 0


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("rows", [0, 3])
def test_multilabel_margin(reduction: str, rows: int) -> None:
    target = torch.tensor([[3, 0, -1, 1, 2], [1, 2, 3, 4, 0], [-1, 0, 1, 2, 3]])
    x = torch.randn(3, 5)
    given = (x, target) if rows else (x[0], target[0])
    wanted, found = gradients(lambda x: F.multilabel_margin_loss(x, given[1], reduction=reduction), given[0])
    torch.testing.assert_close(found, wanted)
    assert LEDGER.total("fallback") == 0


def test_multilabel_margin_backward_is_the_kernels() -> None:
    target, x = torch.tensor([[3, 0, -1, 1, 2], [1, 2, 3, 4, 0], [-1, 0, 1, 2, 3]]), torch.randn(3, 5)
    for reduction, grad in ((0, torch.tensor([0.5, 1, 2])), (1, torch.tensor(3.0)), (2, torch.tensor(0.1))):
        _, is_target = torch.ops.aten.multilabel_margin_loss_forward(x, target, reduction)
        given = grad, x, target, reduction, is_target
        wanted = torch.ops.aten.multilabel_margin_loss_backward(*given)
        torch.testing.assert_close(loss_decompositions.multilabel_margin_loss_backward(*given), wanted)


def test_pytorch_traces_multilabel_margin_wrong() -> None:
    """Where this fails, PyTorch has mended it, and `capture/replaced.py` can go for releases from there."""
    x, target = torch.arange(5.0), torch.tensor([3, -1, 0, 1, 2])
    traced = torch.compile(F.multilabel_margin_loss, backend="aot_eager")(x, target)
    assert not torch.allclose(traced, F.multilabel_margin_loss(x, target))


@pytest.mark.parametrize("dim", [None, 0, -1])
def test_masked_softmax(dim: int | None) -> None:
    mask = torch.tensor([[True, False, False], [False, False, True], [False, True, False], [True, True, True]])
    output = torch.ops.aten._masked_softmax(torch.randn(4, 3), mask, dim)
    grad = torch.randn(4, 3)
    wanted = torch.ops.aten._masked_softmax_backward(grad, output, mask, dim)
    found = loss_decompositions.masked_softmax_backward(grad, output, mask, dim)
    torch.testing.assert_close(found, wanted, equal_nan=True)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_number_is_a_sample_of_one_class(reduction: str) -> None:
    """With no other class there is nothing to lose against, and a loss of ``none`` has no dimension either."""
    x, target = torch.tensor(0.7), torch.tensor(0)
    for loss in (F.multilabel_margin_loss, F.multi_margin_loss):
        wanted, found = gradients(lambda x, loss=loss: loss(x, target, reduction=reduction), x)
        assert found.shape == wanted.shape == ()
        assert found == wanted == 0
    result = torch.compile(F.multilabel_margin_loss, backend="neuron")(x, target, reduction=reduction)
    assert (result.shape, result.item()) == ((), 0)
