"""Complex numbers: parts, conjugates, polar form, and the views between them and pairs of floats."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from neuron_compiler.ir.graph import TensorType
from neuron_compiler.lowering.numeric import Array, cast, constant, dtype_of
from neuron_compiler.opdef import Kind, op, per_element

aten = torch.ops.aten


@op(aten.real.default, kind=Kind.VIEW)
def real(x: Array) -> Array:
    return x.real if dtype_of(x).is_complex else x


@op(aten.imag.default, kind=Kind.VIEW)
def imag(x: Array) -> Array:
    return x.imag


@op(aten.view_as_real.default, aten.view_as_real_copy.default, kind=Kind.VIEW)
def view_as_real(x: Array) -> Array:
    return jnp.stack([x.real, x.imag], -1)


@op(aten.view_as_complex.default, aten.view_as_complex_copy.default, kind=Kind.VIEW)
def view_as_complex(x: Array) -> Array:
    return lax.complex(x[..., 0], x[..., 1])


@op(
    aten._conj.default,
    aten.conj.default,
    aten.conj_physical.default,
    aten._conj_physical.default,
    aten._conj_copy.default,
    kind=Kind.ELEMENTWISE,
)
def conj(x: Array | complex, *, out: TensorType) -> Array:
    """Autograd's formulas ask for it of the numbers that a program multiplies by, too."""
    if isinstance(x, int | float | complex):
        return constant(x.conjugate(), out.dtype)
    return lax.conj(x) if dtype_of(x).is_complex else x


@op(aten._neg_view.default, aten._neg_view_copy.default, kind=Kind.ELEMENTWISE)
def neg_view(x: Array) -> Array:
    return -x


@op(aten.resolve_conj.default, aten.resolve_neg.default, kind=Kind.VIEW)
def resolve(x: Array) -> Array:
    """Conjugates and negatives are never lazy here."""
    return x


@op(aten.complex.default, kind=Kind.ELEMENTWISE)
def complex_(re: Array, im: Array) -> Array:
    return lax.complex(*jnp.broadcast_arrays(re, im))


@op(aten.polar.default, kind=Kind.ELEMENTWISE, work=per_element(flops=2, transcendental=2))
def polar(length: Array, angle: Array) -> Array:
    a, b = jnp.broadcast_arrays(length, angle)
    return lax.complex(a * jnp.cos(b), a * jnp.sin(b))


@op(aten.angle.default, kind=Kind.ELEMENTWISE, work=per_element(flops=0, transcendental=1))
def angle(x: Array, *, out: TensorType) -> Array:
    """Of a real number: 0 or pi, and NaN of NaN."""
    if dtype_of(x).is_complex:
        return jnp.arctan2(x.imag, x.real)
    a = cast(x, out.dtype)
    turned = jnp.where(a < 0, constant(np.pi, out.dtype), jnp.zeros((), a.dtype))
    return jnp.where(a != a, a, turned)
