"""The proof that padding cannot reach a result, and the program that it holds for.

Input: one Graph made at the true sizes and one made at the bucket's. Output: the bucket's program with masks put in,
the same for every true size in the bucket, and where the true elements of its arguments and results lie. True sizes
that the program computes with become arguments. A refusal names the op, how padding would get through, and the line.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf, prod
from typing import TypeAlias

import neuron_compiler.buckets.rules_of_places  # noqa: F401  (registers its rules)
from neuron_compiler.buckets import extent
from neuron_compiler.buckets.extent import Dim, Tensor
from neuron_compiler.buckets.flow import Case, Mask, NotProven, tensors_of
from neuron_compiler.buckets.rules import RULES, Record, elementwise
from neuron_compiler.ir.graph import (
    GETITEM,
    DType,
    Graph,
    Input,
    Op,
    Operand,
    TensorType,
    TupleType,
    Value,
    exact,
    substitute,
)
from neuron_compiler.ir.space import base_name
from neuron_compiler.opdef import Kind, kind_of

Known: TypeAlias = dict[str, tuple[Tensor | None, ...]]

# Computed with a number as with a tensor of one element, in the result's own type.
_ARITHMETIC = frozenset({"add", "sub", "mul", "div", "true_divide"})
_EXACT = (DType.F32, DType.F64)


@dataclass(frozen=True)
class Refusal:
    """Why a graph is not padded: the op's line of IR, the cause, the user's ``file:line``."""

    op: str
    cause: str
    site: str = ""


@dataclass(frozen=True)
class Valid:
    """An argument that says which elements of a dimension are true: bool, 1 in all other dimensions."""

    dim: Dim
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Number:
    """An argument that is a true size, as a tensor of no dimension."""

    value: int | float
    dtype: DType


@dataclass(frozen=True)
class Proof:
    """A program that may be run on padded arguments.

    Attributes:
        graph: at the bucket's sizes, with its masks; equal for all true sizes that share it.
        inputs: the dimensions of each argument of the true graph.
        added: what the arguments after those are, at this true size.
        outputs: the dimensions of each result.
    """

    graph: Graph
    inputs: tuple[Tensor, ...]
    added: tuple[Valid | Number, ...]
    outputs: tuple[Tensor, ...]


def prove(true: Graph, bucket: Graph, call: Graph | None = None) -> Proof | Refusal:
    """The bucket's program where every result is right at its true positions, else why that is not known.

    Args:
        true: the graph at sizes that are smaller than those of the bucket.
        bucket: at the bucket's.
        call: at the sizes that the program is to be called with, where some of these are the bucket's own: it has the
            masks that smaller sizes need, so that they share it. ``true`` where not given.
    """
    call = call or true
    if (refusal := _same_program(true, bucket) or _same_program(call, bucket)) is not None:
        return refusal
    work = _Work(call)
    for one, other in zip(true.inputs, bucket.inputs, strict=True):
        found = _padded(one.name, one.type, other.type)
        if isinstance(found, Refusal):
            return found
        work.known[one.name] = (found,)
    for constant in bucket.constants:
        work.known[constant.name] = (_whole(constant.name, constant.type),)
    for one_op, op in zip(true.ops, bucket.ops, strict=True):
        try:
            work.step(one_op, op, call.defs[op.result])
        except NotProven as error:
            return Refusal(op.kind, str(error), op.loc)
    try:
        inputs = tuple(work.called(t) for i in true.inputs for t in work.known[i.name] if t is not None)
        outputs = tuple(work.called(t) for name in bucket.outputs for t in work.known[name] if t is not None)
    except NotProven as error:
        return Refusal(bucket.name, str(error))
    graph = replace(bucket, inputs=(*bucket.inputs, *work.arguments.values()), ops=tuple(work.ops))
    return Proof(graph, inputs, tuple(work.added), outputs)


def _same_program(true: Graph, bucket: Graph) -> Refusal | None:
    """Whether the two differ in numbers only."""
    same = (
        [i.name for i in true.inputs] == [i.name for i in bucket.inputs]
        and [(op.result, op.kind) for op in true.ops] == [(op.result, op.kind) for op in bucket.ops]
        and true.outputs == bucket.outputs
        and true.constants == bucket.constants
    )
    return None if same else Refusal(bucket.name, "is another program at the bucket's size")


def _padded(name: str, true: TensorType, bucket: TensorType) -> Tensor | Refusal:
    """An argument, whose padding repeats its last true elements."""
    dims = []
    for small, large in zip(true.shape, bucket.shape, strict=True):
        if small > large:
            return Refusal(f"%{name}", "has a size that shrinks where the padded one grows")
        if small < large and small == 0:
            return Refusal(f"%{name}", "has no element to pad with")
        dims.append(extent.plain(small, large, repeats=True))
    return Tensor(name, true.dtype, tuple(dims))


def _whole(name: str, of: TensorType) -> Tensor:
    return Tensor(name, of.dtype, tuple(extent.plain(size, size) for size in of.shape))


@dataclass
class _Work:
    """The walk: what is known of each value, and the program so far."""

    call: Graph
    known: Known = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    arguments: dict[object, Input] = field(default_factory=dict)
    added: list[Valid | Number] = field(default_factory=list)

    def step(self, true: Op, op: Op, called: Op) -> None:
        """One op, at the three sizes; raises NotProven."""
        if op.kind == GETITEM:
            source, index = op.operands
            found = self.known[source.name][index] if isinstance(source, Value) and isinstance(index, int) else None
            self.known[op.result] = (None if found is None else replace(found, name=op.result),)
            self.ops.append(op)
            return
        tensors, at = tensors_of(op, self.known)
        if _same(true, op) and not any(t.is_padded for t in tensors):
            self.known[op.result] = _unpadded(op)
            self.ops.append(op)
            return
        record = _record(op)
        if record is None:
            raise NotProven("has no rule that says where padding goes")
        case = Case(true, op, tuple(tensors), tuple(at))
        number = _number_to_pass(true, op, called, record)
        record.rule(case)
        results, masks = case.results()
        self.known[op.result] = results
        renamed = {
            name: self._masked(name, [m for m in masks if m.name == name], op) for name in {m.name for m in masks}
        }
        masked = _renamed(op, renamed)
        if number is not None:
            masked = replace(masked, operands=tuple(
                Value(self._number(number, op)) if i == 1 else o for i, o in enumerate(masked.operands)
            ), kind=f"aten.{base_name(op.kind)}.Tensor")  # fmt: skip
        if case.hidden is not None:
            masked = self._hiding(masked, case.tensors[case.hidden[0]], case.hidden[1])
        if case.name == "mean" and masks:
            self.ops.extend(self._mean(case, masked, masks))
        else:
            self.ops.append(masked)

    def _masked(self, name: str, masks: list[Mask], op: Op) -> str:
        """A value with its padding replaced, one dimension after the other."""
        (tensor,) = self.known[name]
        if tensor is None:
            raise NotProven("reads a tuple")
        type_ = TensorType(tensor.bucket, tensor.dtype)
        for number, mask in enumerate(masks):
            dim = tensor.dims[mask.dimension]
            shape = tuple(size if d == mask.dimension else 1 for d, size in enumerate(tensor.bucket))
            called = self._called(tensor, mask.dimension)
            key = ("valid", _positions(dim), _positions(called), shape)
            argument = self._argument(key, Valid(called, shape), TensorType(shape, DType.BOOL))
            result = f"{op.result}_{name}_masked{number}"
            operands: tuple[Operand, ...] = (Value(argument), Value(name), mask.fill)
            self.ops.append(Op(result, "aten.where.ScalarOther", operands, type_, (), op.loc))
            name = result
        return name

    def _hiding(self, op: Op, keys: Tensor, dimension: int) -> Op:
        """An attention with a mask that is minus infinity at padded keys."""
        shape = (1, 1, 1, keys.bucket[dimension])
        dim, type_ = self._called(keys, dimension), TensorType(shape, keys.dtype)
        key = ("valid", _positions(keys.dims[dimension]), _positions(dim), shape)
        valid = self._argument(key, Valid(dim, shape), TensorType(shape, DType.BOOL))
        zeros, bias = f"{op.result}_zeros", f"{op.result}_bias"
        self.ops.append(Op(zeros, "aten.full.default", (shape, 0.0), type_, (("dtype", keys.dtype),), op.loc))
        operands: tuple[Operand, ...] = (Value(valid), Value(zeros), -inf)
        self.ops.append(Op(bias, "aten.where.ScalarOther", operands, type_, (), op.loc))
        return replace(op, attrs=tuple(sorted((*op.attrs, ("attn_mask", Value(bias))), key=lambda a: a[0])))

    def called(self, tensor: Tensor) -> Tensor:
        """A value at the sizes of the call."""
        return replace(tensor, dims=tuple(self._called(tensor, d) for d in range(tensor.rank)))

    def _called(self, tensor: Tensor, d: int) -> Dim:
        """A dimension at the sizes of the call: its one padded factor is what the others leave of its size."""
        dim = tensor.dims[d]
        size = self.call.tensor_type(tensor.name).shape[d]
        if extent.extents(dim)[0] == size:
            return dim
        rest = prod(f.true for f in dim if not f.is_padded)
        if sum(f.is_padded for f in dim) != 1 or size % max(1, rest):
            raise NotProven("merges several padded dimensions")
        return tuple(replace(f, true=size // rest) if f.is_padded else f for f in dim)

    def _number(self, value: int | float, op: Op) -> str:
        if not isinstance(op.type, TensorType):
            raise NotProven("takes a size as a number")
        type_ = TensorType((), op.type.dtype)
        return self._argument(("size", value, type_.dtype), Number(value, type_.dtype), type_)

    def _argument(self, key: object, added: Valid | Number, type_: TensorType) -> str:
        """The name of an argument, made at its first use: numbered, so that it does not depend on the true size."""
        if key not in self.arguments:
            kind = "valid" if isinstance(added, Valid) else "size"
            self.arguments[key] = Input(f"{kind}_{len(self.arguments)}_of_bucket", type_, f"true {kind}")
            self.added.append(added)
        return self.arguments[key].name

    def _mean(self, case: Case, op: Op, masks: tuple[Mask, ...]) -> list[Op]:
        """The mean as a sum divided by the true number of elements."""
        type_ = op.type
        if not isinstance(type_, TensorType) or type_.dtype not in _EXACT:
            raise NotProven("takes the mean over a padded dimension in a narrow type")
        data = case.tensors[0]
        dims = tuple(d for d, target in enumerate(case.following[0]) if target is None)
        count = prod(self.call.tensor_type(data.name).shape[d] for d in dims)
        summed = f"{op.result}_summed"
        operands = (op.operands[0], dims, type_.rank == data.rank)
        return [
            Op(summed, "aten.sum.dim_IntList", operands, type_, (), op.loc),
            Op(
                op.result,
                "aten.div.Tensor",
                (Value(summed), Value(self._number(count, op))),
                type_,
                (),
                op.loc,
            ),
        ]


def _positions(dim: Dim) -> tuple[tuple[int, int], ...]:
    return tuple((f.true, f.bucket) for f in extent.canonical(dim))


def _record(op: Op) -> Record | None:
    if (found := RULES.get(base_name(op.kind))) is not None:
        return found
    return Record(elementwise) if kind_of(op) is Kind.ELEMENTWISE else None


def _same(true: Op, op: Op) -> bool:
    """Whether an op is the same at both sizes, but for what it reads."""
    return true.expression == op.expression


def _unpadded(op: Op) -> tuple[Tensor | None, ...]:
    elements: tuple[TensorType | None, ...] = op.type.elements if isinstance(op.type, TupleType) else (op.type,)
    return tuple(None if e is None else _whole(op.result, e) for e in elements)


def _number_to_pass(true: Op, op: Op, called: Op, record: Record) -> int | float | None:
    """The true number that arithmetic takes as an argument; NotProven where an op computes with a size otherwise."""
    differing = [
        i
        for i in range(max(len(true.operands), len(op.operands)))
        if i not in record.sizes and exact(true.operand(i)) != exact(op.operand(i))
    ]
    if true.attrs != op.attrs:
        raise NotProven("takes a size as a number")
    if not differing:
        return None
    number, type_ = called.operand(1), op.type
    if (
        differing == [1]
        and base_name(op.kind) in _ARITHMETIC
        and isinstance(op.operands[0], Value)
        and isinstance(number, int | float)
        and isinstance(type_, TensorType)
        and type_.dtype in _EXACT
        and all(name == "alpha" for name, _ in op.attrs)
    ):
        return number
    raise NotProven("takes a size as a number")


def _renamed(op: Op, names: dict[str, str]) -> Op:
    if not names:
        return op
    operands = tuple(substitute(o, names) for o in op.operands)
    return replace(op, operands=operands, attrs=tuple((k, substitute(v, names)) for k, v in op.attrs))
