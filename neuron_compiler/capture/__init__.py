"""The entry from PyTorch: Dynamo's graph → AOTAutograd → Sequences. The only package that reads FX.

``torch.compile(model, backend="neuron")`` calls ``neuron`` once per captured graph.
"""

from __future__ import annotations

from neuron_compiler.capture.backend import neuron

__all__ = ["neuron"]
