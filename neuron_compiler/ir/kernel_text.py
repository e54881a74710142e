"""Kernel to text and back: ``parse(format(k)) == k``.

::

    kernel matmul target=trn2 {
      hbm %x: bf16[256,128] input
      hbm %xt: bf16[128,256] of %x strides=[1,128]
      hbm %w: bf16[128,512] input
      hbm %y: f32[256,512] output
      sbuf %ws: bf16[128,512]
      %ws[:, :] = dma.dma_copy(%w[:, :])
      for i in 2 {
        sbuf %xs: bf16[128,128] copies=2
        psum %acc: f32[128,512] copies=2 address=0
        sbuf %ys: f32[128,512] copies=2
        %xs[:, :] = dma.dma_copy(%xt[:, 128*i:+128])
        %acc[:, :] = tensor.nc_matmul(%xs[:, :], %ws[:, :])  # %mm
        %ys[:, :] = vector.tensor_copy(%acc[:, :])
        %y[128*i:+128, :] = dma.dma_copy(%ys[:, :])
      }
    }

A slice is ``start:+size`` or ``start:+size:step``, with ``:`` for all of a dimension. A loop whose iterations depend on
each other says ``for k in 4 sequential``. What follows ``#`` on an instruction names the ops of the Graph that it
computes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from neuron_compiler.ir.graph import TensorType
from neuron_compiler.ir.kernel import (
    Access,
    Affine,
    Attr,
    Buffer,
    Engine,
    Instruction,
    Kernel,
    Loop,
    Operand,
    Slice,
    Statement,
    affine,
    all_buffers,
    row_major,
)
from neuron_compiler.ir.plan import Space
from neuron_compiler.ir.printer import value, word
from neuron_compiler.ir.tokens import Reader, known, shown

_SPACES = {space.value: space for space in Space}
_ENGINES = {engine.value: engine for engine in Engine}


def format(kernel: Kernel) -> str:
    """The whole kernel. Ends with a newline."""
    shapes = {name: buffer.shape for name, buffer in all_buffers(kernel).items()}
    lines = [f"kernel {word(kernel.name)} target={word(kernel.target)} {{"]
    for buffer in kernel.buffers:
        role = " input" if buffer.name in kernel.inputs else " output" if buffer.name in kernel.outputs else ""
        lines.append(f"  {format_buffer(buffer)}{role}")
    given = tuple(b.name for b in kernel.buffers if b.name in kernel.inputs)
    made = tuple(b.name for b in kernel.buffers if b.name in kernel.outputs)
    for what, order, wanted in (("inputs", given, kernel.inputs), ("outputs", made, kernel.outputs)):
        if order != wanted:  # only where it is another than that of the declarations
            lines.append(f"  {what} ({', '.join(map(value, wanted))})")
    lines.extend(_body(kernel.body, shapes, "  "))
    return "\n".join([*lines, "}", ""])


def format_buffer(buffer: Buffer) -> str:
    """A declaration, without its role."""
    text = f"{buffer.space.value} {value(buffer.name)}: {buffer.type}"
    if buffer.of is not None:
        text += f" of {value(buffer.of)} strides=[{','.join(map(str, buffer.strides or ()))}]"
    defaults = (("start", 0), ("copies", 1), ("address", None), ("partition", 0))
    return text + "".join(f" {n}={getattr(buffer, n)}" for n, default in defaults if getattr(buffer, n) != default)


def format_instruction(instruction: Instruction, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """``dst = engine.opcode(src, attrs)``; slices that span a dimension of ``shapes`` are a colon."""
    results = ", ".join(_access(a, shapes) for a in instruction.dst)
    arguments = [_operand(o, shapes) for o in instruction.src]
    arguments += [f"{word(name)}={_attr(found)}" for name, found in instruction.attrs]
    return f"{results} = {instruction.engine.value}.{word(instruction.opcode)}({', '.join(arguments)})"


def _body(body: tuple[Statement, ...], shapes: Mapping[str, tuple[int, ...]], indent: str) -> Iterator[str]:
    for statement in body:
        if isinstance(statement, Buffer):
            yield indent + format_buffer(statement)
        elif isinstance(statement, Instruction):
            ops = ("  # " + ", ".join(map(value, statement.ops))) if statement.ops else ""
            yield indent + format_instruction(statement, shapes) + ops
        else:
            order = " sequential" if statement.sequential else ""
            yield f"{indent}for {statement.variable} in {statement.count}{order} {{"
            yield from _body(statement.body, shapes, indent + "  ")
            yield indent + "}"


def _access(access: Access, shapes: Mapping[str, tuple[int, ...]]) -> str:
    extents = shapes.get(access.buffer, ())
    known_extents = len(extents) == len(access.slices)
    parts = [_slice(s, extents[i] if known_extents else None) for i, s in enumerate(access.slices)]
    return f"{value(access.buffer)}[{', '.join(parts)}]"


def _slice(s: Slice, extent: int | None) -> str:
    if s == Slice(Affine(), extent if extent is not None else -1):
        return ":"
    return f"{s.start}:+{s.size}" + (f":{s.step}" if s.step != 1 else "")


def _operand(operand: Operand, shapes: Mapping[str, tuple[int, ...]]) -> str:
    return _access(operand, shapes) if isinstance(operand, Access) else _attr(operand)


def _attr(found: Attr) -> str:
    if isinstance(found, tuple):
        return f"[{', '.join(map(_attr, found))}]"
    if isinstance(found, bool):
        return "true" if found else "false"
    if isinstance(found, str):
        return json.dumps(found)
    return float.__repr__(found) if isinstance(found, float) else str(found)


def parse(text: str) -> Kernel:
    """The kernel that a text describes; raises ParseError with line, column and a caret under the fault."""
    return _Parser(text).kernel()


class _Parser(Reader):
    """One method a construct."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.shapes: dict[str, tuple[int, ...]] = {}

    def kernel(self) -> Kernel:
        self.expect("kernel", "the begin of the text")
        name = self.name("the kernel's name")
        target = Kernel.target
        if self.accept("target"):
            self.expect("=", "'target'")
            target = self.name("a target such as trn2")
        self.expect("{", "the kernel's name")
        buffers: list[Buffer] = []
        roles: dict[str, list[str]] = {"input": [], "output": []}
        while self.at("hbm"):
            buffers.append(self.buffer())
            for role, names in roles.items():
                if self.accept(role):
                    names.append(buffers[-1].name)
        orders = {role: tuple(names) for role, names in roles.items()}
        for role in roles:
            if self.accept(f"{role}s"):
                self.expect("(", f"{role}s")
                orders[role] = self.listed(self.value, ")", "the names")
        body = self.body()
        kind, found, _ = self.peek()
        if kind != "end":
            self.fail(f"expected the end of the text, found {shown(kind, found)}")
        return Kernel(name, tuple(buffers), orders["input"], orders["output"], body, target)

    def body(self) -> tuple[Statement, ...]:
        """Statements up to the closing brace."""
        found: list[Statement] = []
        while not self.accept("}"):
            kind, text, start = self.peek()
            if kind == "value":
                found.append(self.instruction())
            elif self.at("for"):
                found.append(self.loop())
            elif text in _SPACES:
                buffer = self.buffer()
                if buffer.space is Space.HBM:
                    self.fail("buffers in HBM are declared before the first statement", start)
                found.append(buffer)
            else:
                self.fail(f"expected an instruction, 'for', 'sbuf', 'psum' or '}}', found {shown(kind, text)}")
        return tuple(found)

    def loop(self) -> Loop:
        self.expect("for", "the statement")
        variable = self.take("word", "a loop variable")
        self.expect("in", "the loop variable")
        count = self.affine()
        sequential = self.accept("sequential")
        self.expect("{", "the loop's count")
        return Loop(variable, count, self.body(), sequential)

    def buffer(self) -> Buffer:
        space = _SPACES[self.take("word", "a memory space")]
        name = self.value("a buffer such as %x")
        self.expect(":", f"%{name}")
        type_: TensorType = self.tensor_type()
        self.shapes[name] = type_.shape
        of = self.value("the buffer that it is a view of") if self.accept("of") else None
        strides = row_major(type_.shape) if of is not None else None
        numbers = {"start": 0, "copies": 1, "partition": 0}
        address: int | None = None
        while self.peek()[0] == "word" and self.tokens[self.index + 1][1] == "=":
            _, field, start = self.peek()
            self.index += 2
            if field == "strides" and of is not None:
                self.expect("[", "strides=")
                strides = self.listed(self.integer, "]", "the strides")
            elif field == "address":
                address = self.integer()
            elif field in numbers:
                numbers[field] = self.integer()
            else:
                names = ("start", "copies", "address", "partition", *(("strides",) if of is not None else ()))
                self.fail(f"{field!r} is no field of a buffer{known(field, names)}", start)
        return Buffer(name, space, type_, of, strides, address=address, **numbers)

    def instruction(self) -> Instruction:
        dst = [self.access()]
        while self.accept(","):
            dst.append(self.access())
        self.expect("=", "what is written")
        _, text, start = self.peek()
        engine, _, opcode = self.take("word", "an instruction such as vector.tensor_copy").partition(".")
        if engine not in _ENGINES or not opcode:
            self.fail(f"{text!r} does not begin with an engine{known(engine, _ENGINES)}", start)
        self.expect("(", text)
        src, attrs = self.arguments(self.source, self.attr)
        ops = tuple(part.strip().removeprefix("%") for part in self.trailing_comment().split(",") if part.strip())
        return Instruction(opcode, _ENGINES[engine], tuple(dst), src, attrs, ops)

    def source(self) -> Operand:
        return self.access() if self.peek()[0] == "value" else self.number()

    def access(self) -> Access:
        name = self.value("a buffer such as %x")
        extents = self.shapes.get(name, ())
        self.expect("[", f"%{name}")
        slices: list[Slice] = []
        while not self.accept("]"):
            slices.append(self.slice(name, extents, len(slices)))
            if not self.accept(","):
                self.expect("]", "the slices")
                break
        return Access(name, tuple(slices))

    def slice(self, name: str, extents: tuple[int, ...], index: int) -> Slice:
        if self.accept(":"):
            if index >= len(extents):
                self.fail(f"dimension {index} of %{name} is not known; it needs start:+size")
            return Slice(Affine(), extents[index])
        start = self.affine()
        self.expect(":", "the start of the slice")
        self.expect("+", "':'")
        size = self.integer()
        return Slice(start, size, self.integer() if self.accept(":") else 1)

    def attr(self) -> Attr:
        kind, text, start = self.peek()
        if kind == "string":
            return self.string("a string")
        if self.accept("true") or self.accept("false"):
            return text == "true"
        if self.accept("["):
            listed = self.listed(self.attr, "]", "the list")
            numbers = [item for item in listed if isinstance(item, int | Affine) and not isinstance(item, bool)]
            if len(numbers) != len(listed):
                self.fail("a list holds whole numbers and indices", start)
            whole = tuple(n for n in numbers if isinstance(n, int))
            return whole if len(whole) == len(numbers) else tuple(map(affine, numbers))
        if kind == "word" or self.tokens[self.index + 1][1] in ("*", "+", "-"):
            found = self.affine()
            return found if found.terms else found.constant
        return self.number()

    def number(self) -> float | int:
        text = self.take("number", "a number")
        return int(text) if text.lstrip("-").isdecimal() else float(text)

    def integer(self) -> int:
        start = self.peek()[2]
        found = self.number()
        if not isinstance(found, int):
            self.fail(f"{found} is no whole number", start)
        return found

    def affine(self) -> Affine:
        """Sums and differences of numbers, loop variables, and multiples of them."""
        total = self.term(-1 if self.accept("-") else 1)
        while True:
            if self.accept("+"):
                total = total + self.term(1)
            elif self.accept("-"):
                total = total + self.term(-1)
            elif self.peek()[0] == "number" and self.peek()[1].startswith("-"):
                total = total + self.term(1)
            else:
                return total

    def term(self, sign: int) -> Affine:
        if self.peek()[0] == "word":
            return Affine(0, ((self.take("word", "a loop variable"), sign),))
        number = sign * self.integer()
        return Affine(0, ((self.take("word", "a loop variable"), 1),)) * number if self.accept("*") else Affine(number)
