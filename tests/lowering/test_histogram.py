"""Histograms against ATen at the edges of bins and of the range."""

from __future__ import annotations

import torch
from many_calls import Batch, failures

aten = torch.ops.aten
NAN, INF = float("nan"), float("inf")


def test_edges_and_what_lies_outside() -> None:
    x = torch.tensor([0.0, 0.25, 0.5, 1.0, 1.0, -0.1, 1.1, NAN, 0.999, INF])
    with Batch() as check:
        check(aten.histc.default, x, 4, 0, 1)
        check(aten.histc.default, x, 3, -1, 0.7)
        check(aten.histc.default, x[:7], 5)
        check(aten.histc.default, torch.full((3,), 2.0), 5)
        check(aten.histc.default, torch.zeros(0), 5)
        check(aten.histc.default, x[:7].double().reshape(7, 1), 10, 0, 1)


def test_a_range_of_the_elements_has_to_be_finite() -> None:
    for bad in (NAN, INF):
        assert failures(aten.histc.default, torch.tensor([1.0, bad]), 4)[0][0] is RuntimeError
        assert failures(aten.histc.default, torch.tensor([1.0, bad]), 4, 0, 2) == []
