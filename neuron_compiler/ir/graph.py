"""Graph: *what* a program computes, as a straight-line list of typed ops.

A Graph is frozen. ``Op.kind`` is the ATen overload's own name (``aten.mm.default``): there is no second
vocabulary. Types are concrete: one Graph exists per binding of a dynamic program's symbols. This module
imports neither torch nor jax, so that the IR, its text form, its verifier and most passes are plain data.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import TypeAlias


class DType(enum.Enum):
    """Element type. The value is the name used in IR text.

    Of the chip alone, no type of PyTorch: ``F8E4M3`` with an infinity and 240 as its largest number, ``F8E3M4``, and
    ``TF32``, a float of 10 bits after the point in four bytes.
    """

    BOOL = "bool"
    U8 = "u8"
    U16 = "u16"
    U32 = "u32"
    U64 = "u64"
    I8 = "i8"
    I16 = "i16"
    I32 = "i32"
    I64 = "i64"
    F8E3M4 = "f8e3m4"
    F8E4M3 = "f8e4m3"
    F8E4M3FN = "f8e4m3fn"
    F8E4M3FNUZ = "f8e4m3fnuz"
    F8E5M2 = "f8e5m2"
    F8E5M2FNUZ = "f8e5m2fnuz"
    F8E8M0FNU = "f8e8m0fnu"
    F16 = "f16"
    BF16 = "bf16"
    TF32 = "tf32"
    F32 = "f32"
    F64 = "f64"
    C64 = "c64"
    C128 = "c128"

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return _ITEMSIZE[self]

    @property
    def is_floating(self) -> bool:
        return self.value[0] == "f" or self in (DType.BF16, DType.TF32)

    @property
    def is_complex(self) -> bool:
        return self.value[0] == "c"

    @property
    def is_integer(self) -> bool:
        """Signed or unsigned integer; bool is not one."""
        return self.value[0] in "iu"

    def __repr__(self) -> str:
        return f"DType.{self.name}"


_ITEMSIZE: Mapping[DType, int] = {
    **{d: 1 for d in DType if d.value in ("bool", "u8", "i8") or d.value.startswith("f8")},
    **dict.fromkeys((DType.U16, DType.I16, DType.F16, DType.BF16), 2),
    **dict.fromkeys((DType.U32, DType.I32, DType.F32, DType.TF32), 4),
    **dict.fromkeys((DType.U64, DType.I64, DType.F64, DType.C64), 8),
    DType.C128: 16,
}


@dataclass(frozen=True, slots=True)
class TensorType:
    """A dense tensor value: logical shape and element type. Strides are the runtime's matter."""

    shape: tuple[int, ...]
    dtype: DType

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype.value}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class TupleType:
    """The result of an op that returns several tensors; taken apart by ``getitem`` ops.

    An element is None where ATen returns no tensor at that place.
    """

    elements: tuple[TensorType | None, ...]

    def __str__(self) -> str:
        return "(" + ", ".join("none" if e is None else str(e) for e in self.elements) + ")"


Type: TypeAlias = TensorType | TupleType


@dataclass(frozen=True, slots=True)
class Value:
    """A use of a named value: a graph input, a constant or an op's result."""

    name: str

    def __str__(self) -> str:
        return f"%{self.name}"


# What may stand at an argument's place. Lists of ATen arguments become tuples. A Graph is a subgraph: a branch of
# `cond`, the body of a loop. It is closed: it reads its own inputs and constants, never a value of the graph around it.
Operand: TypeAlias = "Value | None | bool | int | float | complex | str | DType | Graph | tuple[Operand, ...]"

GETITEM = "getitem"
"""The one kind that is not an ATen overload: ``getitem(%tuple, index)``."""


def values_of(operand: Operand) -> Iterator[str]:
    """Names of the values used by an operand, in order, repeats kept."""
    if isinstance(operand, Value):
        yield operand.name
    elif isinstance(operand, tuple):
        for item in operand:
            yield from values_of(item)


def subgraphs_of(operand: Operand) -> Iterator[Graph]:
    """The subgraphs in an operand, in order; not those inside of them."""
    if isinstance(operand, Graph):
        yield operand
    elif isinstance(operand, tuple):
        for item in operand:
            yield from subgraphs_of(item)


def exact(operand: Operand) -> Hashable:
    """The operand as a key under which two are equal only if they mean the same.

    Python has ``1 == 1.0 == True``, ``0.0 == -0.0`` and ``nan != nan``; as operands each of those gives another
    answer, and a NaN is itself.
    """
    if isinstance(operand, tuple):
        return tuple(map(exact, operand))
    if isinstance(operand, bool | int):
        return (type(operand), operand)
    if isinstance(operand, float):
        return (float, float.__repr__(operand))
    if isinstance(operand, complex):
        return (complex, float.__repr__(operand.real), float.__repr__(operand.imag))
    return operand


def substitute(operand: Operand, names: Mapping[str, str]) -> Operand:
    """The operand with every value renamed by ``names``; names that are not in it stay."""
    if isinstance(operand, Value):
        return Value(names[operand.name]) if operand.name in names else operand
    if isinstance(operand, tuple):
        return tuple(substitute(item, names) for item in operand)
    return operand


@dataclass(frozen=True, eq=False)
class Op:
    """One assignment: ``%result = kind(operands, attrs) : type``.

    Two ops are equal if they print the same, the location aside: ``1``, ``1.0`` and ``True`` are three operands.

    Attributes:
        result: name of the value defined; unique in its graph.
        kind: ATen overload (``aten.add.Tensor``) or ``getitem``.
        operands: positional arguments in the order of the ATen schema, trailing defaults left out.
        type: what the op returns, as PyTorch's fake tensors recorded it.
        attrs: keyword-only arguments that differ from their default, sorted by name.
        loc: the user's ``file:line``; never part of equality.
    """

    result: str
    kind: str
    operands: tuple[Operand, ...]
    type: Type
    attrs: tuple[tuple[str, Operand], ...] = ()
    loc: str = field(default="", compare=False)

    @cached_property
    def expression(self) -> Hashable:
        """What is computed, without the name it is given: equal for two ops that compute the same from the same."""
        return (self.kind, exact(self.operands), tuple((k, exact(v)) for k, v in self.attrs), self.type)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Op):
            return NotImplemented
        return self is other or (self.result == other.result and self.expression == other.expression)

    def __hash__(self) -> int:
        return hash((self.result, self.expression))

    def __str__(self) -> str:
        from neuron_compiler.ir import text

        return text.format_op(self)

    @cached_property
    def uses(self) -> tuple[str, ...]:
        """Names of the values this op reads, in order of first use."""
        found: dict[str, None] = {}
        for operand in (*self.operands, *(value for _, value in self.attrs)):
            for name in values_of(operand):
                found[name] = None
        return tuple(found)

    @cached_property
    def subgraphs(self) -> tuple[Graph, ...]:
        """The branches or bodies among the operands, in order."""
        given = (*self.operands, *(value for _, value in self.attrs))
        return tuple(graph for operand in given for graph in subgraphs_of(operand))

    def attr(self, name: str, default: Operand = None) -> Operand:
        """The keyword argument ``name``, or ``default`` where it was not given."""
        return next((value for key, value in self.attrs if key == name), default)

    def operand(self, index: int, default: Operand = None) -> Operand:
        """The positional argument at ``index``, or ``default`` where it was left out."""
        return self.operands[index] if index < len(self.operands) else default


@dataclass(frozen=True)
class Input:
    """A graph argument. ``origin`` names what it is for the user (``L['self'].fc.weight``); not part of equality."""

    name: str
    type: TensorType
    origin: str = field(default="", compare=False)


@dataclass(frozen=True)
class Constant:
    """A small dense tensor whose elements are part of the program, row-major.

    Larger ones are passed as inputs. ``data`` is little-endian raw bytes, so that every dtype and every NaN survives.
    """

    name: str
    type: TensorType
    data: bytes


@dataclass(frozen=True)
class Graph:
    """A function from tensors to tensors: inputs, constants, ops in order of execution, returned values.

    A value may be returned more than once; an input may be returned.
    """

    name: str
    inputs: tuple[Input, ...]
    ops: tuple[Op, ...]
    outputs: tuple[str, ...]
    constants: tuple[Constant, ...] = ()

    def __str__(self) -> str:
        from neuron_compiler.ir import text

        return text.format_graph(self)

    @cached_property
    def types(self) -> Mapping[str, Type]:
        """Type of every value."""
        found: dict[str, Type] = {i.name: i.type for i in self.inputs}
        found.update((c.name, c.type) for c in self.constants)
        found.update((op.result, op.type) for op in self.ops)
        return found

    @cached_property
    def defs(self) -> Mapping[str, Op]:
        """The op that defines each computed value."""
        return {op.result: op for op in self.ops}

    @cached_property
    def users(self) -> Mapping[str, tuple[Op, ...]]:
        """Ops that read each value, in program order; a value nobody reads is absent."""
        found: dict[str, list[Op]] = {}
        for op in self.ops:
            for name in op.uses:
                found.setdefault(name, []).append(op)
        return {name: tuple(ops) for name, ops in found.items()}

    def tensor_type(self, name: str) -> TensorType:
        """Type of a value that is known to be one tensor; raises TypeError for a tuple."""
        found = self.types[name]
        if not isinstance(found, TensorType):
            raise TypeError(f"%{name} is a tuple {found}, not a tensor")
        return found
