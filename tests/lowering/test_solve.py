"""Linear systems, inverses and functions of matrices against ATen."""

from __future__ import annotations

import pytest
import torch
from against_aten import call, check, lower, work

aten = torch.ops.aten

CLOSE = {"rtol": 1e-3, "atol": 1e-4}
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)


def matrix(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    x = torch.randn(shape, dtype=dtype)
    return x + 3 * torch.eye(*shape[-2:], dtype=dtype) if len(shape) > 1 else x


@DTYPES
def test_triangular_systems(dtype: torch.dtype) -> None:
    a, b = matrix(2, 4, 4, dtype=dtype), matrix(2, 4, 3, dtype=dtype)
    calls = []
    for flags in range(8):
        upper, other, unit = bool(flags & 1), bool(flags & 2), bool(flags & 4)
        triangle = a.triu() if upper else a.tril()
        right = b if other else b.mT.contiguous()
        calls.append(
            call(aten.linalg_solve_triangular.default, triangle, right, upper=upper, left=other, unitriangular=unit)
        )
        calls.append(call(aten.triangular_solve.default, b, a, upper, other, unit))
    check(*calls, call(aten.linalg_solve_triangular.default, a[0].triu(), b, upper=True), **CLOSE)


@DTYPES
def test_factored_systems(dtype: torch.dtype) -> None:
    a, b = matrix(2, 4, 4, dtype=dtype), matrix(2, 4, 3, dtype=dtype)
    packed, pivots, _ = aten.linalg_lu_factor_ex.default(a)
    factor = torch.linalg.cholesky(a @ a.mH)
    calls = [
        call(aten.linalg_lu_solve.default, packed, pivots, b if left else b.mT.contiguous(), left=left, adjoint=adjoint)
        for left in (False, True)
        for adjoint in (False, True)
    ]
    for upper in (False, True):
        given = factor.mH.contiguous() if upper else factor
        calls += [call(aten.cholesky_solve.default, b, given, upper), call(aten.cholesky_inverse.default, given, upper)]
    check(*calls, **CLOSE)


@DTYPES
def test_systems(dtype: torch.dtype) -> None:
    a = matrix(2, 3, 3, dtype=dtype)
    check(
        call(aten._linalg_solve_ex.default, a, matrix(2, 3, 2, dtype=dtype)),
        call(aten._linalg_solve_ex.default, a, matrix(2, 3, dtype=dtype)),
        call(aten._linalg_solve_ex.default, a, matrix(3, 2, dtype=dtype)),
        call(aten._linalg_solve_ex.default, a, matrix(2, 2, 3, dtype=dtype), left=False),
        call(aten._linalg_solve_ex.default, a[0], matrix(3, dtype=dtype)),
        call(aten._linalg_solve_ex.default, a[0], matrix(5, 3, 2, dtype=dtype)),
        call(aten.linalg_inv_ex.default, a),
        **CLOSE,
    )


def test_a_singular_matrix_is_reported() -> None:
    a = torch.stack([torch.eye(2), torch.ones(2, 2)])
    assert lower(aten.linalg_inv_ex.default, a)[1].tolist() == [0, 2]
    assert lower(aten._linalg_solve_ex.default, a, torch.ones(2, 2, 1))[3].tolist() == [0, 2]


@DTYPES
def test_pseudo_inverses(dtype: torch.dtype) -> None:
    a, square = matrix(2, 4, 3, dtype=dtype), matrix(3, 3, dtype=dtype)
    low_rank = a[..., :1] @ a[..., :1].mH
    check(
        call(aten.linalg_pinv.atol_rtol_tensor, a),
        call(aten.linalg_pinv.atol_rtol_tensor, low_rank),
        call(aten.linalg_pinv.atol_rtol_tensor, square @ square.mH, hermitian=True),
        call(aten.linalg_pinv.atol_rtol_tensor, a, atol=torch.tensor(2.5), rtol=torch.tensor(0.1)),
        call(aten.linalg_pinv.atol_rtol_tensor, a, atol=torch.tensor(2.5)),
        call(aten.linalg_pinv.atol_rtol_tensor, a, rtol=torch.tensor(0.5)),
        **CLOSE,
    )


@DTYPES
def test_functions_of_matrices(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    a = torch.randn(2, 4, 4, dtype=dtype)
    check(
        call(aten.linalg_matrix_exp.default, a),
        call(aten.linalg_matrix_exp.default, a * 1e-3),
        call(aten.linalg_matrix_exp.default, a[:, :1, :1]),
        call(aten.trace.default, a[0, :3]),
        call(aten.linalg_cross.default, a[..., :3], a[:1, ..., 1:]),
        call(aten.linalg_cross.default, a[:, :3], a[:, 1:], dim=1),
        **CLOSE,
    )
    check(call(aten.linalg_matrix_exp.default, (a * 10).to(torch.complex128)), rtol=1e-7, atol=1e-7)


def test_traces_of_integers_and_of_nothing() -> None:
    check(call(aten.trace.default, torch.arange(12, dtype=torch.int8).reshape(3, 4)))
    check(call(aten.trace.default, torch.zeros(0, 3)))


def test_work_of_a_solve() -> None:
    a = matrix(2, 4, 4)
    assert work(aten.linalg_solve_triangular.default, a.triu(), matrix(2, 4, 3), upper=True).flops == 4 * 2 * 4 * 3
