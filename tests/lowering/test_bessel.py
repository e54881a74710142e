"""Bessel and Airy functions against SciPy's, which ATen's double precision is not exact enough to judge."""

import op_check
import op_samples
import pytest
import torch
from scipy import special

FUNCTIONS = {
    "bessel_j0": special.j0,
    "bessel_j1": special.j1,
    "bessel_y0": special.y0,
    "bessel_y1": special.y1,
    "modified_bessel_k0": special.k0,
    "modified_bessel_k1": special.k1,
    "scaled_modified_bessel_k0": special.k0e,
    "scaled_modified_bessel_k1": special.k1e,
    "spherical_bessel_j0": lambda x: special.spherical_jn(0, x),
    "airy_ai": lambda x: special.airy(x)[0],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_on_both_sides_of_every_border(name: str) -> None:
    x = torch.cat(
        [torch.linspace(-40, 40, 3201, dtype=torch.float64), torch.logspace(-20, 3, 200, dtype=torch.float64)]
    )
    call = op_samples.made(f"aten.special_{name}.default", (x,), {})
    (found,) = op_check.evaluate([call])
    torch.testing.assert_close(found, torch.as_tensor(FUNCTIONS[name](x.numpy())), rtol=1e-9, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_limits_and_other_types(name: str) -> None:
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([-inf, inf, nan, 0.0, -0.0, -1.0, 1.0, 0.5, 3.0, 1e-30])
    overload = f"aten.special_{name}.default"
    op_check.check([op_samples.made(overload, (x,), {}), op_samples.made(overload, (torch.arange(-2, 8),), {})])
