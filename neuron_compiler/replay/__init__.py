"""A program compiled, and the same program op by op in ATen, on the same arguments: do they agree, and where not?

``repro.py`` of a dump is the main user. The reference is ATen alone: no rule of the lowering takes part in it.
"""

from __future__ import annotations

from neuron_compiler.replay.arguments import random_arguments
from neuron_compiler.replay.aten import evaluate
from neuron_compiler.replay.compare import Comparison, compare, from_command_line

__all__ = ["Comparison", "compare", "evaluate", "from_command_line", "random_arguments"]
