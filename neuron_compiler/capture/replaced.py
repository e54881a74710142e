"""Functions that PyTorch traces wrong or not at all, and what stands in their place in Dynamo's graph.

``multilabel_margin_loss``: its decomposition, which tracing takes whatever the backend, counts class 0 as a target for
every entry after the list of targets has ended. ``_assert_async`` without a message: AOTAutograd drops it.
``flex_attention``: one node that would run eagerly.
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


REPLACED: dict[Any, Callable[..., Any]] = {
    F.multilabel_margin_loss: _functional,
    torch._C._nn.multilabel_margin_loss: multilabel_margin_loss,
    torch.ops.aten.multilabel_margin_loss.default: multilabel_margin_loss,
    torch._assert_async: _assert_async,
    torch.ops.aten._assert_async.default: _assert_async,
    torch.ops.higher_order.flex_attention: flex_attention,
}


def replace(module: GraphModule) -> None:
    """Change the graph's calls in place."""
    found = [node for node in module.graph.nodes if node.op == "call_function" and node.target in REPLACED]
    for node in found:
        node.target = REPLACED[node.target]
    if found:
        module.recompile()
