"""Linear systems, inverses and functions of matrices."""

from __future__ import annotations

from math import prod

import jax.numpy as jnp
import torch
from jax.scipy.linalg import expm

from neuron_compiler.ir.graph import DType, TensorType
from neuron_compiler.lowering import lapack
from neuron_compiler.lowering.numeric import Array, cast, narrow
from neuron_compiler.lowering.ops.linalg import check_info, conjugate_transpose, cubic, lu_factor, precision, row_order
from neuron_compiler.opdef import Call, Kind, Work, WorkRule, op, per_element

aten = torch.ops.aten


def _system_work(matrix: int, factor: int = 1) -> WorkRule:
    """Flops of ``factor`` triangular solves: one multiply-add for each element of a triangle and right-hand side."""

    def rule(call: Call) -> Work:
        return Work(factor * call.type(matrix).shape[-1] * call.result_types[0].numel)

    return rule


def solve_triangle(
    a: Array,
    b: Array,
    *,
    upper: bool,
    left: bool = True,
    unit: bool = False,
    transpose: bool = False,
    conjugate: bool = False,
) -> Array:
    """X with A·X = B (X·A = B unless ``left``) for a triangular A; batch dimensions broadcast."""
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (jnp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b))
    if a.size == 0 or b.size == 0:
        return b
    return lapack.linalg().triangular_solve(
        a, b, left_side=left, lower=not upper, unit_diagonal=unit, transpose_a=transpose, conjugate_a=conjugate
    )


@op(aten.linalg_solve_triangular.default, kind=Kind.OTHER, work=_system_work(0))
def linalg_solve_triangular(
    a: Array, b: Array, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Array:
    return solve_triangle(a, b, upper=upper, left=left, unit=unitriangular)


@op(aten.triangular_solve.default, kind=Kind.OTHER, work=_system_work(1))
def triangular_solve(
    b: Array, a: Array, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Array, Array]:
    solution = solve_triangle(a, b, upper=upper, unit=unitriangular, transpose=transpose)
    return solution, jnp.broadcast_to(a, (*solution.shape[:-2], *a.shape[-2:]))


@op(aten.cholesky_solve.default, kind=Kind.OTHER, work=_system_work(1, 2))
def cholesky_solve(b: Array, factor: Array, upper: bool = False) -> Array:
    """X with A·X = B for A = L·Lᴴ (Uᴴ·U where ``upper``)."""
    first = solve_triangle(factor, b, upper=upper, transpose=upper, conjugate=upper)
    return solve_triangle(factor, first, upper=upper, transpose=not upper, conjugate=not upper)


@op(aten.cholesky_inverse.default, kind=Kind.OTHER, work=_system_work(0, 2))
def cholesky_inverse(factor: Array, upper: bool = False) -> Array:
    eye = jnp.broadcast_to(jnp.eye(factor.shape[-1], dtype=factor.dtype), factor.shape)
    return cholesky_solve(eye, factor, upper)


def _solve_factored(packed: Array, pivots: Array, b: Array, of_adjoint: bool) -> Array:
    """X with A·X = B (Aᴴ·X = B) from A's LU factorisation."""
    batch = jnp.broadcast_shapes(packed.shape[:-2], b.shape[:-2])
    packed = jnp.broadcast_to(packed, (*batch, *packed.shape[-2:]))
    b = jnp.broadcast_to(b, (*batch, *b.shape[-2:]))
    if b.size == 0 or packed.size == 0:
        return b
    order = jnp.broadcast_to(row_order(pivots, packed.shape[-1]), (*batch, packed.shape[-1]))[..., None]
    if of_adjoint:
        x = solve_triangle(packed, b, upper=True, transpose=True, conjugate=True)
        x = solve_triangle(packed, x, upper=False, unit=True, transpose=True, conjugate=True)
        return jnp.take_along_axis(x, jnp.argsort(order, axis=-2), axis=-2)
    x = solve_triangle(packed, jnp.take_along_axis(b, order, axis=-2), upper=False, unit=True)
    return solve_triangle(packed, x, upper=True)


@op(aten.linalg_lu_solve.default, kind=Kind.OTHER, work=_system_work(0, 2))
def lu_solve(packed: Array, pivots: Array, b: Array, *, left: bool = True, adjoint: bool = False) -> Array:
    if left:
        return _solve_factored(packed, pivots, b, adjoint)
    return conjugate_transpose(_solve_factored(packed, pivots, conjugate_transpose(b), not adjoint))


@op(aten._linalg_solve_ex.default, kind=Kind.OTHER, work=cubic(2 / 3))
def solve_ex(a: Array, b: Array, *, left: bool = True, check_errors: bool = False) -> tuple[Array, Array, Array, Array]:
    """X with A·X = B (X·A = B unless ``left``), and A's factorisation; B may be one vector for each matrix."""
    packed, pivots, info = lu_factor(a)
    if check_errors:
        check_info(info, "torch.linalg.solve_ex")
    vector = b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1])
    solution = lu_solve(packed, pivots, b[..., None] if vector else b, left=left)
    return solution[..., 0] if vector else solution, packed, pivots, info


@op(aten.linalg_inv_ex.default, kind=Kind.OTHER, work=cubic(2))
def inv_ex(x: Array, *, check_errors: bool = False) -> tuple[Array, Array]:
    packed, pivots, info = lu_factor(x)
    if check_errors:
        check_info(info, "linalg.inv_ex")
    eye = jnp.broadcast_to(jnp.eye(x.shape[-1], dtype=x.dtype), x.shape)
    return _solve_factored(packed, pivots, eye, False), info


@op(aten.linalg_pinv.atol_rtol_tensor, kind=Kind.OTHER, work=cubic(8))
def pinv(
    x: Array, *, atol: Array | None = None, rtol: Array | None = None, hermitian: bool = False, out: TensorType
) -> Array:
    """Inverse of the part of a matrix whose singular values are above ``max(atol, rtol · greatest)``."""
    if x.size == 0:
        return jnp.zeros(out.shape, x.dtype)
    if hermitian:
        vectors, values = lapack.linalg().eigh(x, symmetrize_input=False)
        left, right, sizes = vectors, conjugate_transpose(vectors), jnp.abs(values)
    else:
        u, values, vh = lapack.linalg().svd(x, full_matrices=False)
        left, right, sizes = conjugate_transpose(vh), conjugate_transpose(u), values
    greatest = jnp.max(sizes, axis=-1)
    default = jnp.asarray(precision(x) * max(x.shape[-2:]), greatest.dtype)
    least = jnp.zeros((), greatest.dtype) if atol is None else atol.astype(greatest.dtype)
    if rtol is not None:
        relative = rtol.astype(greatest.dtype)
    else:
        relative = default if atol is None else jnp.where(least > 0, 0, default)
    kept = sizes > jnp.maximum(least, relative * greatest)[..., None]
    inverse = jnp.where(kept, 1 / jnp.where(kept, values, 1), 0).astype(x.dtype)
    return (left * inverse[..., None, :]) @ right


def _half(call: Call) -> str | None:
    return "matrix exponential in half precision" if call.type(0).dtype.itemsize < 4 else None


@op(aten.linalg_matrix_exp.default, kind=Kind.OTHER, work=cubic(30), when=_half)
def matrix_exp(x: Array, *, out: TensorType) -> Array:
    if x.size == 0:
        return x
    # In double: squaring loses what float32 has left of large results, of which ATen's own series keeps more.
    wide = cast(x, DType.C128 if out.dtype.is_complex else DType.F64)
    lapack.load()
    return narrow(jnp.exp(wide) if x.shape[-1] == 1 else expm(wide, max_squarings=64), out)


@op(aten.linalg_cross.default, kind=Kind.ELEMENTWISE, work=per_element(flops=3))
def cross(a: Array, b: Array, *, dim: int = -1) -> Array:
    a, b = jnp.broadcast_arrays(a, b)

    def turned(x: Array, by: int) -> Array:
        return jnp.roll(x, -by, axis=dim)

    return turned(a, 1) * turned(b, 2) - turned(a, 2) * turned(b, 1)


@op(aten.trace.default, kind=Kind.REDUCTION, work=lambda call: Work(min(call.type(0).shape)))
def trace(x: Array, *, out: TensorType) -> Array:
    return jnp.sum(narrow(jnp.diagonal(x), out)) if prod(x.shape) else narrow(0, out)
