"""Ops that address memory by strides, and results in the memory format of an argument."""

from __future__ import annotations

import pytest
import torch

from neuron_compiler.capture import neuron
from neuron_compiler.ledger import LEDGER

aten = torch.ops.aten


def _check(function: object, *inputs: torch.Tensor) -> None:
    torch._dynamo.reset()
    before = LEDGER.total("fallback")
    found = torch.compile(function, backend=neuron, fullgraph=True)(*inputs)
    assert LEDGER.total("fallback") == before, LEDGER.counts("fallback")
    torch.testing.assert_close(found, function(*inputs), rtol=0, atol=0, check_stride=True)


CONTIGUOUS = torch.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize("x", [CONTIGUOUS, CONTIGUOUS.t(), CONTIGUOUS[:, None]], ids=["rows", "columns", "unit"])
def test_as_strided_copies_and_scatters(x: torch.Tensor) -> None:
    _check(lambda x: torch.as_strided_copy(x, (2, 3), (1, 2), 1), x)
    _check(lambda x: torch.as_strided_copy(x + 1, (2, 2), (4, 1)), x)
    source = torch.tensor([[-1.0, -2.0], [-3.0, -4.0]])
    _check(lambda x, y: torch.as_strided_scatter(x, y, (2, 2), (5, 1), 2), x, source)
    _check(lambda x, y: torch.as_strided_scatter(x * 2, y, (2, 2), (1, 2)), x, source)


def test_unpooling_keeps_the_memory_format() -> None:
    x = torch.arange(96.0).reshape(2, 3, 4, 4)
    for given in (x, x.to(memory_format=torch.channels_last)):
        pooled, places = torch.nn.functional.max_pool2d(given, 2, return_indices=True)
        _check(lambda p, i: torch.nn.functional.max_unpool2d(p, i, 2), pooled, places)
