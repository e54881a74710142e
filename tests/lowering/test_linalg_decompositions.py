"""The determinant against ATen, forward and backward, for every way the matrix may lie in memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch.fx.experimental.proxy_tensor import make_fx

from neuron_compiler.lowering.linalg_decompositions import DECOMPOSITIONS

aten = torch.ops.aten


def matrices(dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(0)
    plain = torch.randn(3, 3, dtype=dtype) + 3 * torch.eye(3, dtype=dtype)
    batch = torch.randn(2, 3, 3, dtype=dtype) - 2 * torch.eye(3, dtype=dtype)
    return [plain, plain.mT, batch, batch.mT]


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("index", range(4))
@pytest.mark.parametrize("overload", [aten._linalg_det.default, aten._linalg_slogdet.default], ids=str)
def test_determinant(overload: object, dtype: torch.dtype, index: int) -> None:
    _same_as_aten(overload, matrices(dtype)[index])


def _same_as_aten(overload: Callable[..., object], *args: torch.Tensor, **kwargs: object) -> None:
    expected = overload(*args, **kwargs)
    found = DECOMPOSITIONS[overload](*args, **kwargs)
    torch.testing.assert_close(found, expected, check_stride=False)


@pytest.mark.parametrize("index", range(4))
def test_gradient_through_a_traced_determinant(index: int) -> None:
    a = matrices(torch.float64)[index]

    def gradient(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = a.detach().requires_grad_()
        return torch.autograd.grad(torch.linalg.slogdet(a)[1].sum() + torch.det(a).sum(), a)

    with enable_python_dispatcher():
        traced = make_fx(gradient, decomposition_table=dict(DECOMPOSITIONS))(a)
    assert not any(str(node.target) in map(str, DECOMPOSITIONS) for node in traced.graph.nodes)
    torch.testing.assert_close(traced(a), gradient(a))
