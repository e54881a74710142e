"""``torch.compile(model)`` without a backend: ``neuron`` where a graph holds tensors of the device, else Inductor.

In: what PyTorch builds when no backend is named, an Inductor wrapper with its mode, options and configuration checked.
Out: the same object, whose call compiles a graph with tensors on device neuron by our backend. Invariants: for all
other graphs PyTorch's own code runs, unchanged; nothing is imported until a graph is compiled.

Inductor has no code for the device and raises KeyError for such graphs, so that nobody loses by it, also where it was
named. Its mode and options mean nothing to our backend and are left out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import torch

logger = logging.getLogger(__name__)

WRAPPER = "_TorchCompileInductorWrapper"
"""PyTorch's class; a public place would be `torch.compiler.set_default_backend`, but what is set there is not told of
`dynamic=` and `name=`, and PyTorch would check modes and options no more."""


def install() -> None:
    """Have PyTorch's wrapper ask for the device first; a second call changes nothing."""
    wrapper = getattr(torch, WRAPPER, None)
    if wrapper is None:
        logger.warning("torch.compile needs backend='neuron' for tensors on the device: PyTorch has no %s", WRAPPER)
        return
    inductor = wrapper.__call__
    if not hasattr(inductor, "_without_neuron"):
        wrapper.__call__ = _choosing(wrapper, inductor)


def _choosing(wrapper: type, inductor: Callable[..., Any]) -> Callable[..., Any]:
    def __call__(self: Any, model_: Any, inputs_: Any, **patches: Any) -> Any:
        # Not its subclass, which compiles ahead of time.
        if type(self) is wrapper and on_neuron(model_, inputs_):
            from neuron_compiler.capture import neuron

            return neuron(model_, inputs_)
        return inductor(self, model_, inputs_, **patches)

    __call__._without_neuron = inductor  # type: ignore[attr-defined]
    return __call__


def on_neuron(module: torch.fx.GraphModule, inputs: Iterable[Any]) -> bool:
    """Whether an input, a parameter, a buffer or a value that the graph makes is on the device."""
    return any(_is_ours(value) for value in _values(module, inputs))


def _values(module: torch.fx.GraphModule, inputs: Iterable[Any]) -> Iterable[Any]:
    yield from inputs
    yield from module.parameters()
    yield from module.buffers()
    for node in module.graph.nodes:
        made = node.meta.get("example_value")
        yield from made if isinstance(made, tuple | list) else (made,)


def _is_ours(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "neuron"
