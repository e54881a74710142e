"""Checks of values that a program makes: they compile, hold and raise."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from neuron_compiler.ledger import LEDGER


def test_classes_are_checked_in_the_executable() -> None:
    def run(classes: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return F.one_hot(classes, 3).to(x.dtype) @ x

    compiled = torch.compile(run, backend="neuron")
    x = torch.arange(6.0).reshape(3, 2)
    before = LEDGER.total("fallback")
    torch.testing.assert_close(compiled(torch.tensor([2, 0]), x), x[[2, 0]])
    assert LEDGER.total("fallback") == before
    for bad in ([0, 3], [-1, 0]):
        with pytest.raises(RuntimeError):
            run(torch.tensor(bad), x)
        with pytest.raises(RuntimeError):
            compiled(torch.tensor(bad), x)
    torch.testing.assert_close(compiled(torch.tensor([1, 1]), x), x[[1, 1]])


@pytest.mark.parametrize("message", [(), ("all have to be positive",)])
def test_an_assertion_that_nobody_reads_runs(message: tuple[str, ...]) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x > 0).all(), *message)
        return x + 1

    compiled = torch.compile(run, backend="neuron")
    before = LEDGER.total("fallback")
    torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 2.0))
    assert LEDGER.total("fallback") == before
    with pytest.raises(RuntimeError, match=message[0] if message else "nonzero"):
        run(torch.zeros(3))
    with pytest.raises(RuntimeError, match=message[0] if message else "nonzero"):
        compiled(torch.zeros(3))
