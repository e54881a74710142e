"""Histograms against ATen at the edges of bins and of the range."""

from __future__ import annotations

import pytest
import torch
from against_aten import lower
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


def test_given_bins_weights_and_density() -> None:
    x = torch.tensor([0.0, 0.25, 0.5, 1.0, 1.0, -0.1, 1.1, NAN, 0.999, INF, 3.0, 2.0])
    weight = torch.arange(12.0)
    edges = torch.tensor([0.0, 0.5, 0.5, 1.0, 3.0])
    with Batch() as check:
        for density in (False, True):
            check(aten.histogram.bin_ct, x, 4, range=(0, 1), weight=weight, density=density)
            check(aten.histogram.bin_ct, x[:7].double(), 7, density=density)
        check(aten.histogram.bins_tensor, x, edges, weight=weight)
        check(aten.histogram.bins_tensor, x, edges[1:4:2], density=True)
        check(aten.histogram.bin_ct, torch.zeros(0), 3)
        check(aten.histogram.bin_ct, torch.ones(3), 3)
    assert failures(aten.histogram.bin_ct, torch.tensor([1.0, NAN]), 4)[0][0] is RuntimeError


def test_points_of_several_dimensions() -> None:
    points = torch.rand(40, 2, generator=torch.Generator().manual_seed(0)) * 3 - 1
    edges = [torch.tensor([-1.0, 0.0, 2.0]), torch.tensor([-0.5, 0.0, 0.25, 1.0])]
    with Batch() as check:
        for span in (None, (-1, 1, 0, 1.5)):
            check(aten._histogramdd_bin_edges.default, points, [3, 2], range=span)
            check(aten._histogramdd_from_bin_cts.default, points, [3, 2], range=span, density=True)
        check(aten._histogramdd_from_bin_tensors.default, points, edges, weight=torch.arange(40.0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precisions_round_each_step_on_the_way_to_the_bin(dtype: torch.dtype) -> None:
    x = (torch.randn(200, generator=torch.Generator().manual_seed(0)) * 5).to(dtype)
    for bins, low, high in ((100, 0, 0), (100, -10, 10), (33, -1.3, 2.7)):
        wanted = torch.histc(x, bins, low, high)
        assert torch.equal(lower(aten.histc.default, x, bins, low, high), wanted)
        if low == -10:
            assert not torch.equal(torch.histc(x.float(), bins, low, high).to(dtype), wanted), "the steps matter"
