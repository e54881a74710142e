"""Where eager rounds to bfloat16 and float16 on the way; the operands' sums are exact in float32, in any order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from agreement import assert_agree, compiled

from neuron_compiler.ledger import LEDGER

F = torch.nn.functional
HALVES = [torch.bfloat16, torch.float16]


def eighths(*shape: int, seed: int = 0) -> torch.Tensor:
    """Multiples of 1/8 between -4 and 4."""
    numbers = (torch.arange(math.prod(shape)) + 13 * seed) * 7919 % 1009 % 65 - 32
    return numbers.reshape(shape) / 8


def with_gradients(function: Callable[..., torch.Tensor], *operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
    result, pull = torch.func.vjp(function, *operands)
    return result, *pull(eighths(*result.shape, seed=9).to(result.dtype))


@pytest.mark.parametrize("dtype", HALVES)
def test_rounded_quotients(dtype: torch.dtype) -> None:
    x = (torch.randn(64, 64, generator=torch.Generator().manual_seed(0)) * 20).to(dtype)
    y = torch.randn(64, 64, generator=torch.Generator().manual_seed(1)).to(dtype)
    ways = {
        "truncated": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
        "floored": lambda x, y: torch.div(x, y, rounding_mode="floor"),
        "//": lambda x, y: x // y,
    }
    divisors = {
        "tensor": lambda f: lambda x, y: f(x, y),
        "row": lambda f: lambda x, y: f(x, y[3]),
        "one element": lambda f: lambda x, y: f(x, y[:1, :1]),
        "0-dim": lambda f: lambda x, y: f(x, y[0, 0]),
        "wider 0-dim": lambda f: lambda x, y: f(x, torch.tensor(0.3)),
        "number": lambda f: lambda x, y: f(x, 0.3),
    }
    assert_agree({f"{way} by {by}": make(f) for way, f in ways.items() for by, make in divisors.items()}, x, y)


@pytest.mark.parametrize("dtype", HALVES)
def test_convolutions(dtype: torch.dtype) -> None:
    """On processors without instructions for the half, eager adds kernel elements and samples up in it."""

    def of(convolution: Callable[..., torch.Tensor], *shapes: Sequence[int], **how: Any) -> Callable[..., Any]:
        def program(one: torch.Tensor) -> tuple[torch.Tensor, ...]:
            operands = [eighths(*shape, seed=i).to(one.dtype) * one for i, shape in enumerate(shapes)]
            return with_gradients(lambda *leaves: convolution(*leaves, **how), *operands)

        return program

    assert_agree(
        {
            "plain": of(F.conv2d, (3, 4, 6, 6), (5, 4, 3, 3), padding=1),
            "strided, dilated": of(F.conv2d, (2, 4, 9, 8), (5, 4, 3, 2), stride=2, dilation=2, padding=3),
            "groups": of(F.conv2d, (2, 4, 6, 5), (6, 2, 3, 2), groups=2),
            "depthwise": of(F.conv2d, (2, 4, 6, 6), (4, 1, 3, 3), groups=4),
            "1-D": of(F.conv1d, (2, 4, 9), (5, 4, 3), stride=2),
            "3-D": of(F.conv3d, (2, 2, 4, 5, 6), (3, 2, 2, 2, 3), stride=2, padding=1),
            "transposed": of(
                F.conv_transpose2d, (2, 4, 4, 4), (4, 3, 4, 5), stride=(3, 2), padding=1, output_padding=(2, 0)
            ),
            "transposed groups": of(F.conv_transpose2d, (2, 4, 4, 4), (4, 2, 3, 3), groups=2, dilation=2),
            "transposed 3-D": of(F.conv_transpose3d, (2, 2, 3, 3, 3), (2, 2, 4, 5, 6), stride=2),
        },
        torch.ones((), dtype=dtype),
    )


@pytest.mark.parametrize("dtype", HALVES)
def test_bilinear_forms(dtype: torch.dtype) -> None:
    a, b, w = eighths(6, 5), eighths(6, 7, seed=1), eighths(4, 5, 7, seed=2)
    assert_agree(
        {"with gradients": lambda *operands: with_gradients(F.bilinear, *operands)}, *(x.to(dtype) for x in (a, b, w))
    )


@pytest.mark.parametrize("dtype", HALVES)
def test_batch_norm_keeps_its_statistics_in_the_half(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x, mean = (torch.randn(s, generator=generator).to(dtype) for s in ((37, 50, 7), (50,)))
    var, weight, bias = (torch.rand(50, generator=generator).to(dtype) for _ in range(3))

    def program(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        running = mean.clone(), var.clone()
        return F.batch_norm(x, *running, weight, bias, True, 0.3, 0.6), *running

    for got, want in zip(compiled(program)(x, weight), program(x, weight), strict=True):
        # What is summed in another order may lie across a tie.
        assert (got != want).sum() <= max(1, want.numel() // 1000)
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_gradients_of_grid_sample_are_left_to_eager(mode: str) -> None:
    generator = torch.Generator().manual_seed(0)
    image, grid, grad = (
        torch.randn(s, generator=generator).bfloat16() for s in ((2, 3, 5, 6), (2, 7, 7, 2), (2, 3, 7, 7))
    )

    def program(image: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(image, grid, mode=mode, align_corners=False)

    def run(function: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, ...]:
        leaves = image.clone().requires_grad_(), grid.clone().requires_grad_()
        return torch.autograd.grad(function(*leaves), leaves, grad)

    for got, want in zip(run(torch.compile(program, backend="neuron")), run(program), strict=True):
        assert torch.equal(got, want)
    assert "gradients of grid_sample in half precision" in {entry.cause for entry in LEDGER.counts("fallback")}


@pytest.mark.parametrize("dtype", HALVES)
def test_a_product_is_rounded_before_it_is_added(dtype: torch.dtype) -> None:
    """Processors that compute with halves have one instruction for both, which does not round the product."""
    generator = torch.Generator().manual_seed(0)
    operands = [torch.randn(8192, generator=generator).to(dtype) for _ in range(3)]
    assert_agree(
        {
            "sum": lambda a, b, c: a * b + c,
            "difference": lambda a, b, c: c - a * b,
            "horner": lambda a, b, c: ((a * b + c) * b + c) * b + a,
        },
        *operands,
    )


def test_every_rounding_to_a_half() -> None:
    """Ties, subnormal results, overflow, signs of zero."""
    powers = 2.0 ** torch.arange(-26, 17).float()
    steps = torch.arange(-4096, 4096).float()
    edges = torch.tensor([65504.0, 65519.99, 65520.0, 1e-8, 0.0, math.inf, math.nan, 1e-40])
    values = torch.cat([(powers[:, None] * (1 + steps / 8192)).flatten(), steps * 2.0**-26, edges])
    assert_agree({"cast": lambda x: x.half(), "and back": lambda x: x.half().float() * 1}, torch.cat([values, -values]))
