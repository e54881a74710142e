"""Batch norm in the overloads that AOTAutograd leaves on the CPU, and its gradient.

``aten.native_batch_norm`` has no rule: it updates its running statistics in place behind a functional schema, and
capture sees one of the overloads below instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import torch

from neuron_compiler.ir.graph import DType, TensorType, TupleType
from neuron_compiler.lowering.numeric import Array, cast, constant, dtype_of, narrow, rounded, widen
from neuron_compiler.lowering.ops.normalisation import (
    Gradients,
    OutputMask,
    input_gradient,
    reciprocal_deviation,
    zero,
)
from neuron_compiler.lowering.ops.reduction import count_of, moments
from neuron_compiler.opdef import Kind, op, per_input_element

aten = torch.ops.aten

_WORK = per_input_element(flops=8)
_INFERENCE_WORK = per_input_element(flops=4)


def _axes(x: Array) -> tuple[int, ...]:
    """All but the channels."""
    return (0, *range(2, x.ndim))


def _per_channel(v: Array, like: Array) -> Array:
    """A vector [channels] shaped and typed to go with ``like``."""
    return cast(v, dtype_of(like)).reshape(1, -1, *(1,) * (like.ndim - 2))


def _scaled(unit: Array, weight: Array | None, bias: Array | None) -> Array:
    if weight is not None:
        unit = unit * _per_channel(weight, unit)
    return unit if bias is None else unit + _per_channel(bias, unit)


def _roundings(
    x: Array, vectors: tuple[Array | None, ...]
) -> tuple[Callable[[Array], Array], Callable[[Array], Array]]:
    """What ATen rounds to the type of ``x``, unless a vector [channels] is wider: saved statistics; steps to them."""

    def kept(statistic: Array) -> Array:
        return rounded(statistic, dtype_of(x))

    def exact(statistic: Array) -> Array:
        return statistic

    if any(v is not None and dtype_of(v) is not dtype_of(x) for v in vectors):
        return exact, exact
    return kept, kept if dtype_of(x) is DType.BF16 else exact


class _Batch(NamedTuple):
    """What one batch gives; vectors [channels], in float32 for halves."""

    result: Array
    mean: Array
    """As it is saved."""
    rstd: Array
    new_mean: Array
    """What goes into the running mean."""
    new_variance: Array


def _by_batch(
    x: Array, weight: Array | None, bias: Array | None, eps: float, out: TensorType, *running: Array
) -> _Batch:
    """Normalised by mean and deviation as they are saved; for bfloat16, each step to them is rounded, the count too."""
    wide = widen(x)
    kept, step = _roundings(x, (weight, bias, *running))
    variance, mean = moments(wide, _axes(x), compensated=False)
    own = dtype_of(variance)
    exact_count = constant(count_of(x, _axes(x)), own)
    count, one = step(exact_count), constant(1, own)
    squares = step(variance * exact_count)
    rstd = kept(reciprocal_deviation(step(squares / count), eps))
    saved = kept(mean)
    result = narrow(_scaled((wide - saved) * rstd, weight, bias), out)
    unbiased = step(squares / step(exact_count - one))
    return _Batch(result, *(v.reshape(-1) for v in (saved, rstd, step(mean), unbiased)))


def _by_running(
    x: Array, weight: Array | None, bias: Array | None, mean: Array, var: Array, eps: float, out: TensorType
) -> Array:
    wide = widen(x)
    rstd = reciprocal_deviation(_per_channel(var, wide), eps)
    return narrow(_scaled((wide - _per_channel(mean, wide)) * rstd, weight, bias), out)


def _trained(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running: tuple[Array, Array],
    momentum: float,
    eps: float,
    out: TupleType,
) -> tuple[Array, Array, Array, Array, Array]:
    batch = _by_batch(x, weight, bias, eps, out.elements[0], *running)
    own = dtype_of(batch.new_mean)
    _, step = _roundings(x, (weight, bias, *running))
    share = step(constant(momentum, own))
    old_mean, old_variance = (step(step(constant(1, own) - share) * cast(old, own)) for old in running)
    # ATen multiplies and adds in one for the variance alone.
    mean, variance = step(share * batch.new_mean) + old_mean, share * batch.new_variance + old_variance
    return (
        batch.result,
        narrow(batch.mean, out.elements[1]),
        narrow(batch.rstd, out.elements[2]),
        narrow(step(mean), out.elements[-2]),
        narrow(step(variance), out.elements[-1]),
    )


@op(aten._native_batch_norm_legit_functional.default, kind=Kind.NORMALISATION, work=_WORK)
def batch_norm_functional(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    training: bool,
    momentum: float,
    eps: float,
    *,
    out: TupleType,
) -> tuple[Array, ...]:
    if training:
        return _trained(x, weight, bias, (running_mean, running_var), momentum, eps, out)
    return (
        _by_running(x, weight, bias, running_mean, running_var, eps, out.elements[0]),
        zero(out.elements[1]),
        zero(out.elements[2]),
        cast(running_mean, out.elements[3].dtype),
        cast(running_var, out.elements[4].dtype),
    )


@op(aten._batch_norm_with_update_functional.default, kind=Kind.NORMALISATION, work=_WORK)
def batch_norm_with_update(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    momentum: float,
    eps: float,
    *,
    out: TupleType,
) -> tuple[Array, ...]:
    result, mean, rstd, *updated = _trained(x, weight, bias, (running_mean, running_var), momentum, eps, out)
    return result, mean, rstd, zero(out.elements[3]), *updated


@op(aten._native_batch_norm_legit_no_training.default, kind=Kind.NORMALISATION, work=_INFERENCE_WORK)
def batch_norm_no_training(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    momentum: float,
    eps: float,
    *,
    out: TupleType,
) -> tuple[Array, ...]:
    result = _by_running(x, weight, bias, running_mean, running_var, eps, out.elements[0])
    return result, *(zero(element) for element in out.elements[1:])


@op(aten._batch_norm_no_update.default, kind=Kind.NORMALISATION, work=_INFERENCE_WORK)
def batch_norm_no_update(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    momentum: float,
    eps: float,
    *,
    out: TupleType,
) -> tuple[Array, ...]:
    return batch_norm_no_training(x, weight, bias, running_mean, running_var, momentum, eps, out=out)


@op(aten._native_batch_norm_legit.no_stats, kind=Kind.NORMALISATION, work=_WORK)
def batch_norm_no_stats(
    x: Array, weight: Array | None, bias: Array | None, training: bool, momentum: float, eps: float, *, out: TupleType
) -> tuple[Array, ...]:
    batch = _by_batch(x, weight, bias, eps, out.elements[0])
    return batch.result, narrow(batch.mean, out.elements[1]), narrow(batch.rstd, out.elements[2])


@op(aten.native_batch_norm_backward.default, kind=Kind.NORMALISATION, work=per_input_element(flops=12))
def batch_norm_backward(
    grad: Array,
    x: Array,
    weight: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    save_mean: Array | None,
    save_invstd: Array | None,
    train: bool,
    eps: float,
    output_mask: OutputMask,
    *,
    out: TupleType,
) -> Gradients:
    wide, g = widen(x), widen(grad)
    axes = _axes(x)
    if train:
        mean, rstd = _per_channel(save_mean, wide), _per_channel(save_invstd, wide)
    else:
        mean = _per_channel(running_mean, wide)
        rstd = reciprocal_deviation(_per_channel(running_var, wide), eps)
    unit = (wide - mean) * rstd
    of_x = of_weight = of_bias = None
    if output_mask[0]:
        weighted = g if weight is None else g * _per_channel(weight, g)
        gradient = input_gradient(weighted, unit, rstd, axes) if train else weighted * rstd
        of_x = narrow(gradient, out.elements[0])
    if output_mask[1]:
        of_weight = narrow(jnp.sum(g * unit, axis=axes), out.elements[1])
    if output_mask[2]:
        of_bias = narrow(jnp.sum(g, axis=axes), out.elements[2])
    return of_x, of_weight, of_bias


@op(aten.batch_norm_backward.default, kind=Kind.NORMALISATION, work=per_input_element(flops=12))
def batch_norm_backward_with_reserve(
    grad: Array,
    x: Array,
    weight: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    save_mean: Array | None,
    save_var: Array | None,
    update: bool,
    eps: float,
    output_mask: OutputMask,
    reserve: Array,
    *,
    out: TupleType,
) -> Gradients:
    """``save_var`` holds the reciprocal deviation on the CPU, as ``save_invstd`` does."""
    return batch_norm_backward(
        grad, x, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask, out=out
    )
