"""Program to text, one assignment a line.

::

    graph mlp(%x: f32[4,8]) target=trn2 {
      const %half: f32[] = [0.5]
      %0 = aten.exp.default(%x) : f32[4,8]  # model.py:14
      %2 = aten.add.Tensor(%0, %x, alpha=2) : f32[4,8]  # model.py:15
      return %2
    }
    plan {
      group g0_exp elementwise (%0, %2)
      tile g0_exp partition=4 free=8 contraction=0 space=[4,8,0] batch=1 sbuf_bytes=384 psum_bytes=0
    }

A branch or the body of a loop is a graph at an operand's place, on lines of its own, further to the right. What follows
``#`` on the line of an op is its location, on the line of an input its origin. Names that are not plain words are
quoted. A constant shows its elements where they are few and can be read back to the bit, else its bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields

from neuron_compiler.ir import elements
from neuron_compiler.ir.graph import Constant, DType, Graph, Input, Op, Operand, Value
from neuron_compiler.ir.plan import Barrier, Group, Plan, Program, Tile

MAX_WIDTH = 120
MAX_READABLE_ELEMENTS = 16

_PLAIN_VALUE = re.compile(r"[\w.$]+")
_PLAIN_WORD = re.compile(r"(?!(?:inf|nan)\b)[^\W\d][\w.$]*")


def format(program: Program) -> str:
    """The whole program: graph, then plan if it has one. Ends with a newline."""
    lines = [*_graph(program.graph, program.target), *plan_lines(program.plan)]
    return "\n".join(lines) + "\n"


def format_graph(graph: Graph) -> str:
    """A graph alone; reads back as a program with an empty plan."""
    return "\n".join(_graph(graph, None)) + "\n"


def format_op(op: Op) -> str:
    """``%result = kind(operands, attrs) : type``, without the location."""
    arguments = ", ".join([*map(format_operand, op.operands), *(f"{word(k)}={format_operand(v)}" for k, v in op.attrs)])
    return f"{value(op.result)} = {word(op.kind)}({arguments}) : {op.type}"


def format_operand(operand: Operand) -> str:
    """One argument; raises TypeError for an object that cannot be one."""
    if isinstance(operand, Value):
        return value(operand.name)
    if operand is None:
        return "none"
    if isinstance(operand, bool):
        return "true" if operand else "false"
    if isinstance(operand, int):
        return int.__repr__(operand)
    if isinstance(operand, float):
        return float.__repr__(operand)
    if isinstance(operand, complex):
        return f"complex({float.__repr__(operand.real)}, {float.__repr__(operand.imag)})"
    if isinstance(operand, str):
        return json.dumps(operand)
    if isinstance(operand, DType):
        return operand.value
    if isinstance(operand, Graph):
        return "\n".join(_graph(operand, None))
    if isinstance(operand, tuple):
        return "[" + ", ".join(map(format_operand, operand)) + "]"
    raise TypeError(f"{operand!r} of type {type(operand).__name__} cannot be an operand")


def value(name: str) -> str:
    """A value's name with its ``%``."""
    return f"%{name}" if _PLAIN_VALUE.fullmatch(name) else f"%{json.dumps(name)}"


def word(name: str) -> str:
    """A name that stands without ``%``: of a graph, a kind, an attribute, a group."""
    return name if _PLAIN_WORD.fullmatch(name) else json.dumps(name)


def comment(text: str) -> str:
    """``  # text``, on one line; nothing for an empty text."""
    if not text:
        return ""
    return "  # " + text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def _graph(graph: Graph, target: str | None) -> Iterator[str]:
    ending = " {" if target is None else f" target={word(target)} {{"
    line = f"graph {word(graph.name)}({', '.join(map(_input, graph.inputs))}){ending}"
    if len(line) <= MAX_WIDTH and not any(i.origin for i in graph.inputs):
        yield line
    else:
        yield f"graph {word(graph.name)}("
        for i in graph.inputs:
            yield f"  {_input(i)},{comment(i.origin)}"
        yield ")" + ending
    for constant in graph.constants:
        yield f"  const {value(constant.name)}: {constant.type} = {_elements(constant)}"
    for op in graph.ops:
        yield "  " + f"{format_op(op)}{comment(op.loc)}".replace("\n", "\n  ")
    yield "  return" + (" " if graph.outputs else "") + ", ".join(map(value, graph.outputs))
    yield "}"


def _input(i: Input) -> str:
    return f"{value(i.name)}: {i.type}"


def _elements(constant: Constant) -> str:
    readable = _readable(constant)
    return f'hex"{constant.data.hex()}"' if readable is None else format_operand(readable)


def _readable(constant: Constant) -> tuple[Operand, ...] | None:
    dtype = constant.type.dtype
    if len(constant.data) > MAX_READABLE_ELEMENTS * dtype.itemsize:
        return None
    found = elements.unpack(dtype, constant.data)
    if found is None or elements.pack(dtype, found) != constant.data:
        return None
    if dtype.is_floating:
        return tuple(elements.shortest(dtype, v) for v in found if isinstance(v, float))
    return found


def plan_lines(plan: Plan, *, mark: str | None = None) -> Iterator[str]:
    """The lines of a plan's block, the group called ``mark`` with a ``>`` before it; none for an empty plan."""
    if not (plan.groups or plan.barriers or plan.tiles):
        return
    yield "plan {"
    for group in plan.groups:
        line = _group(group)
        yield ">" + line[1:] if group.name == mark else line
    yield from map(_barrier, plan.barriers)
    for name in _tile_order(plan):
        yield _tile(name, plan.tiles[name])
    yield "}"


def _group(group: Group) -> str:
    return f"  group {word(group.name)} {group.kind.value} ({', '.join(map(value, group.ops))})"


def _barrier(barrier: Barrier) -> str:
    edge = f"{word(barrier.producer)} -> {word(barrier.consumer)} {value(barrier.value)}"
    return f"  barrier {edge} {json.dumps(barrier.reason)}"


def _tile_order(plan: Plan) -> list[str]:
    """Tiles in the order of their groups, so that equal plans print equal text."""
    known = [group.name for group in plan.groups if group.name in plan.tiles]
    return known + sorted(set(plan.tiles) - set(known))


def _tile(name: str, tile: Tile) -> str:
    described = " ".join(f"{f.name}={format_operand(getattr(tile, f.name))}" for f in fields(tile))
    return f"  tile {word(name)} {described}"
