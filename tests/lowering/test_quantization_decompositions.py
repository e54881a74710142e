"""Fake quantization, compiled, against ATen's kernels: values and gradients."""

from __future__ import annotations

import pytest
import torch

from neuron_compiler.ledger import LEDGER


def both(function, x: torch.Tensor) -> None:  # type: ignore[no-untyped-def]
    found = []
    for run in (function, torch.compile(function, backend="neuron")):
        given = x.clone().requires_grad_()
        result = run(given)
        result.sum().backward()
        found.append((result.detach(), given.grad))
    (wanted, wanted_grad), (got, grad) = found
    assert torch.equal(got, wanted)
    assert torch.equal(grad, wanted_grad)
    assert LEDGER.total("fallback") == 0


X = torch.tensor([[-3.0, -0.05, 0.0, 0.049, 0.05, 0.151], [0.25, 0.35, 1.0, 12.7, 12.8, 1e9]])


@pytest.mark.parametrize(
    ("scale", "zero_point", "low", "high"), [(0.1, 0, -128, 127), (0.1, 10, 0, 255), (0.03, -5, -8, 7)]
)
def test_per_tensor(scale: float, zero_point: int, low: int, high: int) -> None:
    both(lambda x: torch.fake_quantize_per_tensor_affine(x, scale, zero_point, low, high), X)
    s, z = torch.tensor([scale]), torch.tensor([zero_point], dtype=torch.int32)
    both(lambda x: torch.fake_quantize_per_tensor_affine(x, s, z, low, high), X)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", [torch.int32, torch.float32])
def test_per_channel(axis: int, dtype: torch.dtype) -> None:
    scale = torch.linspace(0.05, 0.4, X.shape[axis])
    zero_point = torch.arange(X.shape[axis]).to(dtype)
    both(lambda x: torch.fake_quantize_per_channel_affine(x, scale, zero_point, axis, -8, 120), X)


def test_a_switch_that_is_off() -> None:
    overload = torch.ops.aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams
    s, z = torch.tensor([0.1]), torch.tensor([0], dtype=torch.int32)
    for on in (0, 1):
        given = X, s, z, torch.tensor([on]), -8, 7
        wanted, found = overload(*given), torch.compile(overload, backend="neuron")(*given)
        assert all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_scale_and_zero_point_that_are_learned(axis: int | None) -> None:
    count = 1 if axis is None else X.shape[axis]
    weights = torch.linspace(-1, 1, X.numel()).reshape(X.shape)

    def run(x: torch.Tensor, scale: torch.Tensor) -> list[torch.Tensor]:
        made = []
        # Halves, where it shows that ATen rounds one way forward and another way backward.
        for first, low, high in ((3.5, -8, 7), (2.5, -8, 7), (-4.0, -8, 7), (-0.5, 0, 255), (300.0, 0, 255)):
            points = (torch.arange(count) * 1.5 + first).requires_grad_()
            if axis is None:
                result = torch._fake_quantize_learnable_per_tensor_affine(x, scale, points, low, high, 0.5)
            else:
                result = torch._fake_quantize_learnable_per_channel_affine(x, scale, points, axis, low, high, 0.5)
            made += [result, *torch.autograd.grad((result * weights).sum(), (x, scale, points))]
        return made

    given = X.clone().requires_grad_(), torch.linspace(0.1, 0.4, count).requires_grad_()
    for mine, theirs in zip(torch.compile(run, backend="neuron")(*given), run(*given), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
    assert LEDGER.total("fallback") == 0
