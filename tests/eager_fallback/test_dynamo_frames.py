"""Dynamo meets the device's functions: not traced as frames of their own, traced into where a program calls them."""

from __future__ import annotations

import torch
from torch._dynamo.utils import counters
from torch.testing._utils import freeze_rng_state


def test_random_state_is_kept_around_a_part_that_cannot_be_traced() -> None:
    """PyTorch's own tests wrap random ops so: the state of the accelerator is set where no tensor can be made."""

    def run(x: torch.Tensor) -> torch.Tensor:
        with freeze_rng_state():
            torch.manual_seed(3)
            return torch.nn.functional.dropout(x, 0.5)

    x = torch.ones(100)
    torch.testing.assert_close(torch.compile(run, backend="neuron")(x), run(x))


def test_a_program_may_ask_for_the_device() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return x * (torch.neuron.current_device() + 2)  # type: ignore[attr-defined]

    x = torch.ones(3, device="neuron")
    counters.clear()
    assert torch.compile(run, backend="neuron", fullgraph=True)(x).tolist() == [2, 2, 2]
    assert not counters["graph_break"]
