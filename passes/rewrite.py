"""Local rewrites in one walk: the driver that ``canonicalize`` and ``constant_fold`` share.

A rule is a function of one op and its surroundings that returns what the op is to be replaced by, or None. The walk
goes down the program once; a rule sees operands as already rewritten, so a chain shrinks link by link. Linear in the
number of ops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TypeAlias

from neuron_compiler.ir.graph import Constant, Graph, Op, Operand, TensorType, Type, Value, substitute
from neuron_compiler.ir.plan import Program

Replacement: TypeAlias = Op | tuple[Op, Op] | Value | Constant | None
"""Another op or a constant for the same result, or a value that is the same already; of two ops, the first has a name
from ``Scope.new_name`` and is for the second to read."""

Rule: TypeAlias = "Callable[[Op, Scope], Replacement]"

MAX_REWRITES_PER_OP = 100


@dataclass
class Scope:
    """What a rule may look at besides its op: types, definitions and number of readers, as of now."""

    graph: Graph
    types: dict[str, Type]
    ops: dict[str, Op] = field(default_factory=dict)
    constants: dict[str, Constant] = field(default_factory=dict)
    readers: Counter[str] = field(default_factory=Counter)
    names: dict[str, str] = field(default_factory=dict)

    def op(self, operand: Operand) -> Op | None:
        """The op that computes an operand; None for an input, a constant or what is no value."""
        return self.ops.get(operand.name) if isinstance(operand, Value) else None

    def constant(self, operand: Operand) -> Constant | None:
        """The constant that an operand is, else None."""
        return self.constants.get(operand.name) if isinstance(operand, Value) else None

    def type(self, operand: Operand) -> TensorType | None:
        """The type of an operand that is a tensor, else None."""
        found = self.types[operand.name] if isinstance(operand, Value) else None
        return found if isinstance(found, TensorType) else None

    def new_name(self, near: str) -> str:
        """A name that no value of the graph has."""
        return next(name for i in count() if (name := f"{near}_{i}") not in self.types)

    def is_read_once(self, name: str) -> bool:
        """Whether one op reads a value, or it is returned once, and nothing else."""
        return self.readers[name] == 1


def rules_by_kind(*pairs: tuple[Iterable[str], Rule]) -> Mapping[str, Sequence[Rule]]:
    """The rules to try for each kind of op, in the order given."""
    table: dict[str, list[Rule]] = {}
    for kinds, rule in pairs:
        for kind in kinds:
            table.setdefault(kind, []).append(rule)
    return table


def rewrite(program: Program, rules: Callable[[Op], Sequence[Rule]]) -> Program:
    """Replace ops by rule until none applies; the same program where none did.

    Args:
        program: its plan is dropped if the graph changes.
        rules: the rules to try on an op, in order.

    Raises:
        ValueError: a rule changes a type, renames a result, or never comes to rest.
    """
    graph = program.graph
    scope = Scope(graph, dict(graph.types), constants={c.name: c for c in graph.constants}, readers=_readers(graph))
    changed = False
    for original in graph.ops:
        op = _renamed(original, scope)
        changed |= _settle(op, scope, rules)
    if not changed:
        return program
    outputs = tuple(scope.names.get(name, name) for name in graph.outputs)
    return program.with_graph(
        replace(graph, ops=tuple(scope.ops.values()), outputs=outputs, constants=tuple(scope.constants.values()))
    )


def _readers(graph: Graph) -> Counter[str]:
    readers = Counter(graph.outputs)
    for op in graph.ops:
        readers.update(op.uses)
    return readers


def _renamed(op: Op, scope: Scope) -> Op:
    """The op reading what its operands were replaced by."""
    if not any(name in scope.names for name in op.uses):
        return op
    operands = tuple(substitute(operand, scope.names) for operand in op.operands)
    attrs = tuple((key, substitute(value, scope.names)) for key, value in op.attrs)
    renamed = replace(op, operands=operands, attrs=attrs)
    # Each use was counted for the value it is replaced by; two of them may now be one.
    scope.readers.subtract(scope.names.get(name, name) for name in op.uses)
    scope.readers.update(renamed.uses)
    return renamed


def _settle(op: Op, scope: Scope, rules: Callable[[Op], Sequence[Rule]]) -> bool:
    """Rewrite one op until no rule applies and file what it became; whether any did."""
    for done in range(MAX_REWRITES_PER_OP):
        found = next((r for rule in rules(op) if (r := rule(op, scope)) is not None), None)
        if found is None:
            scope.ops[op.result] = op
            return done > 0
        if isinstance(found, tuple):
            helper, found = found
            scope.types[helper.result] = helper.type
            scope.ops[helper.result] = helper
            scope.readers.update(helper.uses)
        _check_replacement(op, found, scope)
        if isinstance(found, Op):
            scope.readers.update(found.uses)
            _release(op.uses, scope)
            op = found
            continue
        if isinstance(found, Value):
            scope.names[op.result] = found.name
            scope.readers[found.name] += scope.readers.pop(op.result, 0)
        else:
            scope.constants[op.result] = found
        _release(op.uses, scope)
        return True
    raise ValueError(f"{MAX_REWRITES_PER_OP} rewrites of %{op.result} did not come to rest; the last gave {op}")


def _check_replacement(op: Op, found: Op | Value | Constant, scope: Scope) -> None:
    type_ = scope.types[found.name] if isinstance(found, Value) else found.type
    if type_ != op.type:
        raise ValueError(f"a rule replaced {op} by a value of type {type_}: {found}")
    name = op.result if isinstance(found, Value) else found.result if isinstance(found, Op) else found.name
    if name != op.result:
        raise ValueError(f"a rule replaced {op} under another name: {found}")


def _release(uses: Iterable[str], scope: Scope) -> None:
    """Take back one reader of each value; ops that lost their last one go, and what only they read with them."""
    pending = list(uses)
    while pending:
        name = pending.pop()
        scope.readers[name] -= 1
        if scope.readers[name] == 0 and (op := scope.ops.pop(name, None)) is not None:
            pending.extend(op.uses)
