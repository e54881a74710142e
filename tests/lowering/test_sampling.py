"""Sampling at given places against ATen: modes, paddings, borders, NaN, and both gradients."""

from __future__ import annotations

import pytest
import torch
from against_aten import call, check, evaluate, work

aten = torch.ops.aten


@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("aligned", [False, True])
def test_two_dimensions(mode: int, padding: int, aligned: bool) -> None:
    torch.manual_seed(0)
    image = torch.randn(2, 2, 4, 3, dtype=torch.float64)
    inside = torch.rand(2, 3, 2, 2, dtype=torch.float64) * 1.8 - 0.9
    # On elements, on the border and far outside.
    far = (torch.randn(2, 3, 2, 2, dtype=torch.float64) * 6).round() / 3
    how = (mode, padding, aligned)
    calls = []
    for grid in (inside, far):
        grad = torch.randn(2, 2, 3, 2, dtype=torch.float64)
        calls += [
            call(aten.grid_sampler_2d.default, image, grid, *how),
            call(aten.grid_sampler_2d_backward.default, grad, image, grid, *how, [True, True]),
        ]
    check(*calls, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("padding", [0, 1, 2])
def test_three_dimensions(padding: int) -> None:
    torch.manual_seed(0)
    image, grid = torch.randn(1, 2, 3, 4, 2), torch.randn(1, 2, 2, 3, 3)
    grad = torch.randn(1, 2, 2, 2, 3)
    check(
        *(call(aten.grid_sampler_3d.default, image, grid, mode, padding, False) for mode in (0, 1)),
        *(
            call(aten.grid_sampler_3d_backward.default, grad, image, grid, mode, padding, True, [True, True])
            for mode in (0, 1)
        ),
        rtol=1e-4,
        atol=1e-5,
    )


def test_places_that_are_no_numbers() -> None:
    inf, nan = float("inf"), float("nan")
    grid = torch.tensor([[[[nan, 0.0], [0.0, inf], [-inf, nan], [1e20, 0.0]]]])
    image = torch.randn(1, 1, 3, 3)
    check(
        *(
            call(aten.grid_sampler_2d.default, image, grid, mode, padding, True)
            for mode in (0, 1, 2)
            for padding in (0, 1, 2)
        )
    )


def test_only_the_gradients_asked_for() -> None:
    image, grid, grad = torch.randn(1, 1, 3, 3), torch.rand(1, 2, 2, 2), torch.randn(1, 1, 2, 2)
    (found,) = evaluate(call(aten.grid_sampler_2d_backward.default, grad, image, grid, 0, 0, True, [False, True]))
    assert found[0] is None
    assert found[1] is not None


def test_work_is_a_multiply_add_for_each_element_read() -> None:
    image, grid = torch.randn(1, 3, 4, 4), torch.rand(1, 2, 5, 2)
    assert work(aten.grid_sampler_2d.default, image, grid, 0, 0, True).flops == 2 * 4 * 3 * 10
    assert work(aten.grid_sampler_2d.default, image, grid, 2, 0, True).flops == 2 * 16 * 3 * 10


@pytest.mark.parametrize("mode", range(3), ids=["bilinear", "nearest", "bicubic"])
def test_half_precisions_round_each_step(mode: int) -> None:
    """Coordinates of eight bits name other elements than exact ones; eager's are meant, to the bit."""
    torch.manual_seed(0)
    calls = []
    for space, overload in (((5, 20), aten.grid_sampler_2d.default), ((4, 5, 6), aten.grid_sampler_3d.default)):
        if mode == 2 and len(space) == 3:
            continue
        image = torch.randn(2, 3, *space, dtype=torch.bfloat16)
        grid = (torch.randn(2, *(7,) * len(space), len(space)) * 1.2).bfloat16()
        calls.append(call(overload, image, grid, mode, len(space) - 2, False))
    for made, found in zip(calls, evaluate(*calls), strict=True):
        wanted = made.overload(*made.args)
        assert torch.equal(found[0], wanted)
        exact = made.overload(*(x.float() if isinstance(x, torch.Tensor) else x for x in made.args))
        assert not torch.equal(exact.bfloat16(), wanted), "the steps matter"


def test_the_gradient_of_an_image_sampled_at_constant_places_compiles() -> None:
    torch.manual_seed(0)
    places = torch.rand(2, 3, 2, 2) * 1.8 - 0.9

    def run(image: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.grid_sample(image, places, align_corners=False).square()

    image = torch.randn(2, 2, 4, 3, requires_grad=True)
    (wanted,) = torch.autograd.grad(run(image).sum(), image)
    (found,) = torch.autograd.grad(torch.compile(run, backend="neuron")(image).sum(), image)
    torch.testing.assert_close(found, wanted)
