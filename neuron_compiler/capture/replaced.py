"""Functions that PyTorch traces wrong or not at all, and what stands in their place in Dynamo's graph.

``multilabel_margin_loss``: its decomposition, which tracing takes whatever the backend, counts class 0 as a target for
every entry after the list of targets has ended. ``_assert_async`` without a message: AOTAutograd drops it.
``flex_attention``: one node that would run eagerly. ``matrix_rank(out=...)``: tracing leaves the tensor that was given
as it was. ``_native_batch_norm_legit(out=...)`` and ``Tensor.polygamma_``: tracing raises, in every backend.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule
from torch.nn import _reduction
from torch.nn import functional as F

from neuron_compiler.capture.flexible_attention import flex_attention
from neuron_compiler.lowering.loss_decompositions import multilabel_margin_loss
from neuron_compiler.lowering.ops.assertion import ASSERTED


def _functional(
    input: torch.Tensor,
    target: torch.Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> torch.Tensor:
    if size_average is not None or reduce is not None:
        return multilabel_margin_loss(input, target, _reduction.legacy_get_enum(size_average, reduce))
    return multilabel_margin_loss(input, target, _reduction.get_enum(reduction))


def _assert_async(condition: torch.Tensor, message: str = ASSERTED) -> None:
    torch.ops.aten._assert_async.msg(condition, message)


def _written(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its results copied into ``out``."""

    def call(*args: Any, out: Any = None, **kwargs: Any) -> Any:
        found = function(*args, **kwargs)
        if out is None:
            return found
        for place, result in zip(*((t if isinstance(t, tuple | list) else (t,)) for t in (out, found)), strict=True):
            place.copy_(result)
        return out

    return call


def _polygamma_(input: torch.Tensor, n: int) -> torch.Tensor:
    return input.copy_(torch.polygamma(n, input))


REPLACED: dict[Any, Callable[..., Any]] = {
    F.multilabel_margin_loss: _functional,
    torch._C._nn.multilabel_margin_loss: multilabel_margin_loss,
    torch.ops.aten.multilabel_margin_loss.default: multilabel_margin_loss,
    torch._assert_async: _assert_async,
    torch.ops.aten._assert_async.default: _assert_async,
    torch.ops.higher_order.flex_attention: flex_attention,
    torch.linalg.matrix_rank: _written(torch.linalg.matrix_rank),
    torch._native_batch_norm_legit: _written(torch._native_batch_norm_legit),
}
METHODS: dict[str, Callable[..., Any]] = {"polygamma_": _polygamma_}


def replace(module: GraphModule) -> None:
    """Change the graph's calls in place."""
    changed = False
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target in REPLACED:
            node.target, changed = REPLACED[node.target], True
        elif node.op == "call_method" and node.target in METHODS:
            node.op, node.target, changed = "call_function", METHODS[node.target], True
    if changed:
        module.recompile()
