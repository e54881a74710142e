"""The way back from XLA's optimised program to the group, the op and the user's line.

The emitter names the function of each group and opens a scope for each op, so that an instruction's metadata reads
``jit(graph)/jit(group)/result/primitive``. XLA keeps it through its own passes, for one of the instructions it merges.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from neuron_compiler.ir.plan import Program
from neuron_compiler.report.table import table

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (?:\([^=]*?\)|\S+) ([\w\-]+)\(")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_FUNCTION = re.compile(r"jit\(([^)]*)\)$")


@dataclass(frozen=True)
class Origin:
    """Where one instruction comes from; a field that cannot be told is empty.

    Attributes:
        computation: the XLA computation that holds it; fused ones are called by a fusion instruction.
        instruction: its name in the text.
        opcode: what it does.
        group: the fused group.
        result: the op, by the name of its result.
        kind: the op's ATen overload.
        loc: the user's ``file:line``.
    """

    computation: str
    instruction: str
    opcode: str
    group: str = ""
    result: str = ""
    kind: str = ""
    loc: str = ""


def origins(hlo: str, program: Program) -> Iterator[Origin]:
    """The origin of each instruction of an HLO text, in its order; parameters are left out."""
    homes = {name: group.name for group in program.plan.groups for name in group.ops}
    groups = set(homes.values())
    computation = ""
    for line in hlo.splitlines():
        if (opened := _COMPUTATION.match(line)) is not None:
            computation = opened.group(1)
        if (found := _INSTRUCTION.match(line)) is None or found.group(2) == "parameter":
            continue
        name = _OP_NAME.search(line)
        parts = name.group(1).split("/") if name is not None else []
        group, result = _group_and_result(parts, groups, program)
        # Where XLA shares what several groups compute, it leaves the groups out of the name.
        group = group or homes.get(result, "")
        op = program.graph.defs.get(result)
        kind, loc = (op.kind, op.loc) if op is not None else ("", "")
        yield Origin(computation, found.group(1), found.group(2), group, result, kind, loc)


def _group_and_result(parts: list[str], groups: set[str], program: Program) -> tuple[str, str]:
    """The last scope that is a group, and the first scope inside it that is the result of an op."""
    group, inside = "", parts
    for index, part in enumerate(parts):
        function = _FUNCTION.match(part)
        if function is not None and function.group(1) in groups:
            group, inside = function.group(1), parts[index + 1 :]
    return group, next((part for part in inside if part in program.graph.defs), "")


def hlo_map(hlo: str, program: Program) -> str:
    """A table from instruction to group, op and user's line."""
    rows = [(o.computation, o.instruction, o.opcode, o.group, o.result, o.kind, o.loc) for o in origins(hlo, program)]
    return table(("computation", "instruction", "opcode", "group", "op", "kind", "line"), rows) + "\n"
