"""Batch norm against ATen in each overload: running statistics, inference, no statistics, gradients."""

from __future__ import annotations

import pytest
import torch
from against_aten import lower
from many_calls import Batch

aten = torch.ops.aten


def _noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


WEIGHT, BIAS, MEAN, VAR = _noise(3, seed=1), _noise(3, seed=2), _noise(3, seed=3), _noise(3, seed=4).abs() + 0.5


def test_running_statistics_move_by_momentum_and_take_the_unbiased_variance() -> None:
    x = _noise(4, 3, 5)
    found = lower(aten._native_batch_norm_legit_functional.default, x, WEIGHT, BIAS, MEAN, VAR, True, 0.1, 1e-5)
    torch.testing.assert_close(found[3], 0.9 * MEAN + 0.1 * x.mean((0, 2)))
    torch.testing.assert_close(found[4], 0.9 * VAR + 0.1 * x.var((0, 2), correction=1))
    torch.testing.assert_close(found[2], (x.var((0, 2), correction=0) + 1e-5).rsqrt())


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (2, 3, 4, 5), (2, 3, 2, 2, 2)])
def test_every_overload_at_every_rank(shape: tuple[int, ...]) -> None:
    x = _noise(*shape) * 3 + 2
    with Batch() as check:
        for training in (True, False):
            check(aten._native_batch_norm_legit_functional.default, x, WEIGHT, BIAS, MEAN, VAR, training, 0.3, 1e-5)
        check(aten._native_batch_norm_legit_no_training.default, x, WEIGHT, BIAS, MEAN, VAR, 0.1, 1e-3)
        check(aten._native_batch_norm_legit_no_training.default, x, None, None, MEAN, VAR, 0.1, 1e-3)
        check(aten._native_batch_norm_legit.no_stats, x, None, None, True, 0.1, 1e-5)
        check(aten._batch_norm_with_update_functional.default, x, WEIGHT, BIAS, MEAN, VAR, 0.1, 1e-5)
        check(aten._batch_norm_no_update.default, x, WEIGHT, BIAS, MEAN, VAR, 0.1, 1e-5)


@pytest.mark.parametrize("train", [True, False])
def test_gradients(train: bool) -> None:
    x, grad = _noise(4, 3, 5), _noise(4, 3, 5, seed=5)
    _, mean, invstd = aten._native_batch_norm_legit.no_stats(x, WEIGHT, BIAS, True, 0.1, 1e-5)
    saved = (mean, invstd) if train else (torch.empty(0), torch.empty(0))
    with Batch() as check:
        for weight in (WEIGHT, None):
            for mask in ([True, True, True], [True, False, False]):
                check(
                    aten.native_batch_norm_backward.default,
                    grad,
                    x,
                    weight,
                    MEAN,
                    VAR,
                    *saved,
                    train,
                    1e-5,
                    [mask[0], mask[1] and weight is not None, mask[2]],
                )


def test_half_precision_is_computed_in_float32() -> None:
    x = (_noise(8, 3, 20) * 3 + 2).bfloat16()
    exact = torch.nn.functional.batch_norm(x.float(), MEAN, VAR, WEIGHT, BIAS)
    result, *_ = lower(aten._native_batch_norm_legit_no_training.default, x, WEIGHT, BIAS, MEAN, VAR, 0.1, 1e-5)
    assert (result != exact.bfloat16()).sum() <= 2
