"""Fourier transforms against ATen: dimensions, normalisations, halves of real ones."""

from __future__ import annotations

import pytest
import torch
from against_aten import call, check, lower, work

aten = torch.ops.aten


@pytest.mark.parametrize("dims", [[1], [0, 2], [2, 0], [0, 1, 2, 3]], ids=str)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_transforms(dims: list[int], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4, 5, 2, dtype=dtype)
    size = x.shape[dims[-1]]
    check(
        *(call(aten._fft_c2c.default, x, dims, norm, forward) for norm in (0, 1, 2) for forward in (False, True)),
        *(call(aten._fft_r2c.default, x.real.contiguous(), dims, norm, norm != 2) for norm in (0, 1, 2)),
        *(call(aten._fft_c2r.default, x, dims, norm, 2 * (size - 1) + norm % 2) for norm in (0, 1, 2)),
        rtol=1e-4,
        atol=1e-4,
    )


def test_the_mirrored_half_is_not_read() -> None:
    x = torch.randn(4, dtype=torch.complex64)
    check(call(aten._fft_c2r.default, x, [0], 0, 4), call(aten._fft_c2r.default, x[:3], [0], 0, 5))


def test_empty_batch() -> None:
    # MKL refuses these; tracing does not, so the rule has to give what is recorded.
    assert lower(aten._fft_r2c.default, torch.zeros(0, 4), [1], 0, True).shape == (0, 3)
    half = torch.zeros(0, 3, dtype=torch.complex64)
    assert lower(aten._fft_c2r.default, half, [1], 0, 4).shape == (0, 4)
    assert lower(aten._fft_c2c.default, half, [1], 0, True).shape == (0, 3)


def test_work_is_five_n_log_n() -> None:
    x = torch.zeros(2, 8, dtype=torch.complex64)
    assert work(aten._fft_c2c.default, x, [1], 0, True).flops == 5 * 16 * 3
