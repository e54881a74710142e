"""Products of 8-bit matrices against ATen."""

from __future__ import annotations

import pytest
import torch
from against_aten import call, check, work

aten = torch.ops.aten


def int8(*shape: int) -> torch.Tensor:
    return torch.randint(-128, 127, shape, dtype=torch.int8)


def test_int8_products() -> None:
    torch.manual_seed(0)
    scales = torch.rand(16)
    check(
        call(aten._int_mm.default, int8(17, 8), int8(8, 16)),
        call(aten._weight_int8pack_mm.default, torch.randn(4, 32), int8(16, 32), scales),
        call(aten._weight_int8pack_mm.default, torch.randn(4, 32).bfloat16(), int8(16, 32), scales.bfloat16()),
        rtol=1e-4,
        atol=1e-3,
    )


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_fp8_products(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(16, 32).to(dtype), torch.randn(16, 32).to(torch.float8_e4m3fn).t()
    half, third = torch.tensor(0.5), torch.tensor(0.3)
    scaled = aten._scaled_mm.default
    check(
        *(
            call(scaled, a, b, half, third, out_dtype=kind)
            for kind in (torch.float32, torch.bfloat16, torch.float8_e4m3fn)
        ),
        call(scaled, a, b, torch.rand(16, 1), torch.rand(1, 16), out_dtype=torch.float32),
        call(scaled, a, b, half, third, torch.randn(16).bfloat16(), out_dtype=torch.bfloat16),
        call(scaled, a, b, half, third, None, torch.tensor(2.0), out_dtype=torch.float32),
        rtol=1e-2,
        atol=1e-3,
    )


def test_work_counts_every_product() -> None:
    assert work(aten._int_mm.default, int8(17, 8), int8(8, 16)).flops == 2 * 17 * 8 * 16
