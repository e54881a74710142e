"""One FX graph under one binding → a Sequence: Graphs for the compiled segments, eager steps around them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from neuron_compiler.capture import effects
from neuron_compiler.capture.convert import constant_bytes, meta_value, named
from neuron_compiler.capture.draws import as_eager_ran
from neuron_compiler.capture.location import location
from neuron_compiler.capture.origins import origin
from neuron_compiler.capture.partition import SHAPE_ONLY, Partition, Placement, Role
from neuron_compiler.capture.symbols import Binding
from neuron_compiler.dtypes import TORCH
from neuron_compiler.errors import CaptureError, UnsupportedOp
from neuron_compiler.ir.graph import Constant, Graph, Input, TensorType
from neuron_compiler.runtime import CPU, Layout
from neuron_compiler.sequence import Fresh, RunEager, RunExecutable, Sequence, Slot, Step, Writeback

CONSTANT_LIMIT_BYTES = 1024
"""Captured tensors up to this size become part of the program; larger ones are passed to it on each call."""


@dataclass(frozen=True)
class Segment:
    """A compiled part of a graph, before it is compiled."""

    graph: Graph
    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]


Compile = Callable[[Segment, int], Callable[[Any], list[torch.Tensor]]]
"""Makes of a segment, and the number of its stage, what runs it."""


@dataclass(frozen=True)
class Cut:
    """A segment with the nodes that it reads and gives."""

    segment: Segment
    reads: tuple[Node, ...]
    gives: tuple[Node, ...]


class Builder:
    """Builds the Sequence of one graph module under one binding.

    Args:
        module: functional ATen graph with fake values in ``meta["val"]``.
        binding: numbers of its symbols.
        name: base of the segments' graph names.
        strict: raise UnsupportedOp for an op that would run eagerly.
        origins: what Dynamo calls the graph's arguments, by position.
    """

    def __init__(
        self,
        module: GraphModule,
        binding: Binding,
        name: str,
        strict: bool,
        origins: Mapping[int, str] | None = None,
    ) -> None:
        self.module = module
        self.binding = binding
        self.name = name
        self.origins = origins or {}
        self.partition = Partition(module, binding)
        self.strict = strict
        self._by_name = {node.name: node for node in self.partition.nodes}
        self._readers = self._op_readers()
        self.slots: dict[Node, int] = {}
        self.next_slot = 0
        self.constants: list[Any] = []
        self.steps: list[Step] = []
        self._cuts: dict[int, Cut | None] = {}

    def build(self, compile_segment: Compile) -> Sequence:
        """Compile the segments and string the steps together; UnsupportedOp where strict forbids an eager one."""
        if self.strict:
            self._refuse_fallbacks()
        nodes = self.partition.nodes
        placeholders = [node for node in nodes if node.op == "placeholder"]
        for node in placeholders:
            self._new_slot(node)
        for node in nodes:
            if node.op == "get_attr" and not self._is_compiled_in(node):
                self.constants.append(named(node))
                self._new_slot(node)
        for stage in range(self.partition.stage_count()):
            for node in self.partition.in_stage(stage, Role.EAGER, Role.RANDOM):
                self._eager(node)
            self._segment(stage, compile_segment)
        self._returned_views()
        outputs = self._outputs()
        self._writebacks()
        return Sequence(len(placeholders), self.constants, self.steps, self.next_slot, outputs)

    def _is_compiled_in(self, node: Node) -> bool:
        """Whether a node names a subgraph that is part of executables and of nothing else."""
        users = [self._placement(user) for user in node.users]
        return isinstance(meta_value(node), GraphModule) and all(p is None or p.role is Role.COMPILED for p in users)

    # --- slots -------------------------------------------------------------------------------------------------

    def _new_slot(self, node: Node) -> int:
        self.slots[node] = self.next_slot
        self.next_slot += 1
        return self.slots[node]

    def _placement(self, node: Node) -> Placement | None:
        return self.partition.placements.get(node)

    def _argument(self, value: Any) -> Any:
        """An eager step's argument: a Slot for a computed value, the number of a size, else the value itself."""
        if isinstance(value, Node):
            found = meta_value(value)
            placement = self._placement(value)
            if placement is not None and placement.role is Role.NUMBER:
                return self.binding.number(found)
            if value.op == "placeholder" and isinstance(found, torch.SymInt | torch.SymFloat | torch.SymBool):
                return self.binding.number(found)
            return Slot(self.slots[value])
        if isinstance(value, tuple | list):
            items = [self._argument(item) for item in value]
            return tuple(items) if isinstance(value, tuple) else list(items)
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return self.binding.number(value)
        return value

    # --- steps -------------------------------------------------------------------------------------------------

    def _eager(self, node: Node) -> None:
        placement = self.partition.placements[node]
        # The tensor that only gives a shape may have been dropped as unread.
        shape_only = placement.role is Role.RANDOM and str(node.target) in SHAPE_ONLY
        function, given = as_eager_ran(node)
        args = [self._fresh(a) if shape_only and i == 0 else self._argument(a) for i, a in enumerate(given)]
        entry = self.partition.entry(node)
        kwargs = tuple((name, self._argument(value)) for name, value in node.kwargs.items())
        self.steps.append(RunEager(function, tuple(args), kwargs, self._new_slot(node), entry))

    def _fresh(self, source: Any) -> Any:
        """An operand of which only the shape is read."""
        value = meta_value(source)
        sizes, strides = self.binding.sizes(value.shape), self.binding.sizes(value.stride())
        if sizes is None or strides is None:
            return self._argument(source)
        return Fresh(sizes, strides, value.dtype, value.device)

    def _segment(self, stage: int, compile_segment: Compile) -> None:
        if (found := self.cut(stage)) is None:
            return
        executable = compile_segment(found.segment, stage)
        reads = tuple(self.slots[n] for n in found.reads)
        self.steps.append(RunExecutable(executable, reads, tuple(self._new_slot(n) for n in found.gives)))

    def cut(self, stage: int) -> Cut | None:
        """The compiled part of a stage; None where nothing of it is read."""
        if stage not in self._cuts:
            self._cuts[stage] = self._make_cut(stage)
        return self._cuts[stage]

    def _make_cut(self, stage: int) -> Cut | None:
        nodes = self.partition.in_stage(stage, Role.COMPILED)
        inside = set(nodes)
        outside = [n for n in nodes if self._is_read_outside(n, inside)]
        if not outside:
            return None
        reads: dict[Node, None] = {}
        constants: dict[Node, Constant] = {}
        for node in nodes:
            for source in self._value_reads(node):
                if source in inside:
                    continue
                if (constant := self._constant(source)) is not None:
                    constants[source] = constant
                else:
                    reads[source] = None
        graph = Graph(
            name=self.name if stage == 0 else f"{self.name}_{stage}",
            inputs=tuple(Input(n.name, self._tensor_type(n), origin(n, self.origins)) for n in reads),
            ops=tuple(op for n in nodes if (op := self.partition.placements[n].op) is not None),
            outputs=tuple(n.name for n in outside),
            constants=tuple(constants.values()),
        )
        segment = Segment(graph, tuple(map(self._layout, reads)), tuple(map(self._layout, outside)))
        return Cut(segment, tuple(reads), tuple(outside))

    def _value_reads(self, node: Node) -> list[Node]:
        """Nodes whose tensors the node's op reads; its op may address the base of a view instead of the view."""
        op = self.partition.placements[node].op
        return [] if op is None else [self._by_name[name] for name in op.uses]

    def _op_readers(self) -> dict[Node, list[Node]]:
        """Nodes whose op reads a node's tensor, where FX does not say so: ``as_strided`` reads the base of a view."""
        found: dict[Node, list[Node]] = {}
        for reader, placement in self.partition.placements.items():
            for name in placement.op.uses if placement.op is not None else ():
                found.setdefault(self._by_name[name], []).append(reader)
        return found

    def _is_read_outside(self, node: Node, inside: set[Node]) -> bool:
        if not isinstance(meta_value(node), torch.Tensor):
            return False
        if node in self.partition.bases or node.target in effects.KEPT:
            return True
        for user in (*node.users, *self._readers.get(node, ())):
            if user in inside:
                continue
            if user.op == "output":
                if node not in self.partition.views:
                    return True
                continue
            placement = self._placement(user)
            if placement is None or placement.role is Role.NUMBER:
                continue
            if placement.role is Role.RANDOM and str(user.target) in SHAPE_ONLY and user.all_input_nodes[0] is node:
                continue
            return True
        return False

    def _constant(self, node: Node) -> Constant | None:
        """A small captured tensor as part of the program."""
        if node.op != "get_attr":
            return None
        tensor = named(node)
        if not isinstance(tensor, torch.Tensor) or tensor.dtype not in TORCH:
            return None
        if tensor.numel() * tensor.element_size() > CONSTANT_LIMIT_BYTES or tensor.requires_grad:
            return None
        return Constant(node.name, TensorType(tuple(tensor.shape), TORCH[tensor.dtype]), constant_bytes(tensor))

    def _tensor_type(self, node: Node) -> TensorType:
        value = meta_value(node) if node.op != "get_attr" else named(node)
        sizes = self.binding.sizes(value.shape)
        if sizes is None:
            raise CaptureError(f"{node.name} has a data-dependent size {tuple(value.shape)}", loc=location(node))
        return TensorType(sizes, TORCH[value.dtype])

    def _layout(self, node: Node) -> Layout:
        value = meta_value(node) if node.op != "get_attr" else named(node)
        sizes, strides = self.binding.sizes(value.shape), self.binding.sizes(value.stride())
        if sizes is None or strides is None:
            raise CaptureError(f"{node.name} has a data-dependent size {tuple(value.shape)}", loc=location(node))
        return Layout.of(sizes, strides, device_with_index(value.device))

    # --- the end -----------------------------------------------------------------------------------------------

    def _returned_views(self) -> None:
        for node in self.partition.nodes:
            if node in self.partition.views:
                args = tuple(self._argument(a) for a in node.args)
                kwargs = tuple((k, self._argument(v)) for k, v in node.kwargs.items())
                self.steps.append(RunEager(node.target, args, kwargs, self._new_slot(node), None))

    def _outputs(self) -> list[Any]:
        """Results; an argument that is returned as it was before it is changed in place is copied first."""
        returned = self.partition.output.args[0]
        outputs: list[Any] = []
        for value in returned if isinstance(returned, tuple | list) else (returned,):
            if isinstance(value, Node):
                placement = self._placement(value)
                if placement is not None and placement.role is Role.WRITEBACK:
                    outputs.append(Slot(self.slots[value.args[0]]))
                    continue
                if value in self.partition.mutated:
                    outputs.append(Slot(self._clone(self.slots[value])))
                    continue
            outputs.append(self._argument(value))
        return outputs

    def _writebacks(self) -> None:
        pairs = []
        for node, placement in self.partition.placements.items():
            if placement.role is Role.WRITEBACK:
                target, value = node.args
                index = self.slots[value]  # type: ignore[index]
                if value in self.partition.mutated:
                    index = self._clone(index)
                pairs.append(Writeback(self.slots[target], index))
        self.steps.extend(pairs)

    def _clone(self, slot: int) -> int:
        write, self.next_slot = self.next_slot, self.next_slot + 1
        self.steps.append(RunEager(torch.clone, (Slot(slot),), (), write, None))
        return write

    def _refuse_fallbacks(self) -> None:
        for node, placement in self.partition.placements.items():
            if placement.role is Role.EAGER and node.target is not operator.getitem:
                raise refusal(node, placement.cause, "add a rule: docs/add_an_op.md")


def refusal(node: Node, cause: str, instead: str) -> UnsupportedOp:
    """What ``strict`` raises for a node that would run eagerly; ``instead`` is what else the user can do."""
    return UnsupportedOp(
        f"{node.target} cannot be compiled: {cause}",
        op=str(node.format_node()),
        loc=location(node),
        when="capture",
        hint=f"run it eagerly with options={{'strict': False}}, or {instead}",
    )


def device_with_index(device: torch.device) -> torch.device:
    """The device with its index; PyTorch records none where the user gave none."""
    if device.type == CPU.type:
        return CPU
    if device.index is not None:
        return device
    return torch.device(device.type, torch.get_device_module(device).current_device())
