"""Matrix products. A half-precision product accumulates in float32 and is rounded once, an integer one is exact.

Every product is one ``dot_general`` over the operands as they lie: XLA re-lays a transposed weight on every call, so no
rule transposes one. Work is 2·m·k·n flops; as in PyTorch's own flop counter, the addition of a bias is not counted.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import torch
from jax import lax

from neuron_compiler import dtypes
from neuron_compiler.ir.graph import DType, TensorType
from neuron_compiler.lowering.numeric import Array, Scalar, cast, dtype_of, narrow, scalar, widen
from neuron_compiler.opdef import Call, Kind, Work, WorkRule, op

aten = torch.ops.aten

Axes = tuple[int, ...]


def accumulator(dtype: DType) -> DType:
    """The element type that products of ``dtype`` are summed in; integers wrap to the same values in a wider type."""
    if dtype.is_floating and dtype.itemsize < 4:
        return DType.F32
    if dtype.is_integer and dtype.itemsize < 4:
        return DType.I32
    return dtype


def contract(a: Array, b: Array, over: tuple[Axes, Axes], batch: tuple[Axes, Axes] = ((), ())) -> Array:
    """Sum of products over axes ``over``, in the accumulator's type: batch axes, then the rest of a, then of b."""
    preferred = dtypes.to_numpy(accumulator(dtype_of(a)))
    return lax.dot_general(a, b, (over, batch), preferred_element_type=preferred)


def blend(base: Array, product: Array, beta: Scalar, alpha: Scalar, out: TensorType) -> Array:
    """``beta * base + alpha * product`` in the product's type; with ``beta`` 0 what base holds, NaN too, is ignored."""
    product = product if alpha == 1 else product * scalar(alpha, product)
    if beta == 0:
        return narrow(product, out)
    base = cast(base, dtype_of(product))
    return narrow(product + (base if beta == 1 else base * scalar(beta, product)), out)


def product_work(operand: int, *summed: int) -> WorkRule:
    """Two flops for each result element and each element along the ``summed`` axes of ``operand``."""

    def rule(call: Call) -> Work:
        flops = 2 * call.result_types[0].numel
        for axis in summed:
            flops *= call.type(operand).shape[axis]
        return Work(flops)

    return rule


@op(aten.mm.default, kind=Kind.CONTRACTION, work=product_work(0, 1))
def mm(a: Array, b: Array, *, out: TensorType) -> Array:
    return narrow(contract(a, b, ((1,), (0,))), out)


@op(aten.bmm.default, kind=Kind.CONTRACTION, work=product_work(0, 2))
def bmm(a: Array, b: Array, *, out: TensorType) -> Array:
    return narrow(contract(a, b, ((2,), (1,)), ((0,), (0,))), out)


@op(aten.mv.default, kind=Kind.CONTRACTION, work=product_work(0, 1))
def mv(a: Array, b: Array, *, out: TensorType) -> Array:
    return narrow(contract(a, b, ((1,), (0,))), out)


@op(aten.dot.default, kind=Kind.CONTRACTION, work=product_work(0, 0))
def dot(a: Array, b: Array, *, out: TensorType) -> Array:
    return narrow(contract(a, b, ((0,), (0,))), out)


@op(aten.vdot.default, kind=Kind.CONTRACTION, work=product_work(0, 0))
def vdot(a: Array, b: Array, *, out: TensorType) -> Array:
    return narrow(contract(jnp.conj(a), b, ((0,), (0,))), out)


@op(aten.linear.default, kind=Kind.CONTRACTION, work=product_work(0, -1))
def linear(x: Array, weight: Array, bias: Array | None = None, *, out: TensorType) -> Array:
    """``x`` [..., in], ``weight`` [out, in] or [in]."""
    product = contract(x, weight, ((x.ndim - 1,), (weight.ndim - 1,)))
    return narrow(product, out) if bias is None else blend(bias, product, 1, 1, out)


@op(aten.addmm.default, kind=Kind.CONTRACTION, work=product_work(1, 1))
def addmm(base: Array, a: Array, b: Array, *, beta: Scalar = 1, alpha: Scalar = 1, out: TensorType) -> Array:
    return blend(base, contract(a, b, ((1,), (0,))), beta, alpha, out)


@op(aten.addmv.default, kind=Kind.CONTRACTION, work=product_work(1, 1))
def addmv(base: Array, a: Array, b: Array, *, beta: Scalar = 1, alpha: Scalar = 1, out: TensorType) -> Array:
    return blend(base, contract(a, b, ((1,), (0,))), beta, alpha, out)


@op(aten.baddbmm.default, kind=Kind.CONTRACTION, work=product_work(1, 2))
def baddbmm(base: Array, a: Array, b: Array, *, beta: Scalar = 1, alpha: Scalar = 1, out: TensorType) -> Array:
    return blend(base, contract(a, b, ((2,), (1,)), ((0,), (0,))), beta, alpha, out)


@op(aten.addbmm.default, kind=Kind.CONTRACTION, work=product_work(1, 0, 2))
def addbmm(base: Array, a: Array, b: Array, *, beta: Scalar = 1, alpha: Scalar = 1, out: TensorType) -> Array:
    return blend(base, contract(a, b, ((0, 2), (0, 1))), beta, alpha, out)


@op(aten.addr.default, kind=Kind.CONTRACTION, work=product_work(1))
def addr(base: Array, a: Array, b: Array, *, beta: Scalar = 1, alpha: Scalar = 1, out: TensorType) -> Array:
    return blend(base, outer(widen(cast(a, out.dtype)), widen(cast(b, out.dtype))), beta, alpha, out)


def outer(a: Array, b: Array) -> Array:
    """Every product of an element of ``a`` [m] and one of ``b`` [n]."""
    return a[:, None] * b[None, :]


def _trilinear_work(call: Call) -> Work:
    sizes: dict[int, int] = {}
    rank = call.type(0).rank + len(_axes(call.op.operand(3)))
    for i in range(3):
        own = (axis for axis in range(rank) if axis not in _axes(call.op.operand(3 + i)))
        sizes.update(zip(own, call.type(i).shape, strict=True))
    flops = 3
    for size in sizes.values():
        flops *= size
    return Work(flops)


def _axes(operand: Any) -> Axes:
    return tuple(operand)


@op(aten._trilinear.default, kind=Kind.CONTRACTION, work=_trilinear_work)
def trilinear(
    a: Array,
    b: Array,
    c: Array,
    expand_a: Axes,
    expand_b: Axes,
    expand_c: Axes,
    summed: Axes,
    unroll_dim: int = 1,
    *,
    out: TensorType,
) -> Array:
    """Product of three arrays, each without the axes it is expanded along, summed over ``summed``.

    Halves are rounded where ATen stores them: for each slice along ``unroll_dim`` the product of the first two, summed
    over what the third does not have, and the whole; slices are added up in the half.
    """
    axes = range(a.ndim + len(expand_a))
    letters = "abcdefghijklmnopqrstuvwxyz"
    terms = ["".join(letters[i] for i in axes if i not in expanded) for expanded in (expand_a, expand_b, expand_c)]
    kept = "".join(letters[i] for i in axes if i not in summed)
    preferred = dtypes.to_numpy(accumulator(dtype_of(a)))
    if preferred == dtypes.to_numpy(dtype_of(a)) or 0 in (a.size, b.size, c.size):
        return narrow(jnp.einsum(f"{','.join(terms)}->{kept}", a, b, c, preferred_element_type=preferred), out)
    along = letters[unroll_dim]
    with_slices = "".join(letters[i] for i in axes if i not in summed or i == unroll_dim)
    pair = [letters[i] for i in axes if i not in expand_a or i not in expand_b]
    between = "".join(x for x in pair if x in terms[2] or x in with_slices)

    def rounded(first: Array, second: Array, third: Array) -> Array:
        product = jnp.einsum(f"{terms[0]},{terms[1]}->{between}", first, second, preferred_element_type=preferred)
        product = narrow(product, out)
        whole = jnp.einsum(f"{between},{terms[2]}->{with_slices}", product, third, preferred_element_type=preferred)
        return narrow(whole, out)

    if along in kept:
        return rounded(a, b, c)
    axis = with_slices.index(along)

    def add(index: Array, total: Array) -> Array:
        parts = (
            lax.dynamic_slice_in_dim(x, index, 1, term.index(along)) if along in term else x
            for x, term in zip((a, b, c), terms, strict=True)
        )
        return narrow(widen(total) + widen(jnp.squeeze(rounded(*parts), axis)), out)

    count = next(x.shape[term.index(along)] for x, term in zip((a, b, c), terms, strict=True) if along in term)
    return lax.fori_loop(0, count, add, jnp.zeros(out.shape, a.dtype))
