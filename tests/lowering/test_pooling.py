"""Pooling against ATen: windows of every kind, ties, NaN, and gradients."""

from __future__ import annotations

import random

import pytest
import torch
from against_aten import Call, call, check, lower, work

from neuron_compiler.lowering.ops import pooling

aten = torch.ops.aten


def image(*shape: int, content: str = "normal") -> torch.Tensor:
    x = torch.randn(shape)
    if content == "nan":
        x[torch.rand(shape) < 0.3] = float("nan")
    if content == "-inf":
        x[torch.rand(shape) < 0.7] = -float("inf")
    if content == "ties":
        x = x.round()
    if content == "integer":
        return torch.randint(-3, 3, shape)
    return x.bfloat16() if content == "bfloat16" else x


def with_backward(overload: object, backward: object, x: torch.Tensor, *how: object) -> tuple[Call, ...]:
    """The call, and that of its gradient by the indices that ATen found."""
    values, indices = overload(*(x, *how))
    forward = call(overload, x, *how)
    return forward, call(backward, torch.randn(values.shape).to(x.dtype), x, *how, indices)


@pytest.mark.parametrize("content", ["normal", "nan", "-inf", "ties", "integer", "bfloat16"])
def test_maximum_and_its_index(content: str) -> None:
    torch.manual_seed(0)
    check(
        call(aten.max_pool2d_with_indices.default, image(2, 3, 7, 6, content=content), [3, 2], [2, 1], [1, 1]),
        call(aten.max_pool2d_with_indices.default, image(3, 9, 9, content=content), [3, 3], [], [0, 0], [2, 2], True),
        call(aten.max_pool3d_with_indices.default, image(1, 2, 5, 4, 6, content=content), [2, 2, 3], [], [1, 1, 1]),
    )
    if content != "integer":
        check(call(aten.adaptive_max_pool2d.default, image(2, 3, 7, 6, content=content), [3, 4]))


def test_first_of_equals_and_last_nan() -> None:
    x = torch.tensor([[[1.0, 1.0, 1.0, 1.0]]])
    assert lower(aten.max_pool2d_with_indices.default, x, [1, 2])[1].flatten().tolist() == [0, 2]
    x[0, 0] = float("nan")
    assert lower(aten.max_pool2d_with_indices.default, x, [1, 2])[1].flatten().tolist() == [1, 3]


@pytest.mark.parametrize("most_taps", [32, 1])
def test_gradients_of_maxima(monkeypatch: pytest.MonkeyPatch, most_taps: int) -> None:
    monkeypatch.setattr(pooling, "MOST_TAPS", most_taps)
    torch.manual_seed(0)
    two, three = ([3, 3], [2, 2], [1, 1], [1, 1], True), ([2, 2, 2], [1, 1, 1], [0, 0, 0], [1, 1, 1], False)
    check(
        *with_backward(
            aten.max_pool2d_with_indices.default, aten.max_pool2d_with_indices_backward.default, image(2, 3, 7, 6), *two
        ),
        *with_backward(
            aten.max_pool3d_with_indices.default,
            aten.max_pool3d_with_indices_backward.default,
            image(2, 4, 4, 5),
            *three,
        ),
    )
    x = image(2, 3, 7, 6)
    values, indices = aten.adaptive_max_pool2d.default(x, [3, 4])
    cube = image(1, 2, 5, 4, 4)
    found, places = aten.adaptive_max_pool3d.default(cube, [2, 3, 4])
    check(
        call(aten.adaptive_max_pool2d_backward.default, torch.randn_like(values), x, indices),
        call(aten.adaptive_max_pool3d.default, cube, [2, 3, 4]),
        call(aten.adaptive_max_pool3d_backward.default, torch.randn_like(found), cube, places),
    )


def test_fractional_maxima() -> None:
    torch.manual_seed(0)
    for rank in (2, 3):
        forward = getattr(aten, f"fractional_max_pool{rank}d").default
        backward = getattr(aten, f"fractional_max_pool{rank}d_backward").default
        x = image(2, 3, *(7, 6, 5)[:rank])
        how = ([2] * rank, [3, 4, 1][:rank])
        values, indices = forward(x, *how, samples := torch.rand(2, 3, rank))
        check(
            call(forward, x, *how, samples),
            call(backward, torch.randn_like(values), x, *how, indices),
        )


@pytest.mark.parametrize("most_taps", [32, 1])
def test_averages(monkeypatch: pytest.MonkeyPatch, most_taps: int) -> None:
    monkeypatch.setattr(pooling, "MOST_TAPS", most_taps)
    torch.manual_seed(0)
    draw = random.Random(0)
    calls: list[Call] = []
    for rank in (2, 3, 2):
        forward, backward = (getattr(aten, f"avg_pool{rank}d{suffix}").default for suffix in ("", "_backward"))
        x = image(2, *(draw.choice([4, 5, 7]) for _ in range(rank)))
        kernel, stride = [draw.choice([2, 3]) for _ in range(rank)], [draw.choice([1, 2, 3]) for _ in range(rank)]
        how = (kernel, stride, [1] * rank, draw.random() < 0.5, draw.random() < 0.5, draw.choice([None, 3]))
        calls += [call(forward, x, *how), call(backward, torch.randn_like(forward(x, *how)), x, *how)]
    check(*calls, call(aten.avg_pool2d.default, torch.randint(-9, 9, (1, 4, 4)), [2, 2]))
    check(call(aten.avg_pool1d.default, image(2, 3, 7), [3], [2], [1], True, False))


def test_adaptive_averages() -> None:
    torch.manual_seed(0)
    calls: list[Call] = []
    for size in ([1, 1], [3, 4], [7, 6], [14, 2]):
        x = image(2, 3, 7, 6)
        forward = aten._adaptive_avg_pool2d.default
        calls += [
            call(forward, x, size),
            call(aten._adaptive_avg_pool2d_backward.default, torch.randn_like(forward(x, size)), x),
        ]
    x = image(2, 4, 5, 6)
    grad = torch.randn(2, 2, 3, 6)
    check(
        *calls,
        call(aten._adaptive_avg_pool3d.default, x, [2, 3, 6]),
        call(aten._adaptive_avg_pool3d_backward.default, grad, x),
        call(aten._adaptive_avg_pool2d.default, image(1, 7, 6, content="bfloat16"), [3, 4]),
        call(aten._adaptive_avg_pool2d.default, image(1, 7, 6), [0, 4]),
    )


def test_an_infinity_stays_in_its_windows() -> None:
    x = torch.zeros(1, 1, 6)
    x[0, 0, 5] = float("inf")
    assert lower(aten.avg_pool2d.default, x, [1, 2]).flatten().tolist() == [0, 0, float("inf")]
    assert lower(aten._adaptive_avg_pool2d.default, x, [1, 4]).isnan().sum() == 0


def test_work_is_one_operation_a_window_element() -> None:
    assert work(aten.max_pool2d_with_indices.default, image(2, 3, 6, 6), [3, 2]).flops == 2 * 3 * 2 * 3 * 6
    assert work(aten.avg_pool2d.default, image(3, 6, 6), [3, 2]).flops == 3 * 2 * 3 * 6
