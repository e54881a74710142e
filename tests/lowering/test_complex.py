"""Complex numbers where a program has them as Python numbers."""

from __future__ import annotations

import torch


def test_the_gradient_of_a_product_with_a_complex_number() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(torch.view_as_complex(x) * (0.5 + 0.25j)).square()

    x = torch.tensor([[1.0, 2.0], [-3.0, 0.5]], requires_grad=True)
    found = torch.compile(run, backend="neuron")(x)
    torch.testing.assert_close(found, run(x))
    # |z (a + ib)|^2 = |z|^2 (a^2 + b^2), whose gradient is 2 z (a^2 + b^2).
    torch.testing.assert_close(torch.autograd.grad(found.sum(), x)[0], 2 * x.detach() * 0.3125)
