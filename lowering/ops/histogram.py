"""Counts of elements in equal bins."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import torch

from neuron_compiler.ir.graph import TensorType
from neuron_compiler.lowering import checks
from neuron_compiler.lowering.addressing import Rows
from neuron_compiler.lowering.numeric import Array, cast, constant, dtype_of, narrow, quotient, widen
from neuron_compiler.lowering.order import largest, smallest
from neuron_compiler.opdef import Kind, op, per_input_element

aten = torch.ops.aten


@op(aten.histc.default, kind=Kind.REDUCTION, work=per_input_element(flops=4))
def histc(x: Array, bins: int = 100, low: Any = 0, high: Any = 0, *, out: TensorType) -> Array:
    """Elements outside the range, and NaN, are in no bin; the last bin holds its upper edge, too."""
    flat = widen(x).reshape(-1)
    own = dtype_of(flat)
    first, last = constant(low, own), constant(high, own)
    if low == high and flat.size:
        first, last = smallest(flat, (0,)), largest(flat, (0,))
    finite = jnp.isfinite(first) & jnp.isfinite(last)
    checks.require(finite, "torch.histc: the range of the elements is not finite", RuntimeError)
    empty = first == last
    first, last = jnp.where(empty, first - 1, first), jnp.where(empty, last + 1, last)
    place = quotient((flat - first) * constant(bins, own), last - first)
    inside = (flat >= first) & (flat <= last)
    number = jnp.minimum(jnp.where(inside, place, 0).astype(np.int64), bins - 1)
    counts = Rows(jnp.where(inside, number, bins), ()).write(
        jnp.zeros(bins, jnp.int64), jnp.ones(flat.shape, jnp.int64), "add"
    )
    return narrow(cast(counts, own), out)
