"""Changes of element type."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import torch

from neuron_compiler.ir.graph import TensorType
from neuron_compiler.lowering.numeric import Array, cast
from neuron_compiler.opdef import Kind, no_work, op

aten = torch.ops.aten
prims = torch.ops.prims


@op(
    aten._to_copy.default,
    aten.to.dtype,
    prims.convert_element_type.default,
    kind=Kind.ELEMENTWISE,
    work=no_work,
)
def convert(x: Array, *_dtype: Any, dtype: Any = None, out: TensorType) -> Array:
    return cast(x, out.dtype)


@op(aten.copy.default, kind=Kind.ELEMENTWISE, work=no_work)
def copy(x: Array, source: Array, *, out: TensorType) -> Array:
    """What ``x.copy_(source)`` leaves in ``x``."""
    return jnp.broadcast_to(cast(source, out.dtype), out.shape)
