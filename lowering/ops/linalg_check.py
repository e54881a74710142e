"""The check that ``torch.linalg`` makes of a factorisation's ``info``, as an op that compiles.

ATen's ``_linalg_check_errors`` returns nothing and raises. AOTAutograd keeps such an effect in its place by a token:
an empty tensor that each effect takes from the one before, and the last one returns. Here the token is an operand,
where there is one before, and the result.
"""

from __future__ import annotations

import jax.numpy as jnp
import torch

from neuron_compiler import dtypes
from neuron_compiler.ir.graph import TensorType
from neuron_compiler.lowering.numeric import Array
from neuron_compiler.lowering.ops.linalg import check_info
from neuron_compiler.opdef import Kind, op

LIBRARY = torch.library.Library("neuron_compiler", "DEF")
LIBRARY.define("linalg_check(Tensor? token, Tensor info, str api_name, *, bool is_matrix) -> Tensor")


def _checked(token: torch.Tensor | None, info: torch.Tensor, api_name: str, *, is_matrix: bool) -> torch.Tensor:
    torch.ops.aten._linalg_check_errors(info, api_name, is_matrix=is_matrix)
    return torch.empty(0)


LIBRARY.impl("linalg_check", _checked, "CompositeExplicitAutograd")

LINALG_CHECK = torch.ops.neuron_compiler.linalg_check.default


@op(LINALG_CHECK, kind=Kind.INDEXING)
def linalg_check(token: Array | None, info: Array, api_name: str, *, is_matrix: bool, out: TensorType) -> Array:
    check_info(info, api_name)
    return jnp.zeros(out.shape, dtypes.to_numpy(out.dtype))
