"""Convolutions against ATen: every way in which one is lowered, forward and backward, and the work stated."""

from __future__ import annotations

import random
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from against_aten import Call, call, check, evaluate, lower, work
from torch.utils.flop_counter import FlopCounterMode

from neuron_compiler.ir.graph import DType, TensorType
from neuron_compiler.lowering.ops import convolution

aten = torch.ops.aten

FORWARD, BACKWARD = aten.convolution.default, aten.convolution_backward.default


def both(
    x: tuple[int, ...],
    weight: tuple[int, ...],
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
    transposed: bool = False,
    output_padding: int = 0,
    dtype: torch.dtype = torch.float32,
) -> tuple[Call, Call]:
    """A convolution with bias, and its gradient."""
    rank = len(x) - 2
    how = (
        *([n] * rank for n in (stride, padding, dilation)),
        transposed,
        [output_padding] * rank,
        groups,
    )
    image, kernel = torch.randn(x, dtype=dtype), torch.randn(weight, dtype=dtype)
    bias = torch.randn(weight[1] * groups if transposed else weight[0], dtype=dtype)
    grad = torch.randn_like(FORWARD(image, kernel, bias, *how))
    return (
        call(FORWARD, image, kernel, bias, *how),
        call(BACKWARD, grad, image, kernel, list(bias.shape), *how, [True, True, True]),
    )


CLOSE = {"rtol": 1e-4, "atol": 1e-4}

WAYS: dict[str, dict[str, Any]] = {
    "plain": {"x": (2, 3, 7, 6), "weight": (4, 3, 3, 2), "padding": 1},
    "one dimension": {"x": (2, 3, 9), "weight": (4, 3, 3), "stride": 2, "padding": 1},
    "three dimensions": {"x": (1, 2, 5, 4, 5), "weight": (3, 2, 2, 2, 2), "dilation": 2},
    "pointwise": {"x": (2, 3, 5, 5), "weight": (4, 3, 1, 1)},
    "pointwise with stride": {"x": (9, 3, 5, 6), "weight": (4, 3, 1, 1), "stride": 2},
    "patches": {"x": (2, 3, 7, 6), "weight": (4, 3, 2, 2), "stride": 2},
    "depthwise": {"x": (2, 6, 7, 7), "weight": (6, 1, 3, 3), "groups": 6, "stride": 2, "padding": 1},
    "depthwise with a multiplier": {"x": (2, 3, 7, 7), "weight": (6, 1, 3, 3), "groups": 3, "dilation": 2},
    "few groups": {"x": (2, 4, 6, 6), "weight": (6, 2, 3, 3), "groups": 2, "padding": 1},
    "many groups": {"x": (2, 20, 6, 6), "weight": (10, 2, 3, 3), "groups": 10, "stride": 2},
    "transposed": {"x": (2, 3, 4, 5), "weight": (3, 4, 3, 3), "stride": 2, "transposed": True, "output_padding": 1},
    "transposed patches": {"x": (2, 3, 4, 5), "weight": (3, 4, 2, 2), "stride": 2, "transposed": True},
    "transposed groups": {"x": (2, 6, 4, 4), "weight": (6, 2, 3, 3), "groups": 3, "padding": 1, "transposed": True},
    "more padding than kernel": {"x": (1, 2, 3, 3), "weight": (2, 2, 2, 2), "padding": 3},
}


@pytest.mark.parametrize("way", WAYS)
def test_forward_and_backward(way: str) -> None:
    torch.manual_seed(0)
    check(*both(**WAYS[way]), **CLOSE)


def test_a_small_image_under_a_large_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "LARGE_WEIGHT", 1)
    torch.manual_seed(0)
    check(*both((1, 3, 3, 3), (40, 3, 3, 3), padding=1), **CLOSE)


def test_groups_too_large_to_gather(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "MOST_GATHERED", 1)
    torch.manual_seed(0)
    check(*both(**WAYS["many groups"]), **CLOSE)


def test_random_geometries() -> None:
    torch.manual_seed(0)
    draw = random.Random(0)
    calls: list[Call] = []
    while len(calls) < 16:
        rank, groups = draw.choice([1, 2]), draw.choice([1, 1, 3])
        transposed = draw.random() < 0.5
        channels, features = groups * draw.choice([1, 2]), groups * draw.choice([1, 2])
        weight = (channels, features // groups) if transposed else (features, channels // groups)
        stride, dilation = draw.choice([1, 2, 3]), draw.choice([1, 2])
        try:
            calls += both(
                (draw.choice([1, 9]), channels, *(draw.choice([5, 6, 7]) for _ in range(rank))),
                (*weight, *(draw.choice([1, 2, 3]) for _ in range(rank))),
                stride,
                draw.choice([0, 1, 2]),
                dilation,
                groups,
                transposed,
                draw.randrange(max(stride, dilation)) if transposed else 0,
            )
        except RuntimeError:  # a geometry that ATen refuses
            continue
    check(*calls, **CLOSE)


def test_element_types() -> None:
    torch.manual_seed(0)
    check(*both((1, 2, 5, 5), (3, 2, 3, 3), padding=1, dtype=torch.float64))
    for dtype in (torch.bfloat16, torch.float16):
        check(*both((1, 2, 5, 5), (3, 2, 3, 3), padding=1, dtype=dtype))
        check(*both((1, 4, 5, 5), (4, 1, 3, 3), groups=4, dtype=dtype))
    x, weight = torch.randint(-9, 9, (1, 2, 5, 5)), torch.randint(-9, 9, (3, 2, 3, 3))
    check(call(FORWARD, x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1))


def test_half_precision_is_rounded_once() -> None:
    # 256.5 is no bfloat16: rounded after the bias, not before it.
    bias = torch.tensor([0.5])
    how = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    x = torch.tensor([256.0, 0.5]).reshape(1, 2, 1, 1).bfloat16()
    weight = torch.ones(1, 2, 1, 1).bfloat16()
    assert lower(FORWARD, x, weight, bias.bfloat16(), *how).item() == torch.tensor(257.0).bfloat16().item()


def test_empty_batch() -> None:
    how = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    x, weight = torch.randn(0, 2, 5, 5), torch.randn(3, 2, 3, 3)
    check(call(FORWARD, x, weight, torch.randn(3), *how))
    check(call(BACKWARD, torch.randn(0, 3, 5, 5), x, weight, [3], *how, [True, True, True]))


def test_only_the_gradients_asked_for() -> None:
    x, weight = torch.randn(1, 2, 4, 4), torch.randn(3, 2, 3, 3)
    how = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    (found,) = evaluate(call(BACKWARD, torch.randn(1, 3, 2, 2), x, weight, None, *how, [False, True, False]))
    assert [x is None for x in found] == [True, False, True]


@pytest.mark.parametrize(
    ("way", "primitive"), [("pointwise", "dot_general"), ("patches", "dot_general"), ("depthwise", "mul")]
)
def test_no_convolution_where_there_is_a_faster_sum(way: str, primitive: str) -> None:
    shapes = WAYS[way]
    groups, stride, padding = shapes.get("groups", 1), shapes.get("stride", 1), shapes.get("padding", 0)
    result = FORWARD(
        torch.empty(shapes["x"]),
        torch.empty(shapes["weight"]),
        None,
        [stride] * 2,
        [padding] * 2,
        [1, 1],
        False,
        [0, 0],
        groups,
    )
    out = TensorType(tuple(result.shape), DType.F32)
    text = str(
        jax.make_jaxpr(
            lambda x, w: convolution.convolution(
                x, w, None, (stride,) * 2, (padding,) * 2, (1, 1), False, (0, 0), groups, out=out
            )
        )(jnp.zeros(shapes["x"]), jnp.zeros(shapes["weight"]))
    )
    assert "conv_general_dilated" not in text
    assert primitive in text


@pytest.mark.parametrize("way", ["plain", "depthwise", "many groups", "transposed", "one dimension"])
def test_work_is_that_of_pytorchs_flop_counter(way: str) -> None:
    forward, backward = both(**WAYS[way])
    with FlopCounterMode(display=False) as counter:
        forward.overload(*forward.args)
    flops = work(forward.overload, *forward.args).flops
    assert flops == counter.get_total_flops() > 0
    # The counter forgets the groups in the gradient by weight: that is as much as forward, and so is that by image.
    assert work(backward.overload, *backward.args).flops == 2 * flops
