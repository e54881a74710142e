"""Layer and group norm against ATen: half precision, far from zero, without parameters, masked gradients."""

from __future__ import annotations

import pytest
import torch
from against_aten import lower
from many_calls import Batch

aten = torch.ops.aten


def _noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_variance_holds_far_from_zero() -> None:
    x = _noise(8, 1024) + 1e4
    exact = torch.nn.functional.layer_norm(x.double(), (1024,))
    result, _, _ = lower(aten.native_layer_norm.default, x, [1024], None, None, 1e-5)
    theirs = torch.nn.functional.layer_norm(x, (1024,))
    assert (result - exact).abs().max() <= 2 * (theirs - exact).abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_layer_norm(dtype: torch.dtype) -> None:
    x = (_noise(2, 3, 8) * 2 + 1).to(dtype)
    weight, bias = _noise(8, seed=1).to(dtype), _noise(8, seed=2).to(dtype)
    with Batch() as check:
        check(aten.native_layer_norm.default, x, [8], weight, bias, 1e-5)
        check(aten.native_layer_norm.default, x, [3, 8], None, None, 1e-3)
        check(aten.native_layer_norm.default, x, [8], weight, None, 1e-5)
        check(aten.native_layer_norm.default, x[:0], [8], weight, bias, 1e-5)


def test_half_input_with_float_parameters_is_rounded_once() -> None:
    x = _noise(4, 256).bfloat16()
    weight, bias = _noise(256, seed=1), _noise(256, seed=2)
    exact = torch.nn.functional.layer_norm(x.float(), (256,), weight, bias)
    result, _, _ = lower(aten.native_layer_norm.default, x, [256], weight, bias, 1e-5)
    assert (result != exact.bfloat16()).sum() <= 2  # the last bit of float32 may turn a tie


@pytest.mark.parametrize("mask", [[True, True, True], [True, False, False], [False, True, True]])
def test_layer_norm_gradients(mask: list[bool]) -> None:
    x, grad, weight, bias = _noise(4, 3, 8), _noise(4, 3, 8, seed=3), _noise(8, seed=1), _noise(8, seed=2)
    _, mean, rstd = aten.native_layer_norm(x, [8], weight, bias, 1e-5)
    with Batch() as check:
        check(aten.native_layer_norm_backward.default, grad, x, [8], mean, rstd, weight, bias, mask)
        if mask == [True, False, False]:
            check(aten.native_layer_norm_backward.default, grad, x, [8], mean, rstd, None, None, mask)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_group_norm_and_its_gradients(dtype: torch.dtype) -> None:
    x, grad = _noise(2, 6, 4, 5).to(dtype), _noise(2, 6, 4, 5, seed=3).to(dtype)
    weight, bias = _noise(6, seed=1).to(dtype), _noise(6, seed=2).to(dtype)
    with Batch() as check:
        for groups in (1, 2, 6):
            check(aten.native_group_norm.default, x, weight, bias, 2, 6, 20, groups, 1e-5)
            check(aten.native_group_norm.default, x, None, None, 2, 6, 20, groups, 1e-5)
            _, mean, rstd = aten.native_group_norm(x, weight, bias, 2, 6, 20, groups, 1e-5)
            for mask in ([True, True, True], [True, False, False]):
                check(aten.native_group_norm_backward.default, grad, x, mean, rstd, weight, 2, 6, 20, groups, mask)
