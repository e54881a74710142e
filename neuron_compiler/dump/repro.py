"""The text of ``repro.py``: compiles a dumped program and compares it with its own ops, run one by one by ATen.

The work is done by ``neuron_compiler.replay``; the script holds what the IR does not: strides and options.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from neuron_compiler.ir.graph import Graph
from neuron_compiler.options import Options
from neuron_compiler.runtime import Layout

TEMPLATE = '''\
"""Compiles {name} and compares it with its own ops, run one by one by ATen on the same random arguments.

    python repro.py [--ir FILE] [--seed N] [--values] [--tolerance X]

Any .ir file of this folder can be given: they take the same arguments. Needs neuron_compiler and PyTorch, nothing else.
"""

from pathlib import Path

from neuron_compiler import replay

# Strides of the arguments as they were recorded; their sizes and element types are in the IR.
ARGUMENTS = {{
{arguments}}}

# Strides of the results.
RESULTS = [
{results}]

# As in torch.compile(..., options=OPTIONS), before what the environment sets.
OPTIONS = {options}

if __name__ == "__main__":
    comparison = replay.from_command_line(Path(__file__).parent / "02_input.ir", ARGUMENTS, RESULTS, OPTIONS)
    print(comparison)
    raise SystemExit(0 if comparison.agrees else 1)
'''


def script(graph: Graph, inputs: Sequence[Layout], outputs: Sequence[Layout], options: Options) -> str:
    """The whole script."""
    arguments = "".join(
        f"    {i.name!r}: {layout.stride!r},{_comment(f'{i.type} {i.origin}')}\n"
        for i, layout in zip(graph.inputs, inputs, strict=True)
    )
    results = "".join(
        # Not yet verified: what is returned may not exist.
        f"    {layout.stride!r},{_comment(f'%{name}: {graph.types.get(name)}')}\n"
        for name, layout in zip(graph.outputs, outputs, strict=True)
    )
    return TEMPLATE.format(name=_word(graph.name), arguments=arguments, results=results, options=_changed(options))


def _changed(options: Options) -> dict[str, object]:
    """Options that differ from their default; where to dump is no part of what is compiled."""
    plain = Options()
    return {
        f.name: getattr(options, f.name)
        for f in dataclasses.fields(options)
        if f.name != "dump" and getattr(options, f.name) != getattr(plain, f.name)
    }


def _comment(text: str) -> str:
    return "  # " + " ".join(text.split())


def _word(name: str) -> str:
    """A graph's name inside a docstring."""
    return name.replace("\\", "\\\\").replace('"', "'")
