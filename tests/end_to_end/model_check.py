"""One model compiled whole and compared: what the acceptance tests share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.utils import counters

from neuron_compiler.capture import neuron
from neuron_compiler.compile import Compilation, recording
from neuron_compiler.ledger import LEDGER
from neuron_compiler.measure.difference import Difference, difference
from neuron_compiler.models import Example


@dataclass(frozen=True)
class Run:
    """What compiling and one call gave."""

    results: list[torch.Tensor]
    compilations: list[Compilation]


def run(example: Example) -> Run:
    """Compile the example's module as one graph and call it without gradients."""
    with recording() as compilations, torch.no_grad():
        compiled: Any = torch.compile(example.module, backend=neuron, fullgraph=True)
        results = example.call(compiled)
    return Run(results, compilations)


def eager(example: Example) -> list[torch.Tensor]:
    """The example's results without a compiler."""
    with torch.no_grad():
        return example.call()


def assert_whole(made: Run) -> None:
    """One graph, one executable, nothing that runs eagerly."""
    assert counters["stats"]["unique_graphs"] == 1
    assert [c.executable.name for c in made.compilations] == [made.compilations[0].program.graph.name]
    assert LEDGER.counts("fallback") == {}
    assert LEDGER.total("fallback") == 0
    assert [name for name in counters["neuron"] if "fallback" in name] == []
    assert len(made.compilations) == 1


def distance(example: Example, reference: list[torch.Tensor]) -> Difference:
    """How far the compiled example is from the reference; asserts that it was compiled whole."""
    made = run(example)
    assert_whole(made)
    return difference(made.results, reference)
