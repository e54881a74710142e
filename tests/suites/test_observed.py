"""The comparison itself: each kind of difference is seen, and equal calls have none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import observed
import op_cases
import pytest
import steps
import torch
from torch import nn

X = torch.arange(12.0).reshape(3, 4)


def differences(ours: Callable[..., Any], theirs: Callable[..., Any], *args: Any, gradients: bool = False) -> list[str]:
    got = observed.observe(ours, args, gradients=gradients)
    return observed.faults(got, observed.observe(theirs, args, gradients=gradients), steps.within(1e-4))


def changed(x: torch.Tensor) -> torch.Tensor:
    return x.add_(1).clone()


@pytest.mark.parametrize(
    ("ours", "theirs", "seen"),
    [
        (lambda x: x * 1.001, lambda x: x * 1, "result 0: relative RMS error"),
        (lambda x: x * float("nan"), lambda x: x * 1, "NaN"),
        (lambda x: x.double(), lambda x: x * 1, "dtype"),
        (lambda x: x.t() * 1, lambda x: x * 1, "shape"),
        (lambda x: (x.t() * 1).contiguous().t(), lambda x: x * 1, "strides"),
        (lambda x: x.clone(), lambda x: x[:], "memory shared"),
        (lambda x: x[1:], lambda x: x[:2], "memory shared"),
        (lambda x: (x * 2, x * 2), lambda x: (y := x * 2, y), "memory shared"),
        (lambda x: (x + 1).clone(), changed, "argument 0 after the call"),
        (lambda x: [x * 1], lambda x: (x * 1,), "nested"),
        (lambda x: (x * 1, None), lambda x: (x * 1, x * 1), "result 1: NoneType"),
        (lambda x: x.sum().item() + 1, lambda x: x.sum().item(), "result 0: 67.0 instead of 66.0"),
    ],
)
def test_a_difference_is_seen(ours: Callable[..., Any], theirs: Callable[..., Any], seen: str) -> None:
    found = differences(ours, theirs, X)
    assert any(seen in line for line in found), found
    assert differences(theirs, theirs, X) == []


def test_a_wrong_gradient_is_seen() -> None:
    x = X.clone().requires_grad_()
    square = lambda a: a * a  # noqa: E731
    assert differences(square, square, x, gradients=True) == []
    found = differences(lambda a: a * a.detach(), square, x, gradients=True)
    assert [line.partition(":")[0] for line in found] == ["gradient 0"]


def test_copies_keep_strides_and_sharing() -> None:
    base = torch.arange(20.0)
    tree = [base[2:8:2], base.view(4, 5).t(), torch.ones(1).expand(3), base[2:8:2].requires_grad_(False), "text"]
    made = observed.copies(tree)
    assert [x.stride() for x in made[:4]] == [x.stride() for x in tree[:4]]
    made[0][0] = 99
    assert made[1][2, 0] == 99
    assert base[2] == 2


def test_random_results_are_compared_to_the_bit() -> None:
    case = next(c for c in op_cases.cases(op_cases.SAMPLED) if str(c) == "bernoulli-float32-forward")
    near = case.near(random=True)
    assert near("result 0", torch.ones(2), torch.ones(2)) == ""
    assert near("result 0", torch.ones(2) + 1e-6, torch.ones(2)) != ""


def test_an_inexact_result_has_to_be_as_near_as_eagers() -> None:
    exact = torch.tensor([1.0, 2.0], dtype=torch.float64)
    eager = torch.tensor([1.1, 2.0])
    assert op_cases._no_further(torch.tensor([1.0, 2.05]), eager, exact)
    assert not op_cases._no_further(torch.tensor([1.0, 2.2]), eager, exact)
    assert not op_cases._no_further(torch.tensor([1.0, float("nan")]), eager, exact)


class _Averaging(nn.Module):
    """Remembers by how much it was asked to; one fault is a wrong amount, another a lost gradient."""

    def __init__(self, amount: float = 0.1, lost: bool = False) -> None:
        super().__init__()
        self.amount, self.lost = amount, lost
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.lerp_(x.detach().mean(0), self.amount)
        return x * (self.weight.detach() + 0 * self.weight if self.lost else self.weight)


@pytest.mark.parametrize(
    ("fault", "seen"),
    [({"amount": 0.2}, "mean afterwards"), ({"lost": True}, "gradient 0")],
    ids=["buffer", "gradient"],
)
def test_a_wrong_step_is_seen(monkeypatch: pytest.MonkeyPatch, fault: dict[str, Any], seen: str) -> None:
    specimen = steps.Specimen(_Averaging(), (X,))
    monkeypatch.setattr(steps, "compiled", lambda module: module)
    steps.assert_training(specimen)

    def faulty(module: nn.Module) -> Any:
        other = _Averaging(**fault)
        other.weight, other.mean = module.weight, module.mean
        return other

    monkeypatch.setattr(steps, "compiled", faulty)
    with pytest.raises(AssertionError, match=seen):
        steps.assert_training(specimen)
