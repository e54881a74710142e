"""Text to Program: the inverse of ``printer``.

Reads what ``printer`` writes, and what a person writes by hand: spaces and line breaks are free, a comment on a line
of its own is skipped. Checks grammar only; whether the program is legal is for ``verify`` to say.
"""

from __future__ import annotations

from dataclasses import fields
from types import MappingProxyType
from typing import Any

from neuron_compiler.errors import ParseError
from neuron_compiler.ir import elements
from neuron_compiler.ir.graph import Constant, Graph, Input, Op, Operand, TensorType, TupleType, Type, Value
from neuron_compiler.ir.plan import Barrier, Group, GroupKind, Plan, Program, Tile
from neuron_compiler.ir.tokens import DTYPES, Reader, known, shown

_WORD_OPERANDS: dict[str, Operand] = {"none": None, "true": True, "false": False, **DTYPES}
_GROUP_KINDS = {kind.value: kind for kind in GroupKind}
_TILE_FIELDS = tuple(f.name for f in fields(Tile))


def parse(text: str) -> Program:
    """The program that a text describes; raises ParseError with line, column and a caret under the fault."""
    return _Parser(text).program()


class _Parser(Reader):
    """Recursive descent over a list of tokens, one method a construct."""

    # Types

    def type(self) -> Type:
        if self.accept("("):
            return TupleType(self.listed(self.tuple_element, ")", "the types"))
        return self.tensor_type()

    def tuple_element(self) -> TensorType | None:
        return None if self.accept("none") else self.tensor_type()

    # Operands

    def operand(self) -> Operand:
        kind, text, _ = self.peek()
        if kind == "value":
            return Value(self.value())
        if kind == "number":
            self.index += 1
            return int(text) if text.lstrip("-").isdecimal() else float(text)
        if kind == "string":
            return self.string("a string")
        if self.accept("["):
            return self.listed(self.operand, "]", "the list")
        if self.at("graph"):
            return self.graph()[0]
        if self.accept("complex"):
            self.expect("(", "complex")
            real, imag = self.real(), self.accept(",") and self.real()
            self.expect(")", "complex(real, imaginary")
            return complex(real, imag)
        if kind == "word" and text in _WORD_OPERANDS:
            self.index += 1
            return _WORD_OPERANDS[text]
        return self.fail(f"expected an operand, found {shown(kind, text)}")

    def real(self) -> float:
        return float(self.take("number", "a number"))

    # Graph

    def program(self) -> Program:
        graph, target = self.graph()
        plan = self.plan() if self.accept("plan") else Plan()
        kind, text, _ = self.peek()
        if kind != "end":
            self.fail(f"expected the end of the text, found {shown(kind, text)}")
        return Program(graph, plan, target)

    def graph(self) -> tuple[Graph, str]:
        """A graph and its target; that of a subgraph is never given."""
        if not self.accept("graph"):
            kind, text, _ = self.peek()
            self.fail(f"expected 'graph', found {shown(kind, text)}")
        name = self.name("the graph's name")
        self.expect("(", "the graph's name")
        inputs = self.inputs()
        target = Program.target
        if self.accept("target"):
            self.expect("=", "'target'")
            target = self.name("a target such as trn2")
        self.expect("{", "the graph's inputs")
        constants: list[Constant] = []
        while self.accept("const"):
            constants.append(self.constant())
        ops: list[Op] = []
        while self.peek()[0] == "value":
            ops.append(self.op())
        if not self.accept("return"):
            kind, text, _ = self.peek()
            self.fail(f"expected an op or 'return', found {shown(kind, text)}")
        outputs: tuple[str, ...] = ()
        if not self.accept("}"):
            outputs = self.listed(self.value, "}", "the returned values")
        return Graph(name, inputs, tuple(ops), outputs, tuple(constants)), target

    def inputs(self) -> tuple[Input, ...]:
        found: list[Input] = []
        while not self.accept(")"):
            name = self.value("an input such as %x")
            self.expect(":", f"%{name}")
            type_ = self.tensor_type()
            comma = self.accept(",")
            found.append(Input(name, type_, self.trailing_comment()))
            if not comma:
                self.expect(")", "the inputs")
                break
        return tuple(found)

    def constant(self) -> Constant:
        name = self.value()
        self.expect(":", f"%{name}")
        type_ = self.tensor_type()
        self.expect("=", "the type")
        kind, text, start = self.peek()
        try:
            if kind == "hex":
                self.index += 1
                return Constant(name, type_, bytes.fromhex(text[4:-1]))
            self.expect("[", "'='")
            numbers: Any = self.listed(self.operand, "]", "the elements")
            return Constant(name, type_, elements.pack(type_.dtype, numbers))
        except ValueError as error:
            if isinstance(error, ParseError):
                raise
            self.fail(str(error), start)

    def op(self) -> Op:
        result = self.value()
        self.expect("=", f"%{result}")
        kind = self.name("an op such as aten.exp.default")
        self.expect("(", kind)
        operands, attrs = self.arguments(self.operand, self.operand)
        self.expect(":", "the operands")
        type_ = self.type()
        return Op(result, kind, operands, type_, attrs, self.trailing_comment())

    # Plan

    def plan(self) -> Plan:
        self.expect("{", "'plan'")
        groups: list[Group] = []
        barriers: list[Barrier] = []
        tiles: dict[str, Tile] = {}
        while not self.accept("}"):
            kind, text, start = self.peek()
            if self.accept("group"):
                groups.append(self.group())
            elif self.accept("barrier"):
                barriers.append(self.barrier())
            elif self.accept("tile"):
                name = self.name("a group's name")
                if name in tiles:
                    self.fail(f"group {name!r} has a tile already", start)
                tiles[name] = self.tile()
            else:
                self.fail(f"expected 'group', 'barrier', 'tile' or '}}', found {shown(kind, text)}")
        return Plan(tuple(groups), tuple(barriers), MappingProxyType(tiles))

    def group(self) -> Group:
        name = self.name("a group's name")
        _, text, start = self.peek()
        kind = self.name("a group's kind")
        if kind not in _GROUP_KINDS:
            self.fail(f"unknown group kind {text!r}{known(kind, _GROUP_KINDS)}", start)
        self.expect("(", "the kind")
        return Group(name, _GROUP_KINDS[kind], self.listed(self.value, ")", "the ops"))

    def barrier(self) -> Barrier:
        producer = self.name("a group's name")
        self.expect("->", "the producer")
        return Barrier(producer, self.name("a group's name"), self.value(), self.string("the reason in quotes"))

    def tile(self) -> Tile:
        given: dict[str, Any] = {}
        for _ in _TILE_FIELDS:
            _, text, start = self.peek()
            field = self.name("a field of the tile")
            if field not in _TILE_FIELDS or field in given:
                self.fail(f"{text!r} is given twice or is no field of a tile{known(field, _TILE_FIELDS)}", start)
            self.expect("=", field)
            given[field] = self.operand()
        return Tile(**given)
