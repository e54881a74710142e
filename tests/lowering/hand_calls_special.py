"""Calls that the op database does not make, of special functions and orthogonal polynomials."""

from __future__ import annotations

from typing import Any

import torch

Call = tuple[tuple[Any, ...], dict[str, Any]]

POLYNOMIALS = (
    *(f"{prefix}chebyshev_polynomial_{kind}" for prefix in ("", "shifted_") for kind in "tuvw"),
    "hermite_polynomial_h",
    "hermite_polynomial_he",
    "laguerre_polynomial_l",
    "legendre_polynomial_p",
)
_POINTS = (-2.5, -1.0, -0.7, -0.0, 0.0, 0.2, 0.5, 0.9, 1.0, 1.5)
_DEGREES = (-1, 0, 1, 2, 5, 7, 9, 30)


def _polynomial(name: str) -> dict[str, tuple[Call, ...]]:
    points = [torch.tensor(_POINTS, dtype=d) for d in (torch.float32, torch.float64)]
    return {
        f"aten.special_{name}.x_scalar": tuple(
            ((x, torch.tensor(_DEGREES, dtype=d)), {}) for x in (-0.3, 1.0, 2) for d in (torch.float32, torch.int64)
        ),
        f"aten.special_{name}.n_scalar": tuple(((x, n), {}) for x in points for n in (0, 3, 12.0)),
    }


CALLS: dict[str, tuple[Call, ...]] = {k: v for name in POLYNOMIALS for k, v in _polynomial(name).items()}
_SHAPES = torch.tensor([1e-3, 0.1, 0.8, 1.0, 2.5, 7.9, 8.1, 30.0, 1000.0])
CALLS["aten._standard_gamma_grad.default"] = tuple(
    ((_SHAPES.to(dtype).repeat_interleave(12), torch.tensor(factors, dtype=dtype).repeat(9) * scale), {})
    for dtype in (torch.float32, torch.float64)
    for factors in ((0.0, 1e-6, 0.1, 0.5, 0.79, 0.81, 1.0, 2.0, 7.0, 9.0, 29.0, 990.0),)
    for scale in (1.0, 1.2)
)
