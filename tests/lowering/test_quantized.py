"""Products of 8-bit matrices, and of one matrix with several by groups of rows, against ATen."""

from __future__ import annotations

import pytest
import torch
from against_aten import call, check, work

from neuron_compiler.lowering.ops import quantized

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


# Groups with rows and without, and blocks that divide the groups and do not.
@pytest.mark.parametrize("ends", [[4, 4, 16], [0, 0, 16], [16, 16, 16], [5, 9, 16]], ids=str)
@pytest.mark.parametrize("block", [64, 3])
def test_grouped_products(monkeypatch: pytest.MonkeyPatch, ends: list[int], block: int) -> None:
    monkeypatch.setattr(quantized, "BLOCK", block)
    torch.manual_seed(0)
    rows, matrices = torch.randn(16, 32).bfloat16(), torch.randn(3, 32, 16).bfloat16()
    offsets = torch.tensor(ends, dtype=torch.int32)
    check(
        call(aten._grouped_mm.default, rows, matrices, offsets),
        call(aten._grouped_mm.default, matrices.mT.contiguous(), torch.randn(32, 16).bfloat16(), offsets),
        call(aten._grouped_mm.default, torch.randn(8, 16).bfloat16(), torch.randn(16, 24).bfloat16(), offsets),
        call(aten._grouped_mm.default, torch.randn(3, 8, 32).bfloat16(), matrices),
    )


def test_work_is_that_of_the_groups_together() -> None:
    rows, matrices = torch.randn(16, 32).bfloat16(), torch.randn(3, 32, 8).bfloat16()
    ends = torch.tensor([4, 4, 16], dtype=torch.int32)
    assert work(aten._grouped_mm.default, rows, matrices, ends).flops == 2 * 16 * 32 * 8
    assert work(aten._grouped_mm.default, rows.t().contiguous(), rows, ends).flops == 2 * 32 * 16 * 32
    assert work(aten._int_mm.default, int8(17, 8), int8(8, 16)).flops == 2 * 17 * 8 * 16
