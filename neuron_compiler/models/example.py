"""Example: a model and the inputs it is called with, and the redrawing of its weights.

Random weights as constructors leave them hide faults: zero biases, unit norms and running statistics of 0 and 1 cancel
out, and logits of a nearly uniform attention do not show a wrong mask. ``redraw`` gives every weight a value that
matters, at a scale that keeps activations near 1 through any depth. Equal seeds give equal weights.
"""

from __future__ import annotations

import copy
import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

SEED = 0


class Size(enum.Enum):
    """How large a model is built."""

    FULL = "full"
    """The published width and depth, or the number of layers that the title names."""
    SMALL = "small"
    """The same architecture, narrow and shallow: compiles in seconds."""


@dataclass(frozen=True)
class Example:
    """A module in evaluation mode and the arguments of one call of it."""

    module: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def call(self, module: Any = None) -> list[torch.Tensor]:
        """Tensors that the module, or another with the same arguments, returns for the example's arguments."""
        return tensors((self.module if module is None else module)(*self.args, **self.kwargs))

    def to(self, dtype: torch.dtype) -> Example:
        """A copy with floating-point weights, buffers and inputs in ``dtype``; the original keeps its own."""
        return replace(self.inputs_to(dtype), module=copy.deepcopy(self.module).to(dtype))

    def inputs_to(self, dtype: torch.dtype) -> Example:
        """The same module with floating-point inputs in ``dtype``."""

        def cast(value: Any) -> Any:
            return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value

        args, kwargs = pytree.tree_map(cast, (self.args, dict(self.kwargs)))
        return replace(self, args=args, kwargs=kwargs)

    def with_inputs(self, seed: int) -> Example:
        """The same module with other random inputs; masks and segments (integers of at most 1) stay."""
        numbers = generator(seed)

        def draw(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            if value.is_floating_point():
                return torch.randn(value.shape, generator=numbers).to(value.dtype)
            largest = int(value.max())
            return value if largest <= 1 else torch.randint(0, largest + 1, value.shape, generator=numbers)

        args, kwargs = pytree.tree_map(draw, (self.args, dict(self.kwargs)))
        return replace(self, args=args, kwargs=kwargs)


def tensors(result: Any) -> list[torch.Tensor]:
    """All tensors in a model's result, in order."""
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def generator(seed: int = SEED) -> torch.Generator:
    """A source of random numbers of its own, so that building a model leaves the user's generator alone."""
    return torch.Generator().manual_seed(seed)


def _fan_in(module: nn.Module, weight: torch.Tensor) -> int:
    """Number of products that are summed into one result of the module."""
    sizes: tuple[int, ...] = tuple(weight.shape)
    if isinstance(module, nn.modules.conv._ConvNd):
        return math.prod(sizes[1:])
    # transformers' Conv1D (GPT-2) holds its matrix as (in, out).
    return sizes[0] if type(module).__name__ == "Conv1D" else sizes[-1]


KEPT = ("A_log", "D", "dt_proj.bias", "inv_freq")
"""Parameters and buffers whose initial values are part of the architecture: state-space decay, RoPE frequencies."""


@torch.no_grad()  # type: ignore[untyped-decorator]
def redraw(module: nn.Module, seed: int = SEED) -> nn.Module:
    """Give weights new random values, in place, and put the module into evaluation mode.

    Matrices: normal, 1/sqrt(fan in). Vectors that scale: 0.5 to 1.5. Other vectors: normal, 0.1. Running statistics:
    means normal 0.1, variances 0.01 to 1, so that a norm's eps shows.
    """
    numbers = generator(seed)

    def normal(like: torch.Tensor, scale: float) -> torch.Tensor:
        return torch.randn(like.shape, generator=numbers) * scale

    def around_one(like: torch.Tensor) -> torch.Tensor:
        return torch.rand(like.shape, generator=numbers) + 0.5

    seen: set[int] = set()
    for prefix, part in module.named_modules():
        for name, weight in part.named_parameters(recurse=False):
            if id(weight) in seen or f"{prefix}.{name}".endswith(KEPT):
                continue
            seen.add(id(weight))
            if weight.dim() >= 2:
                weight.copy_(normal(weight, 1 / math.sqrt(_fan_in(part, weight))))
            elif "bias" in name:
                weight.copy_(normal(weight, 0.1))
            else:
                weight.copy_(around_one(weight))
        for name, buffer in part.named_buffers(recurse=False):
            if name == "running_mean":
                buffer.copy_(normal(buffer, 0.1))
            elif name == "running_var":
                buffer.copy_(10 ** (-2 * torch.rand(buffer.shape, generator=numbers)))
                # What is divided by a small deviation is scaled back, or activations would grow from layer to layer.
                part.weight.mul_(buffer.sqrt())
    return module.eval()
