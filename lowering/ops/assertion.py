"""``aten._assert_async`` as an op that compiles: it raises where its condition does not hold.

ATen's returns nothing. This one returns an empty tensor, which the executable gives back and nobody reads.
"""

from __future__ import annotations

import jax.numpy as jnp
import torch

from neuron_compiler import dtypes
from neuron_compiler.ir.graph import TensorType
from neuron_compiler.lowering import checks
from neuron_compiler.lowering.numeric import Array
from neuron_compiler.lowering.ops.linalg_check import LIBRARY
from neuron_compiler.opdef import Call, Kind, op

ASSERTED = "Expected Tensor with single nonzero value, but got zero"
"""What ATen says where the program gives no message."""

LIBRARY.define('assertion(Tensor condition, str message="") -> Tensor')


def _asserted(condition: torch.Tensor, message: str = "") -> torch.Tensor:
    if message:
        torch.ops.aten._assert_async.msg(condition, message)
    else:
        torch.ops.aten._assert_async.default(condition)
    return condition.new_empty(0)


LIBRARY.impl("assertion", _asserted, "CompositeExplicitAutograd")

ASSERTION = torch.ops.neuron_compiler.assertion.default


def _not_one(call: Call) -> str | None:
    return None if call.type(0).numel == 1 else "assertion of other than one element"


@op(ASSERTION, kind=Kind.INDEXING, when=_not_one)
def assertion(condition: Array, message: str = "", *, out: TensorType) -> Array:
    checks.require(jnp.all(condition != 0), message or ASSERTED, RuntimeError)
    return jnp.zeros(out.shape, dtypes.to_numpy(out.dtype))
