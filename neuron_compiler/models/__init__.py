"""Well-known models with random weights and inputs: what ``bench``, ``demo`` and the acceptance tests compile."""

from __future__ import annotations

from neuron_compiler.models.catalogue import CATALOGUE, Entry, build, find
from neuron_compiler.models.example import Example, Size

__all__ = ["CATALOGUE", "Entry", "Example", "Size", "build", "find"]
