"""Orthogonal polynomials at the ends of their interval, inside and outside, from negative degrees to very high ones."""

import op_check
import op_samples
import pytest
import torch
from hand_calls_special import POLYNOMIALS

POINTS = (-2.5, -1, -0.9999, -0.7, -0.0, 0, 0.2, 0.5, 0.75, 1, 1.5, 3, float("nan"), float("inf"), -float("inf"))
DEGREES = (-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 30, 31, 127, 128, 129, 600, float("nan"))


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_every_branch_of_atens_kernel(name: str) -> None:
    calls = []
    for dtype in (torch.float32, torch.float64):
        points, degrees = torch.tensor(POINTS, dtype=dtype), torch.tensor(DEGREES, dtype=dtype)
        calls.append(op_samples.made(f"aten.special_{name}.default", (points[:, None], degrees), {}))
    op_check.check(calls)
