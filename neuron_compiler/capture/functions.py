"""A function of tensors, compiled as ``torch.compile`` would compile it, without Dynamo: for callers of our own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from neuron_compiler.capture.backend import neuron


def compile_function(
    function: Callable[..., Sequence[torch.Tensor]],
    examples: Sequence[torch.Tensor],
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Sequence[torch.Tensor]]:
    """The function compiled for tensors like the examples, none of which requires a gradient.

    The function must do the same for all such tensors; it is called once, on tensors without values. It may write to
    its arguments.
    """
    module = make_fx(function, tracing_mode="fake")(*examples)
    return neuron(module, list(examples), options=options)
