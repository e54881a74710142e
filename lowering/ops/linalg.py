"""Factorisations by LAPACK: Cholesky, LU, QR, SVD, eigenvalues.

A factorisation that cannot be done says so in ``info``, as LAPACK counts. Ops that raise for that, or for a matrix that
holds infinities or NaN, do so after the run.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import torch

from neuron_compiler.ir.graph import TensorType, TupleType
from neuron_compiler.lowering import lapack
from neuron_compiler.lowering.checks import require
from neuron_compiler.lowering.numeric import Array, cast, narrow
from neuron_compiler.opdef import Call, Kind, Work, WorkRule, op

aten = torch.ops.aten


def cubic(factor: float) -> WorkRule:
    """Flops of ``factor`` times m·n·min(m, n) for each matrix: LAPACK's own leading terms."""

    def rule(call: Call) -> Work:
        *batch, m, n = call.type(0).shape
        return Work(int(factor * prod(batch) * m * n * min(m, n)))

    return rule


def element(out: TupleType, index: int) -> TensorType:
    found = out.elements[index]
    if found is None:
        raise TypeError(f"result {index} is not a tensor")
    return found


def nothing(out: TupleType, index: int) -> Array:
    """A result that was not asked for: ATen gives an empty tensor."""
    return cast(jnp.zeros(element(out, index).shape), element(out, index).dtype)


def conjugate_transpose(x: Array) -> Array:
    return jnp.conj(jnp.swapaxes(x, -1, -2))


def require_finite(x: Array, message: str) -> None:
    require(jnp.all(jnp.isfinite(x)), message, torch.linalg.LinAlgError)


def cholesky_factor(x: Array, upper: bool) -> tuple[Array, Array]:
    """LAPACK's potrf: the factor and, per matrix, 0 or the order of the first minor that is not positive."""
    batch = x.shape[:-2]
    if x.size == 0:
        return x, jnp.zeros(batch, jnp.int32)
    # jax's own cholesky drops info. LAPACK wants columns together: a layout, not a transpose.
    columns = (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)
    factorise = jax.ffi.ffi_call(
        lapack.target("potrf_ffi", x.dtype),
        (jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct(batch, np.int32)),
        input_layouts=[columns],
        output_layouts=[columns, None],
        input_output_aliases={0: 0},
    )
    factor, info = factorise(x, uplo=np.uint8(ord("U" if upper else "L")))
    return (jnp.triu if upper else jnp.tril)(factor), info


@op(aten.linalg_cholesky_ex.default, kind=Kind.OTHER, work=cubic(1 / 3))
def cholesky_ex(x: Array, *, upper: bool = False, check_errors: bool = False) -> tuple[Array, Array]:
    factor, info = cholesky_factor(x, upper)
    if check_errors:
        check_info(info, "linalg.cholesky_ex")
    return factor, info


def cholesky(x: Array, upper: bool = False) -> Array:
    factor, info = cholesky_factor(x, upper)
    check_info(info, "cholesky")
    return factor


if hasattr(aten, "cholesky"):  # PyTorch 2.14 has it no more
    op(aten.cholesky.default, kind=Kind.OTHER, work=cubic(1 / 3))(cholesky)


_CAUSES: tuple[tuple[tuple[str, ...], str], ...] = (
    (("cholesky",), "The factorization could not be completed because the input is not positive-definite."),
    (("inv", "inverse"), "The inversion could not be completed because the input matrix is singular."),
    (("solve",), "The solver failed because the input matrix is singular."),
    (("lu_factor", "lu"), "The factorization has an exact zero on the diagonal of U: the input matrix is singular."),
    (("svd", "eigh", "eig", "lstsq"), "The algorithm failed to converge."),
)


def check_info(info: Array, name: str) -> None:
    cause = next((text for words, text in _CAUSES if any(word in name for word in words)), "The input is singular.")
    require(jnp.all(info == 0), f"{name}: {cause}", torch.linalg.LinAlgError)


def lu_factor(x: Array) -> tuple[Array, Array, Array]:
    """Packed L and U, pivots from 1 on, and info: 0 or the place, from 1 on, of the first zero in U's diagonal."""
    *batch, m, n = x.shape
    if x.size == 0:
        return x, jnp.zeros((*batch, min(m, n)), jnp.int32), jnp.zeros(tuple(batch), jnp.int32)
    packed, pivots, _ = lapack.linalg().lu(x)
    zero = jnp.diagonal(packed, axis1=-2, axis2=-1) == 0
    first = jnp.argmax(zero, axis=-1).astype(jnp.int32) + 1
    return packed, pivots.astype(jnp.int32) + 1, jnp.where(jnp.any(zero, axis=-1), first, 0)


def row_order(pivots: Array, rows: int) -> Array:
    """The rows of A in the order in which L·U has them, from LAPACK's pivots."""
    if pivots.size == 0:
        return jnp.broadcast_to(jnp.arange(rows, dtype=jnp.int32), (*pivots.shape[:-1], rows))
    return lapack.linalg().lu_pivots_to_permutation(pivots - 1, rows)


def _unpacked(packed: Array, pivots: Array) -> tuple[Array, Array, Array]:
    """P, L and U with A = P·L·U."""
    m, n = packed.shape[-2:]
    k = min(m, n)
    order = row_order(pivots, m)
    permutation = (order[..., None, :] == jnp.arange(m)[:, None]).astype(packed.dtype)
    lower = jnp.tril(packed[..., :k], -1) + jnp.eye(m, k, dtype=packed.dtype)
    return permutation, lower, jnp.triu(packed[..., :k, :])


def _refuse_unpivoted(call: Call) -> str | None:
    return None if call.op.attr("pivot", True) else "LU without pivoting"


@op(aten.linalg_lu_factor_ex.default, kind=Kind.OTHER, work=cubic(2 / 3), when=_refuse_unpivoted)
def lu_factor_ex(x: Array, *, pivot: bool = True, check_errors: bool = False) -> tuple[Array, Array, Array]:
    packed, pivots, info = lu_factor(x)
    if check_errors:
        check_info(info, "torch.linalg.lu_factor_ex")
    return packed, pivots, info


@op(aten.linalg_lu.default, kind=Kind.OTHER, work=cubic(2 / 3), when=_refuse_unpivoted)
def lu(x: Array, *, pivot: bool = True) -> tuple[Array, Array, Array]:
    return _unpacked(*lu_factor(x)[:2])


@op(aten.lu_unpack.default, kind=Kind.OTHER, work=lambda call: Work())
def lu_unpack(
    packed: Array, pivots: Array, unpack_data: bool = True, unpack_pivots: bool = True, *, out: TupleType
) -> tuple[Array, ...]:
    wanted = (unpack_pivots, unpack_data, unpack_data)
    parts = _unpacked(packed, pivots)
    return tuple(part if want else nothing(out, i) for i, (part, want) in enumerate(zip(parts, wanted, strict=True)))


def _reflectors(x: Array) -> tuple[Array, Array]:
    """LAPACK's geqrf: R above the reflectors, and their factors."""
    lapack.load()
    packed, tau = jnp.linalg.qr(x, mode="raw")
    # numpy's raw mode gives the packed matrix transposed, as FORTRAN would see it.
    return jnp.swapaxes(packed, -1, -2), tau


@op(aten.geqrf.default, kind=Kind.OTHER, work=cubic(2))
def geqrf(x: Array, *, out: TupleType) -> tuple[Array, Array]:
    return _reflectors(x) if x.size else (nothing(out, 0), nothing(out, 1))


@op(aten.linalg_qr.default, kind=Kind.OTHER, work=cubic(4))
def qr(x: Array, mode: str = "reduced", *, out: TupleType) -> tuple[Array, Array]:
    m, n = x.shape[-2:]
    if x.size == 0:
        shape = element(out, 0).shape
        eye = jnp.eye(*shape[-2:], dtype=x.dtype) if len(shape) >= 2 else nothing(out, 0)
        return jnp.broadcast_to(eye, shape), nothing(out, 1)
    if mode == "r":
        return nothing(out, 0), jnp.triu(_reflectors(x)[0][..., : min(m, n), :])
    q, r = lapack.linalg().qr(x, full_matrices=mode == "complete")
    return q, r


@op(aten.linalg_householder_product.default, kind=Kind.OTHER, work=cubic(2))
def householder_product(x: Array, tau: Array) -> Array:
    return lapack.linalg().householder_product(x, tau) if x.size else x


@op(aten.ormqr.default, kind=Kind.OTHER, work=cubic(4))
def ormqr(x: Array, tau: Array, c: Array, left: bool = True, transpose: bool = False) -> Array:
    return lapack.linalg().ormqr(x, tau, c, left=left, transpose=transpose) if c.size and tau.size else c


@op(aten._linalg_svd.default, kind=Kind.OTHER, work=cubic(6))
def svd(
    x: Array, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None, out: TupleType
) -> tuple[Array, Array, Array]:
    require_finite(
        x, "linalg.svd: The algorithm failed to converge because the input matrix contained non-finite values."
    )
    if x.size == 0:
        square = (_identity(element(out, i)) if compute_uv else nothing(out, i) for i in (0, 2))
        u, vh = square
        return u, nothing(out, 1), vh
    if not compute_uv:
        return nothing(out, 0), lapack.linalg().svd(x, compute_uv=False), nothing(out, 2)
    u, s, vh = lapack.linalg().svd(x, full_matrices=full_matrices)
    return u, s, vh


def _identity(type_: TensorType) -> Array:
    eye = jnp.eye(*type_.shape[-2:])
    return cast(jnp.broadcast_to(eye, type_.shape), type_.dtype)


@op(aten._linalg_eigh.default, kind=Kind.OTHER, work=cubic(9))
def eigh(x: Array, UPLO: str = "L", compute_v: bool = True, *, out: TupleType) -> tuple[Array, Array]:
    require_finite(
        x, "linalg.eigh: The algorithm failed to converge because the input matrix contained non-finite values."
    )
    if x.size == 0:
        return nothing(out, 0), nothing(out, 1)
    vectors, values = lapack.linalg().eigh(x, lower=UPLO.upper() == "L", symmetrize_input=False)
    return values, vectors if compute_v else nothing(out, 1)


def _eig(x: Array, vectors: bool, out: Callable[[int], TensorType]) -> list[Array]:
    require(jnp.all(jnp.isfinite(x)), "torch.linalg.eig: input tensor should not contain infs or NaNs.", RuntimeError)
    if x.size == 0:
        return [cast(jnp.zeros(out(i).shape), out(i).dtype) for i in range(1 + vectors)]
    found = lapack.linalg().eig(x, compute_left_eigenvectors=False, compute_right_eigenvectors=vectors)
    return [narrow(part, out(i)) for i, part in enumerate(found)]


@op(aten.linalg_eig.default, kind=Kind.OTHER, work=cubic(25))
def eig(x: Array, *, out: TupleType) -> tuple[Array, Array]:
    values, vectors = _eig(x, True, lambda index: element(out, index))
    return values, vectors


@op(aten._linalg_eigvals.default, kind=Kind.OTHER, work=cubic(10))
def eigvals(x: Array, *, out: TensorType) -> Array:
    return _eig(x, False, lambda index: out)[0]


def precision(x: Array) -> float:
    """Distance from 1 to the next number of the matrix's real type."""
    return float(np.finfo(x.dtype).eps)
