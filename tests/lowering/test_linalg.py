"""Factorisations against ATen: what is unique by value, the rest by what it is for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
import torch
from against_aten import call, check, lower, work

from neuron_compiler.ir.graph import DType, TensorType, TupleType
from neuron_compiler.lowering.checks import collecting
from neuron_compiler.lowering.ops import linalg

aten = torch.ops.aten

CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def matrix(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(shape, dtype=dtype)


def positive(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    x = matrix(*shape, dtype=dtype)
    return x @ x.mH + 3 * torch.eye(shape[-1], dtype=dtype)


DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)


@DTYPES
def test_cholesky(dtype: torch.dtype) -> None:
    for batch in ((), (2, 3)):
        a = positive(*batch, 4, 4, dtype=dtype)
        check(*(call(aten.linalg_cholesky_ex.default, a, upper=upper) for upper in (False, True)), **CLOSE)
        check(call(aten.cholesky.default, a, True), **CLOSE)


def test_cholesky_says_which_minor_failed() -> None:
    a = torch.stack([torch.eye(3), torch.diag(torch.tensor([1.0, -1.0, 2.0]))])
    _, info = lower(aten.linalg_cholesky_ex.default, a)
    assert info.tolist() == [0, 2]


@DTYPES
def test_lu(dtype: torch.dtype) -> None:
    for batch in ((), (2, 3)):
        square, tall, wide = (matrix(*batch, *size, dtype=dtype) for size in ((4, 4), (4, 3), (3, 4)))
        packed, pivots, _ = aten.linalg_lu_factor_ex.default(tall)
        check(
            *(call(aten.linalg_lu_factor_ex.default, x) for x in (square, tall, wide)),
            *(call(aten.linalg_lu.default, x) for x in (square, tall, wide)),
            *(
                call(aten.lu_unpack.default, packed, pivots, *want)
                for want in ((True, True), (False, True), (True, False))
            ),
            **CLOSE,
        )


def test_lu_says_where_u_is_zero() -> None:
    a = torch.zeros(3, 3, 3)
    a[1] = torch.eye(3)
    a[2] = torch.diag(torch.tensor([1.0, 0.0, 0.0]))
    check(call(aten.linalg_lu_factor_ex.default, a))
    assert lower(aten.linalg_lu_factor_ex.default, a)[2].tolist() == [1, 0, 2]


@DTYPES
def test_qr_and_reflectors(dtype: torch.dtype) -> None:
    tall, wide = matrix(2, 4, 3, dtype=dtype), matrix(3, 4, dtype=dtype)
    packed, tau = aten.geqrf.default(tall)
    other = matrix(2, 4, 4, dtype=dtype)
    check(
        *(call(aten.linalg_qr.default, x, mode) for x in (tall, wide) for mode in ("reduced", "complete", "r")),
        call(aten.geqrf.default, tall),
        call(aten.linalg_householder_product.default, packed, tau),
        *(call(aten.ormqr.default, packed, tau, other, left, turn) for left in (False, True) for turn in (False, True)),
        **CLOSE,
    )


@DTYPES
def test_singular_values(dtype: torch.dtype) -> None:
    for shape in ((4, 3), (2, 3, 4)):
        a = matrix(*shape, dtype=dtype)
        for full in (False, True):
            u, s, vh = lower(aten._linalg_svd.default, a, full)
            torch.testing.assert_close(s, torch.linalg.svdvals(a), **CLOSE)
            k = s.shape[-1]
            torch.testing.assert_close(u[..., :k] * s[..., None, :] @ vh[..., :k, :], a, **CLOSE)
            for q in (u.mH @ u, vh @ vh.mH):
                torch.testing.assert_close(q, torch.eye(q.shape[-1], dtype=dtype).expand_as(q), **CLOSE)
        check(call(aten._linalg_svd.default, a, False, False), **CLOSE)


@DTYPES
def test_eigenvalues(dtype: torch.dtype) -> None:
    a = positive(2, 4, 4, dtype=dtype)
    for part, stored in (("L", a.tril()), ("U", a.triu())):
        values, vectors = lower(aten._linalg_eigh.default, stored, part)
        torch.testing.assert_close(values, torch.linalg.eigvalsh(a), **CLOSE)
        torch.testing.assert_close(vectors * values[..., None, :] @ vectors.mH, a, **CLOSE)
    check(call(aten._linalg_eigh.default, a, "L", False), **CLOSE)
    a = matrix(4, 4, dtype=dtype)
    values, vectors = lower(aten.linalg_eig.default, a)
    torch.testing.assert_close(values, torch.linalg.eigvals(a), **CLOSE)
    torch.testing.assert_close(a.to(vectors.dtype) @ vectors, vectors * values, **CLOSE)
    torch.testing.assert_close(torch.linalg.vector_norm(vectors, dim=0), torch.ones(4), **CLOSE)
    check(call(aten._linalg_eigvals.default, a), **CLOSE)


def test_empty_matrices() -> None:
    for shape in ((0, 0), (0, 3, 3), (2, 0, 3)):
        x = torch.zeros(shape)
        calls = [
            call(aten.linalg_qr.default, x, "complete"),
            call(aten._linalg_svd.default, x, True),
            call(aten.linalg_lu.default, x),
        ]
        if shape[-1] == shape[-2]:
            calls += [call(aten.linalg_cholesky_ex.default, x), call(aten.linalg_eig.default, x)]
        check(*calls)


def test_failures_raise_after_the_run() -> None:
    nan = torch.full((2, 2), float("nan"))
    error = torch.linalg.LinAlgError
    _requires(lambda x: linalg.cholesky(x), -torch.eye(2), error, "positive-definite")
    _requires(lambda x: linalg.lu_factor_ex(x, check_errors=True), torch.zeros(2, 2), error, "singular")
    out = TupleType((TensorType((2,), DType.C64), TensorType((2, 2), DType.C64)))
    _requires(lambda x: linalg.eig(x, out=out), nan, RuntimeError, "infs or NaNs")


def _requires(rule: Callable[[Any], object], x: torch.Tensor, error: type[Exception], text: str) -> None:
    with collecting() as checks:
        rule(jnp.asarray(x.numpy()))
    assert [bool(one.ok) for one in checks] == [False]
    assert checks[0].error is error
    assert text in checks[0].message


def test_work_is_lapacks_leading_term() -> None:
    assert work(aten.linalg_cholesky_ex.default, positive(2, 6, 6)).flops == 2 * 6**3 // 3
    assert work(aten.linalg_lu_factor_ex.default, matrix(6, 6)).flops == 2 * 6**3 // 3
