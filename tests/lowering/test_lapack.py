"""Factorisations are those of PyTorch's LAPACK: also what LAPACK leaves open."""

from __future__ import annotations

import sys

import pytest
import torch
from against_aten import lower

from neuron_compiler.lowering import lapack

aten = torch.ops.aten


def test_the_tables_are_put_back() -> None:
    tables = [sys.modules.get(name) for name in lapack.TABLES]
    lapack.load()
    lapack.load.cache_clear()
    before = [sys.modules[name] for name in lapack.TABLES]
    lapack.load()
    assert [sys.modules[name] for name in lapack.TABLES] == before
    assert all(table in (None, now) for table, now in zip(tables, before, strict=True))
    assert all(table.__file__ for table in before), "SciPy's own modules"


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128], ids=str)
def test_vectors_have_eagers_signs(dtype: torch.dtype) -> None:
    x = torch.randn(3, 8, 8, dtype=dtype, generator=torch.Generator().manual_seed(0))
    for call in (
        (aten._linalg_eigh.default, x + x.mH),
        (aten.linalg_eig.default, x),
        (aten._linalg_svd.default, x[..., :5]),
        (aten.linalg_qr.default, x),
    ):
        overload, given = call
        for found, wanted in zip(lower(overload, given), overload(given), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
