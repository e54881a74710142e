"""Writes through expanded views give what eager gives, which no traced graph does; all other writes are compiled."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

from neuron_compiler.errors import UnsupportedOp
from neuron_compiler.ledger import LEDGER

Write = Callable[[torch.Tensor], object]


EXPANDED: dict[str, Write] = {
    "fill_": lambda x: x.expand(2, 3).fill_(3),
    "zero_": lambda x: x.unsqueeze(0).expand(2, 3).zero_(),
    "a row": lambda x: x.expand(2, 3)[0].mul_(5),
    "transposed": lambda x: x.expand(2, 3).t().select(1, 1).add_(1),
    "function": lambda x: torch.zero_(x.broadcast_to(2, 3)),
    "under vmap": lambda x: torch.vmap(lambda one: one.expand(2).fill_(3))(x),
}
ORDINARY: dict[str, Write] = {
    "base": lambda x: (x.expand(2, 3).sum(), x.mul_(2)),
    "size 1": lambda x: x.expand(1, 3).fill_(3),
    "a copy": lambda x: x.expand(2, 3).clone().fill_(3),
    "a view": lambda x: x[1:].zero_(),
    "under vmap": lambda x: torch.vmap(lambda row: row.mul_(2))(x[:, None]),
    "of a copy under vmap": lambda x: x.copy_(torch.vmap(lambda row: row.clone().fill_(3).sum())(x[:, None])),
}


def both(write: Write, **options: object) -> tuple[torch.Tensor, torch.Tensor]:
    def run(x: torch.Tensor) -> torch.Tensor:
        write(x)
        return x + 1

    eager, compiled = torch.arange(3.0), torch.arange(3.0)
    wanted = run(eager)
    found = torch.compile(run, backend="neuron", options=options)(compiled)
    assert torch.equal(found, wanted)
    assert torch.equal(compiled, eager)
    return found, wanted


@pytest.mark.parametrize("name", EXPANDED)
def test_left_to_eager_and_counted(name: str) -> None:
    both(EXPANDED[name])
    ((entry, count),) = LEDGER.counts("fallback").items()
    assert count == 1
    assert "expanded view" in entry.cause
    assert __file__ in entry.site


@pytest.mark.parametrize("name", ORDINARY)
def test_other_writes_are_compiled(name: str) -> None:
    both(ORDINARY[name])
    assert LEDGER.total("fallback") == 0


def test_strict_refuses() -> None:
    with pytest.raises(BackendCompilerFailed, match="writes through an expanded view") as raised:
        both(EXPANDED["fill_"], strict=True)
    assert isinstance(raised.value.inner_exception, UnsupportedOp)
