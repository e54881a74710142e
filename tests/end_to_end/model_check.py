"""One model compiled whole and compared: what the acceptance tests share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch._dynamo.utils import counters

from neuron_compiler.capture import neuron
from neuron_compiler.ledger import LEDGER
from neuron_compiler.models import Example


def compiled(module: nn.Module) -> Any:
    """The module, to be compiled as one graph when it is called."""
    return torch.compile(module, backend=neuron, fullgraph=True)


def call(example: Example, module: Any = None) -> list[torch.Tensor]:
    """Results of the example's module, or of another, for its inputs; without gradients."""
    with torch.no_grad():
        return example.call(module)


def assert_whole() -> None:
    """Since the test began: one graph, one executable, nothing that ran eagerly."""
    assert counters["stats"]["unique_graphs"] == 1
    assert LEDGER.total("compile") == 1
    assert LEDGER.total("fallback") == 0, LEDGER.counts("fallback")
    assert [name for name in counters["neuron"] if "fallback" in name] == []


def rms(values: Sequence[float]) -> float:
    """Root of the mean square."""
    return (sum(v * v for v in values) / len(values)) ** 0.5
