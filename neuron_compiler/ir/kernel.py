"""Kernel: what one NeuronCore runs for a group, as loops of engine instructions over tiles.

A Kernel is frozen data. Buffers in HBM are declared before the body, buffers in SBUF and PSUM where they are needed:
one that is declared in a loop is a new one in each iteration, its content unknown until it is written, so scope is
lifetime. Loops count from 0 and indices are affine in their variables; every extent is a number, so what a kernel does
to which bytes is known without running it. Names are NKI's. This module knows no limit of any machine: those are
``trainium/target.py``, and ``trainium/kernel_checks.py`` holds a kernel against them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import TypeAlias

from neuron_compiler.ir.graph import DType, TensorType
from neuron_compiler.ir.plan import Space


class Engine(enum.Enum):
    """A part of a NeuronCore with an instruction stream of its own; the value is its name in kernel text."""

    TENSOR = "tensor"
    VECTOR = "vector"
    SCALAR = "scalar"
    GPSIMD = "gpsimd"
    SYNC = "sync"
    DMA = "dma"


@dataclass(frozen=True, slots=True)
class Affine:
    """``constant`` plus a multiple of each of some loop variables. Sorted by variable, without zero multiples."""

    constant: int = 0
    terms: tuple[tuple[str, int], ...] = ()

    def __add__(self, other: Affine | int) -> Affine:
        other = affine(other)
        factors = dict(self.terms)
        for name, factor in other.terms:
            factors[name] = factors.get(name, 0) + factor
        return Affine(self.constant + other.constant, tuple(sorted((n, f) for n, f in factors.items() if f)))

    def __mul__(self, factor: int) -> Affine:
        terms = tuple((name, f * factor) for name, f in self.terms) if factor else ()
        return Affine(self.constant * factor, terms)

    def __neg__(self) -> Affine:
        return self * -1

    def __sub__(self, other: Affine | int) -> Affine:
        return self + -affine(other)

    def __rsub__(self, other: int) -> Affine:
        return -self + other

    __radd__ = __add__
    __rmul__ = __mul__

    def factor(self, variable: str) -> int:
        """What the variable is multiplied by; 0 where it does not occur."""
        return dict(self.terms).get(variable, 0)

    def without(self, variable: str) -> Affine:
        """This without the multiple of one variable."""
        return Affine(self.constant, tuple(term for term in self.terms if term[0] != variable))

    def at(self, values: Mapping[str, int]) -> int:
        """Its number where the loop variables have these values."""
        found = self.constant
        for name, factor in self.terms:
            found += factor * values[name]
        return found

    def __str__(self) -> str:
        text = ""
        for name, factor in self.terms:
            sign = "-" if factor < 0 else "+" if text else ""
            text += f" {sign} " if text else sign
            text += name if abs(factor) == 1 else f"{abs(factor)}*{name}"
        if not text:
            return str(self.constant)
        return text if not self.constant else f"{text} {'-' if self.constant < 0 else '+'} {abs(self.constant)}"


def affine(of: Affine | int) -> Affine:
    """A number as an Affine."""
    return of if isinstance(of, Affine) else Affine(of)


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory under a name.

    Attributes:
        name: without its ``%``; once in a kernel.
        space: HBM, SBUF or PSUM.
        type: element type and extents. In SBUF and PSUM the first extent is that of partitions, the others are free.
        of: in HBM, the buffer that this one is a view of, else None. A view may have another element type: its
            strides and offset count elements of its own type, its bytes are the other's.
        strides: of a view, in elements, one for each extent.
        start: of a view, the place of its first element, in elements.
        copies: in SBUF and PSUM, how many of it there are: iterations of the loop that declares it take them in turn,
            so that one is filled while the last is still read.
        address: bytes from the begin of each partition, where ``place`` put the first copy; None before.
        partition: first partition, where ``place`` put it.
    """

    name: str
    space: Space
    type: TensorType
    of: str | None = None
    strides: tuple[int, ...] | None = None
    start: int = 0
    copies: int = 1
    address: int | None = None
    partition: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def bytes_per_partition(self) -> int:
        """Bytes of one copy in each of its partitions; of SBUF and PSUM only."""
        return prod(self.shape[1:]) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Slice:
    """``size`` places of one dimension, from ``start``, ``step`` apart."""

    start: Affine
    size: int
    step: int = 1


@dataclass(frozen=True, slots=True)
class Access:
    """A part of a buffer: one slice for each of its dimensions. Its shape keeps them all."""

    buffer: str
    slices: tuple[Slice, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(s.size for s in self.slices)

    @property
    def partitions(self) -> int:
        """Of SBUF and PSUM: how many partitions it spans."""
        return self.slices[0].size

    @property
    def free(self) -> int:
        """Elements in each partition."""
        return prod(s.size for s in self.slices[1:])


Operand: TypeAlias = Access | float | int
Attr: TypeAlias = str | bool | int | float | Affine | tuple[int, ...] | tuple[Affine, ...]


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of one engine.

    Attributes:
        opcode: its name, as ``trainium/isa.py`` lists them.
        engine: who executes it.
        dst: what it writes.
        src: what it reads, in the order of the list.
        attrs: sorted by name.
        ops: results in the Graph that it computes, for people; no part of equality.
    """

    opcode: str
    engine: Engine
    dst: tuple[Access, ...]
    src: tuple[Operand, ...]
    attrs: tuple[tuple[str, Attr], ...] = ()
    ops: tuple[str, ...] = field(default=(), compare=False)

    def attr(self, name: str, default: Attr | None = None) -> Attr | None:
        return dict(self.attrs).get(name, default)


@dataclass(frozen=True, slots=True)
class Loop:
    """``body`` for ``variable`` from 0 up to but not including ``count``.

    Attributes:
        variable: once in a nest.
        count: may depend on the variables of outer loops.
        body: what an iteration does.
        sequential: iterations depend on each other, and run in this order. Those of other loops may overlap.
    """

    variable: str
    count: Affine
    body: tuple[Statement, ...]
    sequential: bool = False


Statement: TypeAlias = Buffer | Loop | Instruction


@dataclass(frozen=True)
class Kernel:
    """A program of one NeuronCore.

    Attributes:
        name: a word.
        buffers: all of HBM: inputs, outputs, what lies between, and views, each after what it is a view of.
        inputs: names of buffers, in the order of the arguments.
        outputs: names of buffers, in the order of the results. None of them is an input.
        body: what it does.
        target: the machine that it is written for.
    """

    name: str
    buffers: tuple[Buffer, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    body: tuple[Statement, ...]
    target: str = "trn2"

    def __str__(self) -> str:
        from neuron_compiler.ir import kernel_text

        return kernel_text.format(self)


def bounds(index: Affine, loops: tuple[Loop, ...]) -> tuple[int, int]:
    """The least and the largest number that an index has inside of these loops, the outermost first.

    Exact for counts that depend on outer variables too; iterations that a count of 0 or less skips are taken to run.
    """
    low = high = index
    for loop in reversed(loops):
        last = loop.count - 1
        low, high = (
            bound.without(loop.variable) + (last if (bound.factor(loop.variable) > 0) == up else Affine()) * f
            for bound, up in ((low, False), (high, True))
            for f in (bound.factor(loop.variable),)
        )
    return low.constant, high.constant


def statements(body: tuple[Statement, ...]) -> Iterator[Statement]:
    """All statements, those of a loop after it."""
    for statement in body:
        yield statement
        if isinstance(statement, Loop):
            yield from statements(statement.body)


def all_buffers(kernel: Kernel) -> dict[str, Buffer]:
    """Every buffer by name, of all spaces."""
    declared = (s for s in statements(kernel.body) if isinstance(s, Buffer))
    return {b.name: b for b in (*kernel.buffers, *declared)}


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a dense tensor, in elements."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))
