"""Optimizers that choose their implementation by the device choose the CPU's where the two round differently.

In: the modules of ASGD, NAdam and RAdam. Out: the same, whose default for parameters on the device is one tensor
after the other, as on the CPU, with the CPU's numbers. Invariants: what a user asks for by ``foreach=``
holds; optimizers whose implementations agree to the bit keep the faster one; parameters elsewhere are not looked at.

PyTorch takes the implementation for lists of tensors on every device but the CPU, and in these three it adds up in
another order.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import asgd, nadam, radam

logger = logging.getLogger(__name__)

CHOICE = "_default_to_fused_or_foreach"

Choice = Callable[..., tuple[bool, bool]]


def install() -> None:
    """Have the three modules ask for the device; a second call changes nothing."""
    for module in (asgd, nadam, radam):
        choice = getattr(module, CHOICE, None)
        if choice is None:
            logger.debug("%s has no %s: its numbers on device neuron may not be the CPU's", module.__name__, CHOICE)
        elif not hasattr(choice, "_without_neuron"):
            setattr(module, CHOICE, _single_on_neuron(choice))


def _single_on_neuron(choice: Choice) -> Choice:
    @functools.wraps(choice)
    def chosen(params: list[torch.Tensor | None], *arguments: Any, **options: Any) -> tuple[bool, bool]:
        fused, foreach = choice(params, *arguments, **options)
        return fused, foreach and not any(p is not None and p.device.type == "neuron" for p in params)

    chosen._without_neuron = choice  # type: ignore[attr-defined]
    return chosen
