"""Activations and their gradients, as ATen defines them; half precisions are computed in float32."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import torch
from jax import lax

from neuron_compiler.ir.graph import TensorType, TupleType
from neuron_compiler.lowering import order
from neuron_compiler.lowering.numeric import Array, cast, constant, dtype_of, narrow, sealed, widened, working
from neuron_compiler.lowering.transcendental import log
from neuron_compiler.opdef import Kind, op, per_element

aten = torch.ops.aten


def _c(value: Any, like: Array) -> Array:
    return constant(value, dtype_of(like))


def _zero(like: Array) -> Array:
    return jnp.zeros((), like.dtype)


@op(aten.relu.default, kind=Kind.ELEMENTWISE)
def relu(x: Array) -> Array:
    return order.maximum(_zero(x), x)  # -0 stays: of equal operands the second one is taken


@op(aten.threshold.default, kind=Kind.ELEMENTWISE)
def threshold(x: Array, limit: Any, value: Any, *, out: TensorType) -> Array:
    return jnp.where(x <= constant(limit, out.dtype), constant(value, out.dtype), x)


@op(aten.threshold_backward.default, kind=Kind.ELEMENTWISE)
def threshold_backward(grad: Array, x: Array, limit: Any, *, out: TensorType) -> Array:
    grad, x = cast(grad, out.dtype), cast(x, out.dtype)
    return jnp.where(x <= constant(limit, out.dtype), _zero(grad), grad)


@op(aten.sigmoid.default, kind=Kind.ELEMENTWISE, work=per_element(flops=2, transcendental=1))
def sigmoid(x: Array, *, out: TensorType) -> Array:
    (a,) = working(out, x)
    return narrow(sealed(lax.logistic(a)), out)


@op(aten.sigmoid_backward.default, kind=Kind.ELEMENTWISE, work=per_element(flops=3))
def sigmoid_backward(grad: Array, result: Array, *, out: TensorType) -> Array:
    g, y = working(out, grad, result)
    return narrow(g * lax.conj((1 - y) * y) if dtype_of(y).is_complex else g * (1 - y) * y, out)


@op(aten.tanh_backward.default, kind=Kind.ELEMENTWISE, work=per_element(flops=3))
def tanh_backward(grad: Array, result: Array, *, out: TensorType) -> Array:
    g, y = working(out, grad, result)
    slope = 1 - y * y
    return narrow(g * (lax.conj(slope) if dtype_of(y).is_complex else slope), out)


@op(aten.silu.default, kind=Kind.ELEMENTWISE, work=per_element(flops=3, transcendental=1))
def silu(x: Array, *, out: TensorType) -> Array:
    (a,) = working(out, x)
    return narrow(sealed(a / (1 + jnp.exp(-a))), out)


@op(aten.silu_backward.default, kind=Kind.ELEMENTWISE, work=per_element(flops=6, transcendental=1))
def silu_backward(grad: Array, x: Array, *, out: TensorType) -> Array:
    g, a = working(out, grad, x)
    y = sealed(1 / (1 + jnp.exp(-a)))
    return narrow(g * y * (1 + a * (1 - y)), out)


_TANH_INNER = math.sqrt(2 / math.pi)
_TANH_CUBIC = 0.044715


@op(aten.gelu.default, kind=Kind.ELEMENTWISE, work=per_element(flops=4, transcendental=1))
def gelu(x: Array, *, approximate: str = "none", out: TensorType) -> Array:
    (a,) = working(out, x)
    if approximate == "tanh":
        inner = _c(_TANH_INNER, a) * (a + _c(_TANH_CUBIC, a) * (a * a * a))
        return narrow(_c(0.5, a) * a * (1 + jnp.tanh(inner)), out)
    return narrow(a * _c(0.5, a) * (1 + lax.erf(a * _c(math.sqrt(0.5), a))), out)


@op(aten.gelu_backward.default, kind=Kind.ELEMENTWISE, work=per_element(flops=9, transcendental=2))
def gelu_backward(grad: Array, x: Array, *, approximate: str = "none", out: TensorType) -> Array:
    g, a = working(out, grad, x)
    half = _c(0.5, a)
    if approximate == "tanh":
        inner = _c(_TANH_INNER, a) * (a + _c(_TANH_CUBIC, a) * (a * a * a))
        share = sealed(lax.logistic(inner + inner))  # (1 + tanh) / 2, without its cancellation where x is negative
        slope = _c(_TANH_INNER, a) * (1 + _c(3 * _TANH_CUBIC, a) * (a * a))
        return narrow(g * (share + (a + a) * share * (1 - share) * slope), out)
    cdf = half * (1 + lax.erf(a * _c(math.sqrt(0.5), a)))
    density = _c(1 / math.sqrt(2 * math.pi), a) * sealed(jnp.exp(-half * (a * a)))
    return narrow(g * (cdf + a * density), out)


@op(aten.leaky_relu.default, kind=Kind.ELEMENTWISE, work=per_element(flops=2))
def leaky_relu(x: Array, slope: Any = 0.01, *, out: TensorType) -> Array:
    (a,) = working(out, x)
    return narrow(jnp.where(a > 0, a, a * _c(slope, a)), out)


@op(aten.leaky_relu_backward.default, kind=Kind.ELEMENTWISE, work=per_element(flops=2))
def leaky_relu_backward(grad: Array, x: Array, slope: Any, is_result: bool, *, out: TensorType) -> Array:
    g, a = working(out, grad, x)
    return narrow(jnp.where(a > 0, g, g * _c(slope, g)), out)


@op(aten._prelu_kernel.default, kind=Kind.ELEMENTWISE, work=per_element(flops=2))
def prelu(x: Array, weight: Array, *, out: TensorType) -> Array:
    a, w = working(out, x, weight)
    return narrow(jnp.where(a > 0, a, a * w), out)


@op(aten._prelu_kernel_backward.default, kind=Kind.ELEMENTWISE, work=per_element(flops=3))
def prelu_backward(grad: Array, x: Array, weight: Array, *, out: TupleType) -> tuple[Array, Array]:
    dtype = widened(dtype_of(x))
    g, a, w = (cast(v, dtype) for v in (grad, x, weight))
    of_x, of_weight = jnp.where(a > 0, g, w * g), jnp.where(a > 0, _zero(a), a * g)
    return cast(of_x, dtype_of(x)), cast(of_weight, dtype_of(x))


@op(aten.elu.default, kind=Kind.ELEMENTWISE, work=per_element(flops=3, transcendental=1))
def elu(x: Array, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1, *, out: TensorType) -> Array:
    (a,) = working(out, x)
    negative = jnp.expm1(a * _c(input_scale, a)) * _c(alpha * scale, a)
    return narrow(jnp.where(a < 0, negative, a * _c(scale, a)), out)


@op(aten.elu_backward.default, kind=Kind.ELEMENTWISE, work=per_element(flops=4, transcendental=1))
def elu_backward(
    grad: Array, alpha: Any, scale: Any, input_scale: Any, is_result: bool, x: Array, *, out: TensorType
) -> Array:
    g, a = working(out, grad, x)
    if is_result:
        negative = g * _c(input_scale, a) * (a + _c(alpha * scale, a))
    else:
        negative = g * _c(input_scale * alpha * scale, a) * sealed(jnp.exp(a * _c(input_scale, a)))
    return narrow(jnp.where(a > 0, g * _c(scale, a), negative), out)


@op(aten.hardtanh.default, kind=Kind.ELEMENTWISE, work=per_element(flops=2))
def hardtanh(x: Array, low: Any = -1, high: Any = 1, *, out: TensorType) -> Array:
    (a,) = working(out, x)
    return narrow(order.minimum(_c(high, a), order.maximum(_c(low, a), a)), out)


@op(aten.hardtanh_backward.default, kind=Kind.ELEMENTWISE, work=per_element(flops=2))
def hardtanh_backward(grad: Array, x: Array, low: Any, high: Any, *, out: TensorType) -> Array:
    g, a = working(out, grad, x)
    return narrow(jnp.where((a > _c(low, a)) & (a < _c(high, a)), g, _zero(g)), out)


def _relu6_of_shifted(a: Array) -> Array:
    return order.minimum(order.maximum(a + 3, _zero(a)), jnp.asarray(6, a.dtype))


@op(aten.hardsigmoid.default, kind=Kind.ELEMENTWISE, work=per_element(flops=4))
def hardsigmoid(x: Array, *, out: TensorType) -> Array:
    (a,) = working(out, x)
    return narrow(_relu6_of_shifted(a) / _c(6, a), out)


@op(aten.hardsigmoid_backward.default, kind=Kind.ELEMENTWISE, work=per_element(flops=3))
def hardsigmoid_backward(grad: Array, x: Array, *, out: TensorType) -> Array:
    g, a = working(out, grad, x)
    return narrow(jnp.where((a > -3) & (a < 3), g * _c(1 / 6, a), _zero(g)), out)


@op(aten.hardswish.default, kind=Kind.ELEMENTWISE, work=per_element(flops=5))
def hardswish(x: Array, *, out: TensorType) -> Array:
    (a,) = working(out, x)
    return narrow(a * _relu6_of_shifted(a) / _c(6, a), out)


@op(aten.hardswish_backward.default, kind=Kind.ELEMENTWISE, work=per_element(flops=4))
def hardswish_backward(grad: Array, x: Array, *, out: TensorType) -> Array:
    g, a = working(out, grad, x)
    middle = g * (a / _c(3, a) + _c(0.5, a))
    return narrow(jnp.where(a <= -3, _zero(g), jnp.where(a >= 3, g, middle)), out)


@op(aten.softplus.default, kind=Kind.ELEMENTWISE, work=per_element(flops=3, transcendental=2))
def softplus(x: Array, beta: Any = 1, limit: Any = 20, *, out: TensorType) -> Array:
    """Linear above the limit."""
    (a,) = working(out, x)
    scaled = a * _c(beta, a)
    return narrow(jnp.where(scaled > _c(limit, a), a, jnp.log1p(sealed(jnp.exp(scaled))) / _c(beta, a)), out)


@op(aten.softplus_backward.default, kind=Kind.ELEMENTWISE, work=per_element(flops=4, transcendental=1))
def softplus_backward(grad: Array, x: Array, beta: Any, limit: Any, *, out: TensorType) -> Array:
    g, a = working(out, grad, x)
    scaled = a * _c(beta, a)
    z = sealed(jnp.exp(scaled))
    return narrow(jnp.where(scaled > _c(limit, a), g, g * z / (z + 1)), out)


@op(aten.mish.default, kind=Kind.ELEMENTWISE, work=per_element(flops=2, transcendental=3))
def mish(x: Array, *, out: TensorType) -> Array:
    (a,) = working(out, x)
    return narrow(a * jnp.tanh(jnp.log1p(sealed(jnp.exp(a)))), out)


@op(aten.mish_backward.default, kind=Kind.ELEMENTWISE, work=per_element(flops=7, transcendental=4))
def mish_backward(grad: Array, x: Array, *, out: TensorType) -> Array:
    g, a = working(out, grad, x)
    y = sealed(1 / (1 + jnp.exp(-a)))
    t = jnp.tanh(jnp.log1p(sealed(jnp.exp(a))))
    return narrow(g * (t + a * y * (1 - t * t)), out)


@op(aten.log_sigmoid_forward.default, kind=Kind.ELEMENTWISE, work=per_element(flops=3, transcendental=2))
def log_sigmoid(x: Array, *, out: TupleType) -> tuple[Array, Array]:
    """Also returns exp(-abs(x)), from which the CPU's gradient is computed."""
    a = cast(x, widened(dtype_of(x)))
    buffer = sealed(jnp.exp(-jnp.abs(a)))
    y = order.minimum(a, _zero(a)) - jnp.log1p(buffer)
    return cast(y, dtype_of(x)), cast(buffer, dtype_of(x))


@op(aten.log_sigmoid_backward.default, kind=Kind.ELEMENTWISE, work=per_element(flops=4))
def log_sigmoid_backward(grad: Array, x: Array, buffer: Array, *, out: TensorType) -> Array:
    g, a = working(out, grad, x)
    z = sealed(jnp.exp(-jnp.abs(a))) if buffer.size == 0 else cast(buffer, dtype_of(a))
    rest = sealed(z / (1 + z))
    return narrow(g * jnp.where(a < 0, 1 - rest, rest), out)


@op(aten.hardshrink.default, kind=Kind.ELEMENTWISE)
def hardshrink(x: Array, limit: Any = 0.5, *, out: TensorType) -> Array:
    (a,) = working(out, x)
    inside = (a >= _c(-limit, a)) & (a <= _c(limit, a))
    return jnp.where(inside, _zero(x), x)


@op(aten.hardshrink_backward.default, aten.softshrink_backward.default, kind=Kind.ELEMENTWISE)
def shrink_backward(grad: Array, x: Array, limit: Any, *, out: TensorType) -> Array:
    g, a = working(out, grad, x)
    return narrow(jnp.where((a < _c(-limit, a)) | (a > _c(limit, a)), g, _zero(g)), out)


@op(aten.softshrink.default, kind=Kind.ELEMENTWISE, work=per_element(flops=2))
def softshrink(x: Array, limit: Any = 0.5, *, out: TensorType) -> Array:
    (a,) = working(out, x)
    size = _c(limit, a)
    return narrow(jnp.where(a > size, a - size, jnp.where(a < -size, a + size, a * _zero(a))), out)


@op(aten.glu.default, kind=Kind.OTHER, work=per_element(flops=3, transcendental=1))
def glu(x: Array, dim: int = -1, *, out: TensorType) -> Array:
    a, b = jnp.split(working(out, x)[0], 2, dim)
    return narrow(a * sealed(lax.logistic(b)), out)


@op(aten.glu_backward.default, kind=Kind.OTHER, work=per_element(flops=5, transcendental=1))
def glu_backward(grad: Array, x: Array, dim: int, *, out: TensorType) -> Array:
    g, whole = working(out, grad, x)
    a, b = jnp.split(whole, 2, dim)
    y = sealed(lax.logistic(b))
    of_a = g * y
    return narrow(jnp.concatenate([of_a, of_a * (1 - y) * a], dim), out)


@op(aten.logit.default, kind=Kind.ELEMENTWISE, work=per_element(flops=3, transcendental=1))
def logit(x: Array, eps: Any = None, *, out: TensorType) -> Array:
    (a,) = working(out, x)
    if eps is not None:
        a = jnp.where(a < _c(eps, a), _c(eps, a), jnp.where(a > _c(1 - eps, a), _c(1 - eps, a), a))
    return narrow(sealed(log(sealed(a / (1 - a)))), out)


@op(aten.logit_backward.default, kind=Kind.ELEMENTWISE, work=per_element(flops=4))
def logit_backward(grad: Array, x: Array, eps: Any = None, *, out: TensorType) -> Array:
    g, a = working(out, grad, x)
    slope = sealed(g / (a * (1 - a)))
    if eps is None:
        return narrow(jnp.where((a < 0) | (a > 1), jnp.nan, slope).astype(slope.dtype), out)
    return narrow(jnp.where((a < _c(eps, a)) | (a > _c(1 - eps, a)), _zero(slope), slope), out)


@op(aten.rrelu_with_noise_backward.default, kind=Kind.ELEMENTWISE, work=per_element(flops=2))
def rrelu_with_noise_backward(
    grad: Array, x: Array, noise: Array, lower: Any, upper: Any, training: bool, is_result: bool, *, out: TensorType
) -> Array:
    """The slopes drawn in the forward pass are in ``noise``; a narrow range is taken for its mean, as ATen does."""
    g, a, n = working(out, grad, x, noise)
    if training and upper - lower > 1e-6:
        return narrow(g * n, out)
    return narrow(jnp.where(a > 0, g, g * _c((lower + upper) / 2, g)), out)


@op(aten.native_dropout_backward.default, kind=Kind.ELEMENTWISE, work=per_element(flops=2))
def native_dropout_backward(grad: Array, mask: Array, scale: Any, *, out: TensorType) -> Array:
    g, m = working(out, grad, mask)
    return narrow(g * (m * _c(scale, g)), out)
