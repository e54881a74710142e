"""Orthogonal polynomials whose degree is a tensor.

ATen's kernels: values at the ends of the interval, cosines inside it for high degrees, the recurrence elsewhere. The
recurrence runs as often as the highest degree that needs it, all elements side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from neuron_compiler.ir.graph import DType, TensorType
from neuron_compiler.lowering.numeric import Array, cast, constant, dtype_of, quotient
from neuron_compiler.opdef import Kind, op, per_element

aten = torch.ops.aten

_WORK = per_element(flops=40, transcendental=2)

Step = Callable[[Array, Array, Array, Array], Array]
"""Next value from x, k (in x's type), the value before the last, the last."""


@dataclass(frozen=True)
class _Known:
    """Elements whose value needs no recurrence."""

    where: Array
    value: Array


def _two_term(x: Array, degree: Array, first: Array, step: Step, known: list[_Known], start: int) -> Array:
    """Degree 0 is one, degree 1 ``first``, each further one ``step`` of the two before; 0 below degree 0.

    ``start`` is the recurrence's k where it makes degree 2. Elements that have become NaN stay so.
    """
    left = degree >= 2
    for one in known:
        left = left & ~one.where

    def active(k: Array, q: Array) -> Array:
        return left & (k <= degree) & (q == q)

    def more(state: tuple[Array, Array, Array]) -> Array:
        k, _, q = state
        return jnp.any(active(k, q))

    def turn(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        k, p, q = state
        now = active(k, q)
        r = step(x, (k - 2 + start).astype(x.dtype), p, q)
        return k + 1, jnp.where(now, q, p), jnp.where(now, r, q)

    _, _, last = lax.while_loop(more, turn, (jnp.asarray(2, np.int64), jnp.ones_like(x), first))
    found = jnp.where(degree == 0, jnp.ones_like(x), jnp.where(degree == 1, first, last))
    for one in reversed(known):
        found = jnp.where(one.where, one.value, found)
    return jnp.where(degree < 0, jnp.zeros_like(x), found)


def _operands(x: Any, n: Any, out: TensorType) -> tuple[Array, Array]:
    """The point and the degree; ATen takes the degree through the result's type."""
    point = jnp.broadcast_to(cast(x, out.dtype), out.shape)
    return point, jnp.broadcast_to(cast(cast(n, out.dtype), DType.I64), out.shape)


def _chebyshev_step(x: Array, k: Array, p: Array, q: Array) -> Array:
    return (x + x) * q - p


def _alternating(degree: Array, even: Array, odd: Array) -> Array:
    return jnp.where(degree % 2 == 0, even, odd)


def _chebyshev(kind: str, x: Array, degree: Array, plus: Array, minus: Array, above: int) -> Array:
    """Of the first to fourth kind (t, u, v, w) at ``x``, where ``plus`` and ``minus`` say what is its end 1 and -1.

    Inside the interval, degrees beyond ``above`` come from the angle whose cosine is ``x``.
    """
    n = degree.astype(x.dtype)
    one, half, twice = jnp.ones_like(x), constant(0.5, dtype_of(x)), n + n + 1
    angle = jnp.arccos(x)
    half_angle = angle * half
    flat = {
        "t": (one, one),
        "u": (n + 1, n + 1),
        "v": (one, twice),
        "w": (twice, one),
    }[kind]
    at_plus, at_minus = flat[0], _alternating(degree, flat[1], -flat[1])
    if kind == "t":
        first, inside = x, jnp.cos(n * angle)
    elif kind == "u":
        sine = jnp.sin(angle)
        first = x + x
        inside = jnp.where(sine != 0, jnp.sin((n + 1) * angle) / sine, (n + 1) * jnp.cos((n + 1) * angle) / x)
    elif kind == "v":
        first = x + x - 1
        inside = jnp.where(jnp.sin(half_angle) != 1, jnp.cos((n + half) * angle) / jnp.cos(half_angle), at_minus)
    else:
        first = x + x + 1
        limit = jnp.where(x > 0, twice, _alternating(degree, one, -one))
        inside = jnp.where(jnp.cos(half_angle) != 1, jnp.sin((n + half) * angle) / jnp.sin(half_angle), limit)
    known = [
        _Known(plus, at_plus),
        _Known(minus, at_minus),
        _Known((degree > above) & (jnp.abs(x) < 1), inside),
    ]
    return _two_term(x, degree, first, _chebyshev_step, known, 2)


def _register_chebyshev(kind: str, above: int, above_shifted: int) -> None:
    def plain(x: Any, n: Any, *, out: TensorType) -> Array:
        point, degree = _operands(x, n, out)
        return _chebyshev(kind, point, degree, point == 1, point == -1, above)

    def shifted(x: Any, n: Any, *, out: TensorType) -> Array:
        point, degree = _operands(x, n, out)
        return _chebyshev(kind, point + point - 1, degree, point == 1, point == 0, above_shifted)

    for name, rule in ((f"chebyshev_polynomial_{kind}", plain), (f"shifted_chebyshev_polynomial_{kind}", shifted)):
        packet = getattr(aten, f"special_{name}")
        op(packet.default, packet.x_scalar, packet.n_scalar, kind=Kind.ELEMENTWISE, work=_WORK)(rule)


_register_chebyshev("t", 6, 6)
_register_chebyshev("u", 8, 6)
_register_chebyshev("v", 8, 6)
_register_chebyshev("w", 8, 4)


def _overloads(name: str) -> tuple[Any, ...]:
    packet = getattr(aten, f"special_{name}")
    return packet.default, packet.x_scalar, packet.n_scalar


_HERMITE_LIMIT = {DType.F32: 128, DType.F64: 512}
"""The highest degree that ATen computes; NaN beyond."""


def _hermite(x: Array, degree: Array, first: Array, step: Step) -> Array:
    too_high = _Known(degree > _HERMITE_LIMIT[dtype_of(x)], jnp.full_like(x, jnp.nan))
    return _two_term(x, degree, first, step, [too_high], 1)


@op(*_overloads("hermite_polynomial_h"), kind=Kind.ELEMENTWISE, work=_WORK)
def hermite_h(x: Any, n: Any, *, out: TensorType) -> Array:
    point, degree = _operands(x, n, out)
    return _hermite(point, degree, point + point, lambda x, k, p, q: (x + x) * q - (k + k) * p)


@op(*_overloads("hermite_polynomial_he"), kind=Kind.ELEMENTWISE, work=_WORK)
def hermite_he(x: Any, n: Any, *, out: TensorType) -> Array:
    point, degree = _operands(x, n, out)
    return _hermite(point, degree, point, lambda x, k, p, q: x * q - k * p)


@op(*_overloads("laguerre_polynomial_l"), kind=Kind.ELEMENTWISE, work=_WORK)
def laguerre(x: Any, n: Any, *, out: TensorType) -> Array:
    point, degree = _operands(x, n, out)
    at_zero = _Known(point == 0, jnp.ones_like(point))

    def step(x: Array, k: Array, p: Array, q: Array) -> Array:
        return quotient(((k + k) + (1 - x)) * q - k * p, k + 1)

    return _two_term(point, degree, 1 - point, step, [at_zero], 1)


@op(*_overloads("legendre_polynomial_p"), kind=Kind.ELEMENTWISE, work=_WORK)
def legendre(x: Any, n: Any, *, out: TensorType) -> Array:
    point, degree = _operands(x, n, out)
    one = jnp.ones_like(point)
    ends = [_Known(point == 1, one), _Known(point == -1, _alternating(degree, one, -one))]

    def step(x: Array, k: Array, p: Array, q: Array) -> Array:
        return quotient((k + k + 1) * x * q - k * p, k + 1)

    return _two_term(point, degree, point, step, ends, 1)
