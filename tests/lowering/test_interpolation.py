"""Resizing against ATen: every mode, given factors, aligned corners, and gradients."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from against_aten import Call, call, check, lower, work

from neuron_compiler.lowering.ops import interpolation

aten = torch.ops.aten

MODES = (
    ("upsample_nearest1d", 1, False),
    ("upsample_nearest2d", 2, False),
    ("upsample_nearest3d", 3, False),
    ("_upsample_nearest_exact1d", 1, False),
    ("_upsample_nearest_exact2d", 2, False),
    ("_upsample_nearest_exact3d", 3, False),
    ("upsample_linear1d", 1, True),
    ("upsample_bilinear2d", 2, True),
    ("upsample_trilinear3d", 3, True),
    ("upsample_bicubic2d", 2, True),
    ("_upsample_bilinear2d_aa", 2, True),
    ("_upsample_bicubic2d_aa", 2, True),
    ("_upsample_lanczos2d_aa", 2, True),
)


@pytest.mark.parametrize(("name", "rank", "aligned"), MODES)
def test_forward_and_backward(name: str, rank: int, aligned: bool) -> None:
    torch.manual_seed(0)
    draw = random.Random(name)
    forward, backward = getattr(aten, name).default, getattr(aten, name + "_backward").default
    calls: list[Call] = []
    for dtype in (torch.float32, torch.float32, torch.float64):
        image = [draw.choice([2, 3, 5, 7, 10]) for _ in range(rank)]
        sizes = [draw.choice([n, 2 * n, 3 * n, 2, 5, n // 2 + 1]) for n in image]
        x = torch.randn(2, 2, *image, dtype=dtype)
        corners = [draw.random() < 0.5] if aligned else []
        factors = draw.choice([[None] * rank, [m / n * 0.99 for n, m in zip(image, sizes, strict=True)]])
        result = forward(x, sizes, *corners, *factors)
        calls += [
            call(forward, x, sizes, *corners, *factors),
            call(backward, torch.randn_like(result), sizes, list(x.shape), *corners, *factors),
        ]
    check(*calls)


def test_halves_are_rounded_once() -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 2, 5, 6).bfloat16()
    check(
        call(aten.upsample_bilinear2d.default, x, [7, 9], False),
        call(aten.upsample_bicubic2d.default, x, [7, 9], True),
        call(aten.upsample_nearest2d.default, x, [7, 9]),
        call(aten.upsample_nearest2d.default, torch.randint(0, 255, (1, 1, 3, 3), dtype=torch.uint8), [5, 6]),
    )


def test_antialiased_results_one_element_wide() -> None:
    # ATen repeats the first row for a contiguous image: it is compared in the layout where it does not.
    x = torch.randn(1, 2, 10, 3)
    expected = aten._upsample_bilinear2d_aa.default(x.contiguous(memory_format=torch.channels_last), [5, 1], False)
    torch.testing.assert_close(lower(aten._upsample_bilinear2d_aa.default, x, [5, 1], False), expected)


def test_the_gradient_table_is_the_table_read_the_other_way() -> None:
    table = interpolation.linear(5, 7, False, None, np.float64)
    dense = np.zeros((5, 7))
    back = np.zeros((7, 5))
    for tap, result in np.ndindex(table.place.shape):
        dense[table.place[tap, result], result] += table.weight[tap, result]
    transposed = table.transposed()
    for tap, element in np.ndindex(transposed.place.shape):
        if transposed.valid[tap, element]:
            back[transposed.place[tap, element], element] += transposed.weight[tap, element]
    np.testing.assert_allclose(back, dense.T)
    np.testing.assert_allclose(dense.sum(axis=0), 1)


def test_work_counts_the_taps() -> None:
    x = torch.randn(2, 3, 4, 5)
    assert work(aten.upsample_nearest2d.default, x, [8, 10]).flops == 0
    assert work(aten.upsample_bilinear2d.default, x, [8, 10], False).flops == 2 * 2 * 2 * 2 * 3 * 8 * 10
