"""The text form of programs: what dumps hold, tests compare and the command line reads.

``parse(format(program)) == program`` for every program, and the locations and origins that equality leaves out are kept
too. The same program always prints the same text.
"""

from __future__ import annotations

from neuron_compiler.ir.parser import parse
from neuron_compiler.ir.printer import format, format_graph, format_op, format_operand

__all__ = ["format", "format_graph", "format_op", "format_operand", "parse"]
