"""Which nodes are compiled, which run eagerly, and in how many stages.

A graph becomes eager stage 0, executable 0, eager stage 1, executable 1, ...: as few as the data flow allows. A
random draw that needs no computed value falls into eager stage 0, before the one executable.
"""

from __future__ import annotations

import enum
import operator
from dataclasses import dataclass

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import GraphModule, Node

from neuron_compiler.capture import draws, effects
from neuron_compiler.capture.convert import (
    DATA_DEPENDENT,
    MULTI_VIEWS,
    NUMBERS,
    VIEWS,
    as_strided_limit,
    meta_value,
    named,
    to_op,
    unrepresentable,
    value_type,
)
from neuron_compiler.capture.location import location
from neuron_compiler.capture.symbols import Binding
from neuron_compiler.errors import CaptureError
from neuron_compiler.ir.graph import Op, Type
from neuron_compiler.ledger import Entry
from neuron_compiler.opdef import Call, why_unsupported

aten = torch.ops.aten

# Functional forms of in-place fills: they read their first operand's shape, never its values.
SHAPE_ONLY = frozenset(
    str(getattr(getattr(aten, name), overload))
    for name, overload in (
        ("bernoulli", "p"),
        ("uniform", "default"),
        ("normal_functional", "default"),
        ("exponential", "default"),
        ("geometric", "default"),
        ("cauchy", "default"),
        ("log_normal", "default"),
        ("random", "default"),
        ("random", "from"),
        ("random", "to"),
        ("rand_like", "default"),
        ("randn_like", "default"),
        ("randint_like", "default"),
        ("randint_like", "low_dtype"),
    )
)


class Role(enum.Enum):
    """What becomes of a node."""

    COMPILED = "compiled"
    EAGER = "eager"
    RANDOM = "random"
    NUMBER = "number"
    """A size or scalar that the binding knows: no step at all."""
    WRITEBACK = "writeback"


@dataclass(frozen=True)
class Placement:
    """Decision for one node: its role, its op where it is compiled, the reason where it is not, and its stage."""

    role: Role
    op: Op | None = None
    cause: str = ""
    stage: int = 0


class Partition:
    """Placements of all ``call_function`` nodes of a graph under one binding."""

    def __init__(self, module: GraphModule, binding: Binding) -> None:
        self.module = module
        self.binding = binding
        self.nodes = tuple(module.graph.nodes)
        self._by_name = {node.name: node for node in self.nodes}
        self.output = next(node for node in self.nodes if node.op == "output")
        self.mutated = frozenset(node.args[0] for node in self.nodes if self._is_writeback(node))
        self.placements: dict[Node, Placement] = {}
        self._types: dict[str, Type] = {}
        self.views: set[Node] = set()
        """View nodes that torch takes at the end, beside their compiled use inside the graph."""
        self.bases: set[Node] = set()
        """What those views look at: returned by the executable even if the program does not return it."""
        self._ordered_nodes: list[Node] = []
        self._order: dict[Node, list[Node]] = {}
        self._mutators: dict[Node, Node] = {}
        for node in self.nodes:
            self._note_type(node)
            if node.op == "call_function":
                self.placements[node] = self._place(node)
                self._order_after_mutation(node)
        self._drop_unread()
        self._mark_returned_views()
        self._assign_stages()

    # --- roles -------------------------------------------------------------------------------------------------

    def _note_type(self, node: Node) -> None:
        draws.record_missing_value(node)
        if node.op == "get_attr" and "val" not in node.meta:
            node.meta["val"] = named(node)
        value = meta_value(node)
        if isinstance(value, torch.Tensor | tuple | list) and unrepresentable(value, self.binding) is None:
            found = value_type(value, self.binding)
            if found is not None:
                self._types[node.name] = found

    @staticmethod
    def _is_writeback(node: Node) -> bool:
        """``copy_`` into an argument whose result is only returned, if used at all."""
        return (
            node.target is aten.copy_.default
            and isinstance(node.args[0], Node)
            and node.args[0].op == "placeholder"
            and all(user.op == "output" for user in node.users)
            and len(node.args) == 2
        )

    def _place(self, node: Node) -> Placement:
        value = meta_value(node)
        if draws.is_draw(node):
            return self._ordered(node, Placement(Role.RANDOM, cause="drawn by ATen"))
        if node.target is operator.getitem and (role := self.placements[node.args[0]].role) is not Role.COMPILED:
            return Placement(role)
        if isinstance(value, NUMBERS):
            if self.binding.try_number(value) is not None:
                return Placement(Role.NUMBER)
            return self._ordered(node, Placement(Role.EAGER, cause="data-dependent value"))
        if self._is_writeback(node):
            return Placement(Role.WRITEBACK)
        if value is None:
            # An assertion or a constraint: the binding's guards hold those on known sizes, the others must run.
            if all(self._is_number(source) for source in node.all_input_nodes):
                return Placement(Role.NUMBER)
            return self._ordered(node, Placement(Role.EAGER, cause="returns nothing: a check or an effect"))
        if node.target is operator.getitem:
            return self._place_call(node)
        if isinstance(node.target, HigherOrderOperator):
            placement = self._place_call(node)
            return placement if placement.role is Role.COMPILED else self._ordered(node, placement)
        if not isinstance(node.target, OpOverload):
            return self._ordered(node, Placement(Role.EAGER, cause=f"not an ATen op: {node.target}"))
        if node.target._schema.is_mutable:
            return self._ordered(node, Placement(Role.EAGER, cause="changes its argument in place"))
        return self._place_call(node)

    def _place_call(self, node: Node) -> Placement:
        random = draws.is_random(node.target)
        reason = unrepresentable(meta_value(node), self.binding)
        for source in node.all_input_nodes:
            if reason is None and not self._is_number(source) and not isinstance(meta_value(source), GraphModule):
                reason = unrepresentable(meta_value(source), self.binding)
        op: Op | None = None
        if reason is None:
            try:
                op = to_op(node, self.binding, _name)
            except CaptureError as error:
                reason = error.what
            else:
                if op is None:
                    reason = DATA_DEPENDENT
                else:
                    reason = as_strided_limit(node, self.binding) or why_unsupported(Call(op, self._types))
        if reason is None:
            return Placement(Role.COMPILED, op)
        if random:
            return self._ordered(node, Placement(Role.RANDOM, cause="drawn by ATen"))
        return Placement(Role.EAGER, cause=reason)

    def _is_number(self, node: Node) -> bool:
        value = meta_value(node)
        return isinstance(value, NUMBERS) and self.binding.try_number(value) is not None

    def _ordered(self, node: Node, placement: Placement) -> Placement:
        """Random and effectful steps keep their order in the program."""
        if self._ordered_nodes:
            self._order.setdefault(node, []).append(self._ordered_nodes[-1])
        self._ordered_nodes.append(node)
        return placement

    def _order_after_mutation(self, node: Node) -> None:
        """A read after an in-place change stays after it, and the change stays after earlier reads."""
        for source in node.all_input_nodes:
            if (mutator := self._mutators.get(source)) is not None:
                self._order.setdefault(node, []).append(mutator)
        if isinstance(node.target, OpOverload) and node.target._schema.is_mutable and not self._is_writeback(node):
            for source in node.all_input_nodes:
                earlier = [user for user in source.users if user in self.placements and user is not node]
                self._order.setdefault(node, []).extend(earlier)
                self._mutators[source] = node

    def _mark_returned_views(self) -> None:
        """Returned views are taken by torch of what they look at, so that results share memory as eager's do.

        A view of an argument that the program changes in place is not: its value is the one before the change.
        """
        for node in self.output.all_input_nodes:
            chain: list[Node] = []
            base = node
            while (source := _viewed(base)) is not None:
                chain.append(base)
                if base.target is operator.getitem:
                    chain.append(base.args[0])
                base = source
            if chain and base not in self.mutated and all(self._is_plain_view(link) for link in chain):
                self.views.update(chain)
                self.bases.add(base)

    def _is_plain_view(self, node: Node) -> bool:
        return self.placements[node].role is Role.COMPILED and all(
            self._is_number(source) for source in node.all_input_nodes[1:]
        )

    def _drop_unread(self) -> None:
        """Forget nodes that nothing needs, such as the tensor that a random draw reads only the shape of."""
        roots = [*self.output.all_input_nodes, *self._ordered_nodes]
        roots += [node for node in self.placements if node.target in effects.KEPT]
        roots += [n for n, p in self.placements.items() if p.role is Role.WRITEBACK]
        live: set[Node] = set()
        while roots:
            node = roots.pop()
            if node in self.placements and node not in live:
                live.add(node)
                roots.extend(self.dependencies(node))
                if (op := self.placements[node].op) is not None:
                    roots.extend(self._by_name[name] for name in op.uses)
        self.placements = {n: p for n, p in self.placements.items() if n in live or p.role is Role.NUMBER}

    # --- stages ------------------------------------------------------------------------------------------------

    def dependencies(self, node: Node) -> list[Node]:
        """Nodes that must have run before: those whose values it reads, and those that it may not overtake."""
        placement = self.placements[node]
        reads = list(node.all_input_nodes)
        if placement.role is Role.RANDOM and str(node.target) in SHAPE_ONLY:
            reads = reads[1:] if isinstance(node.args[0], Node) else reads
        reads.extend(self._order.get(node, ()))
        return [n for n in reads if n in self.placements and self.placements[n].role is not Role.NUMBER]

    def _assign_stages(self) -> None:
        for node, placement in self.placements.items():
            stage = 0
            for source in self.dependencies(node):
                found = self.placements[source]
                later = placement.role is not Role.COMPILED and found.role is Role.COMPILED
                stage = max(stage, found.stage + later)
            self.placements[node] = Placement(placement.role, placement.op, placement.cause, stage)

    def stage_count(self) -> int:
        return 1 + max((p.stage for p in self.placements.values()), default=0)

    def entry(self, node: Node) -> Entry | None:
        """What the ledger counts when a node runs; None where it is compiled or takes a tuple apart."""
        placement = self.placements[node]
        if placement.role not in (Role.EAGER, Role.RANDOM) or node.target is operator.getitem:
            return None
        event = "random" if placement.role is Role.RANDOM else "fallback"
        return Entry(event, str(node.target), placement.cause, location(node))

    def entries(self) -> tuple[Entry, ...]:
        """What the ledger counts in one call of the graph."""
        return tuple(entry for node in self.placements if (entry := self.entry(node)) is not None)

    def in_stage(self, stage: int, *roles: Role) -> list[Node]:
        return [n for n, p in self.placements.items() if p.stage == stage and p.role in roles]


def _viewed(node: Node) -> Node | None:
    """The node that a view looks at; None for a node that is no view."""
    if node.op != "call_function":
        return None
    if node.target is operator.getitem and node.args[0].target in MULTI_VIEWS:
        return node.args[0].args[0]
    return node.args[0] if node.target in VIEWS else None


def _name(node: Node) -> str:
    return str(node.name)
