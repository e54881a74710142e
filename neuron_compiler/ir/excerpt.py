"""A few lines of a program around a fault, for the note below an error."""

from __future__ import annotations

import linecache

from neuron_compiler.ir import printer
from neuron_compiler.ir.graph import Graph

CONTEXT_LINES = 5


def around(graph: Graph, index: int) -> str:
    """The op at ``index``, marked, among its neighbours, and the line of the user's source that it came from.

    The index after the last op stands for the return line. An op that cannot be printed shows as Python shows it.
    """
    lines = [_line(graph, i) for i in range(len(graph.ops))]
    lines.append("return " + ", ".join(map(printer.value, graph.outputs)))
    first, last = max(0, index - CONTEXT_LINES), min(len(lines), index + CONTEXT_LINES + 1)
    shown = [f"{'>' if i == index else ' '} {lines[i]}" for i in range(first, last)]
    if first:
        shown.insert(0, f"  ... {first} more")
    if last < len(lines):
        shown.append(f"  ... {len(lines) - last} more")
    place = f"op {index} of {len(graph.ops)}" if index < len(graph.ops) else "the return line"
    text = "\n".join([f"{place} of graph {graph.name}:", *shown])
    source = source_line(graph.ops[index].loc) if index < len(graph.ops) else ""
    return f"{text}\n{source}" if source else text


def source_line(loc: str) -> str:
    """``file:line`` with that line below it; empty where the file cannot be read."""
    file, _, number = loc.rpartition(":")
    line = linecache.getline(file, int(number)).strip() if file and number.isdecimal() else ""
    return f"{loc}\n    {line}" if line else ""


def _line(graph: Graph, index: int) -> str:
    op = graph.ops[index]
    try:
        return printer.format_op(op) + printer.comment(op.loc)
    except TypeError:
        return repr(op)
