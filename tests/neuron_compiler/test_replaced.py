"""Functions that tracing gets wrong, in every backend, give what eager gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing import assert_close


def both(f: Callable[..., Any], *args: torch.Tensor) -> tuple[Any, Any]:
    """Results of eager and compiled, with the arguments as they are after the call."""

    def run(g: Callable[..., Any]) -> Any:
        given = [a.clone() for a in args]
        return g(*given), given

    return run(f), run(torch.compile(f, backend="neuron"))


@pytest.mark.parametrize("n", [0, 1, 3])
def test_polygamma_in_place(n: int) -> None:
    wanted, found = both(lambda x: x.polygamma_(n) * 2, torch.rand(5) + 0.5)
    assert_close(found, wanted)


@pytest.mark.parametrize("hermitian", [False, True])
def test_matrix_rank_writes_out(hermitian: bool) -> None:
    x = torch.diag(torch.tensor([1.0, 2.0, 0.0, 3.0]))
    wanted, found = both(lambda x, out: torch.linalg.matrix_rank(x, hermitian=hermitian, out=out), x, torch.tensor(77))
    assert found[0].item() == found[1][1].item() == 3
    assert_close(found, wanted)


def test_batch_norm_writes_out() -> None:
    torch.manual_seed(0)
    mean, var = torch.randn(3), torch.rand(3) + 0.5

    def f(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor, *out: torch.Tensor) -> Any:
        return torch._native_batch_norm_legit(x, None, None, mean, var, True, 0.5, 1e-5, out=out)

    wanted, found = both(f, torch.randn(4, 3, 5), mean, var, torch.empty(4, 3, 5), torch.empty(3), torch.empty(3))
    assert_close(found, wanted)
