"""Distances against ATen: every norm, many rows, equal rows, gradients."""

from __future__ import annotations

import pytest
import torch
from many_calls import Batch

aten = torch.ops.aten
INF = float("inf")


def _noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, 3.0, INF])
def test_distances_and_their_gradients(p: float) -> None:
    x, y = _noise(2, 5, 3), _noise(2, 4, 3, seed=1)
    y[:, 0] = x[:, 1]  # a distance of zero
    x[0, 0, 1] = y[0, 2, 1]  # a zero component of a distance
    distance, grad = aten._cdist_forward(x, y, p, None), _noise(2, 5, 4, seed=2)
    with Batch() as check:
        check(aten._cdist_forward.default, x, y, p, None)
        check(aten._cdist_backward.default, grad, x, y, p, distance)
        check(aten._pdist_forward.default, x[0], p)
        check(aten._pdist_backward.default, _noise(10, seed=3), x[0], p, aten._pdist_forward(x[0], p))


def test_many_rows_are_measured_by_a_product() -> None:
    x, y = _noise(40, 8), _noise(3, 8, seed=1)
    with Batch() as check:
        for mode in (None, 0, 1, 2):
            check(aten._cdist_forward.default, x, y, 2.0, mode)
        check(aten._cdist_forward.default, x[:0], y, 2.0, None)
        check(aten._cdist_forward.default, _noise(2, 1, 30, 4), _noise(3, 30, 4, seed=1), 2.0, None)


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, INF])
def test_distance_of_two_tensors(p: float) -> None:
    with Batch() as check:
        check(aten.dist.default, _noise(3, 1), _noise(4, seed=1), p)
        check(aten.dist.default, torch.tensor(1.0), torch.tensor(3.0), p)
