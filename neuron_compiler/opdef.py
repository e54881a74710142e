"""The op record: one ATen overload's lowering, family, work and limits, declared at one place.

An op is added by one decorated function in ``lowering/ops/<family>.py``. Support, fusibility, work, the generated
test and the row in ``docs/ops.md`` all derive from that record. No op is defined here.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from neuron_compiler.ir.graph import GETITEM, Graph, Op, TensorType, TupleType, Type

F = TypeVar("F", bound=Callable[..., Any])


class Kind(enum.Enum):
    """What an op is to the fusion pass. The value is the name in docs and dumps."""

    ELEMENTWISE = "elementwise"
    """Each result element depends on the same (broadcast) element of each operand."""
    REDUCTION = "reduction"
    """Some dimensions of the operand are folded into one value each."""
    NORMALISATION = "normalisation"
    """A reduction and what is done with it, of the operand's own shape: softmax, layer norm."""
    VIEW = "view"
    """Only renames positions; costs nothing if its consumer can address through it."""
    CONTRACTION = "contraction"
    """Matrix products."""
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    INDEXING = "indexing"
    """Gathers and scatters by index tensors; embedding."""
    CREATION = "creation"
    """No tensor operand: full, arange."""
    SORT = "sort"
    SCAN = "scan"
    """Cumulative ops."""
    POOLING = "pooling"
    OTHER = "other"


@dataclass(frozen=True)
class Work:
    """What an op has to do, whatever the machine. Time is never here: it belongs to kernels on a target.

    Attributes:
        flops: additions, multiplications, comparisons; a multiply-add counts two.
        transcendentals: exp, log, tanh, erf, rsqrt and the like.
        bytes: bytes of operands read once plus results written once.
    """

    flops: int = 0
    transcendentals: int = 0
    bytes: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.transcendentals + other.transcendentals, self.bytes + other.bytes)


@dataclass(frozen=True)
class Call:
    """One op with the types of what it reads: what a work rule or a ``when`` predicate may look at."""

    op: Op
    types: Mapping[str, Type]

    def type(self, index: int) -> TensorType:
        """Type of the tensor at positional operand ``index``."""
        from neuron_compiler.ir.graph import Value

        operand = self.op.operand(index)
        if not isinstance(operand, Value):
            raise TypeError(f"operand {index} of {self.op.kind} is {operand!r}, not a tensor")
        found = self.types[operand.name]
        if not isinstance(found, TensorType):
            raise TypeError(f"operand {index} of {self.op.kind} is a tuple")
        return found

    @property
    def operand_types(self) -> tuple[TensorType, ...]:
        """Types of all tensors read."""
        return tuple(t for name in self.op.uses if isinstance(t := self.types[name], TensorType))

    @property
    def result_types(self) -> tuple[TensorType, ...]:
        """Types of all tensors returned."""
        if isinstance(self.op.type, TupleType):
            return tuple(t for t in self.op.type.elements if t is not None)
        return (self.op.type,)


WorkRule = Callable[[Call], Work]


def per_element(*, flops: int = 1, transcendental: int = 0) -> WorkRule:
    """Work proportional to the elements of the first result."""

    def rule(call: Call) -> Work:
        n = call.result_types[0].numel
        return Work(flops * n, transcendental * n)

    return rule


def per_input_element(*, flops: int = 1, transcendental: int = 0) -> WorkRule:
    """Work proportional to the elements of the first operand: reductions."""

    def rule(call: Call) -> Work:
        n = call.operand_types[0].numel if call.operand_types else call.result_types[0].numel
        return Work(flops * n, transcendental * n)

    return rule


def no_work(call: Call) -> Work:
    """Moves or renames data; computes nothing."""
    return Work()


# A kind without a default must state its work: a missing rule is an error at import, never a silent zero.
DEFAULT_WORK: Mapping[Kind, WorkRule] = {
    Kind.ELEMENTWISE: per_element(),
    Kind.REDUCTION: per_input_element(),
    Kind.NORMALISATION: per_input_element(flops=5, transcendental=1),
    Kind.VIEW: no_work,
    Kind.INDEXING: no_work,
    Kind.CREATION: no_work,
    Kind.SCAN: per_input_element(),
    Kind.POOLING: per_input_element(),
}


@dataclass(frozen=True)
class OpDef:
    """The record of one ATen overload.

    Attributes:
        name: the overload, ``aten.gelu.default``.
        lower: the rule: jax arrays and Python scalars in the order of the ATen schema, in; jax array (or a tuple of
            them, None where ATen returns none), out. A rule with a keyword parameter ``out`` is given the result type.
        kind: family for fusion.
        work: flops and transcendentals of one call; bytes are added by ``work_of``.
        when: reason why this call (dtypes, arguments) is not supported, or None where it is.
        source: ``file:line`` of the rule.
    """

    name: str
    lower: Callable[..., Any]
    kind: Kind
    work: WorkRule
    when: Callable[[Call], str | None] | None
    wants_out: bool
    source: str


class Registry:
    """Op records by overload name. A second registration of a name is an error that names both places."""

    def __init__(self) -> None:
        self._records: dict[str, OpDef] = {}

    def add(self, record: OpDef) -> None:
        if (old := self._records.get(record.name)) is not None:
            raise ValueError(f"{record.name} is registered twice: at {old.source} and at {record.source}")
        self._records[record.name] = record

    def get(self, name: str) -> OpDef | None:
        return self._records.get(name)

    def __getitem__(self, name: str) -> OpDef:
        return self._records[name]

    def __contains__(self, name: object) -> bool:
        return name in self._records

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._records))


REGISTRY = Registry()


def op(
    *overloads: object,
    kind: Kind,
    work: WorkRule | None = None,
    when: Callable[[Call], str | None] | None = None,
    registry: Registry = REGISTRY,
) -> Callable[[F], F]:
    """Register the decorated function as the lowering rule of some ATen overloads.

    Args:
        overloads: ``torch.ops.aten`` overloads that share the rule.
        kind: family for fusion.
        work: flops and transcendentals; may be left out where the kind has a default.
        when: says why a call is not supported, or None.
    """
    rule_of_work = work or DEFAULT_WORK.get(kind)
    if rule_of_work is None:
        raise ValueError(f"{overloads[0]}: {kind} has no default work; pass work=")

    def register(function: F) -> F:
        code = function.__code__
        source = f"{code.co_filename}:{code.co_firstlineno}"
        wants_out = "out" in inspect.signature(function).parameters
        for overload in overloads:
            registry.add(OpDef(kind_name(overload), function, kind, rule_of_work, when, wants_out, source))
        return function

    return register


def kind_name(target: object) -> str:
    """The kind of an op that calls ``target``: an overload's own name, ``higher_order.cond`` of a higher-order op."""
    name = str(target)
    return name if "." in name else f"higher_order.{name}"


def kind_of(op: Op, registry: Registry = REGISTRY) -> Kind:
    """Family of an op; ``getitem`` is a view of a tuple."""
    if op.kind == GETITEM:
        return Kind.VIEW
    record = registry.get(op.kind)
    return record.kind if record is not None else Kind.OTHER


def why_unsupported(call: Call, registry: Registry = REGISTRY) -> str | None:
    """Reason why a call cannot be lowered, or None where it can."""
    if call.op.kind == GETITEM:
        return None
    record = registry.get(call.op.kind)
    if record is None:
        return "no lowering rule"
    for subgraph in call.op.subgraphs:
        for op in subgraph.ops:
            if (why := why_unsupported(Call(op, subgraph.types), registry)) is not None:
                return f"in {subgraph.name}: {op.kind}: {why}"
    return record.when(call) if record.when is not None else None


def work_of(op: Op, types: Mapping[str, Type], registry: Registry = REGISTRY) -> Work:
    """Work of one op, bytes included."""
    if op.kind == GETITEM:
        return Work()
    call = Call(op, types)
    record = registry[op.kind]
    done = record.work(call)
    if record.kind is Kind.VIEW:
        return done
    moved = sum(t.nbytes for t in call.operand_types) + sum(t.nbytes for t in call.result_types)
    return Work(done.flops, done.transcendentals, moved)


def work_of_graph(graph: Graph, names: Iterable[str] | None = None) -> Work:
    """Sum of the work of the ops that define ``names``; of the whole graph by default."""
    chosen = graph.ops if names is None else [graph.defs[n] for n in names]
    total = Work()
    for one in chosen:
        total = total + work_of(one, graph.types)
    return total
