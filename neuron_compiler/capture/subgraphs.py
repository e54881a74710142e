"""A subgraph of a higher-order op (a branch of ``cond``, the body of a loop) as a Graph.

In: the GraphModule that a ``get_attr`` node names, its fake values, the binding. Out: a closed Graph whose inputs are
the subgraph's tensor arguments; arguments that are numbers become part of the ops that read them. Raises CaptureError
for what cannot be compiled inside of a branch or loop; the higher-order op as a whole then runs eagerly.
"""

from __future__ import annotations

import operator

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import GraphModule, Node

from neuron_compiler.capture import convert, draws
from neuron_compiler.capture.symbols import Binding
from neuron_compiler.errors import CaptureError
from neuron_compiler.ir.graph import Constant, Graph, Input, Op, TensorType


def subgraph(name: str, module: GraphModule, binding: Binding) -> Graph:
    """The module's graph; raises CaptureError where a node of it has no form inside of one executable."""
    inputs: list[Input] = []
    constants: list[Constant] = []
    ops: list[Op] = []
    outputs: tuple[str, ...] = ()
    for node in module.graph.nodes:
        draws.record_missing_value(node)
        if node.op == "output":
            outputs = _outputs(node)
        elif node.op == "placeholder":
            if isinstance(value := convert.meta_value(node), torch.Tensor):
                inputs.append(Input(node.name, _type(node, value, binding)))
        elif node.op == "get_attr":
            tensor = node.meta["val"] = convert.named(node)
            if isinstance(tensor, torch.Tensor):
                constants.append(Constant(node.name, _type(node, tensor, binding), convert.constant_bytes(tensor)))
        elif not _is_number(node, binding):
            ops.append(_op(node, binding))
    return Graph(name, tuple(inputs), tuple(ops), outputs, tuple(constants))


def _type(node: Node, value: torch.Tensor, binding: Binding) -> TensorType:
    why = convert.unrepresentable(value, binding)
    found = convert.tensor_type(value, binding) if why is None else None
    if found is None:
        raise CaptureError(f"{node.name} is a {why}")
    return found


def _is_number(node: Node, binding: Binding) -> bool:
    """Whether a node is a size that the binding knows, or a check of such sizes: no op at all."""
    value = convert.meta_value(node)
    if value is None:
        return all(_is_number(source, binding) for source in node.all_input_nodes)
    return isinstance(value, convert.NUMBERS) and binding.try_number(value) is not None


def _op(node: Node, binding: Binding) -> Op:
    if draws.is_draw(node) or draws.is_random(node.target):
        raise CaptureError(f"{node.target} draws random numbers")
    if isinstance(node.target, OpOverload):
        if node.target._schema.is_mutable:
            raise CaptureError(f"{node.target} changes its argument in place")
    elif not isinstance(node.target, HigherOrderOperator) and node.target is not operator.getitem:
        raise CaptureError(f"not an ATen op: {node.target}")
    if (why := convert.unrepresentable(convert.meta_value(node), binding)) is not None:
        raise CaptureError(f"{node.target}: {why}")
    if (why := convert.as_strided_limit(node, binding)) is not None:
        raise CaptureError(why)
    found = convert.to_op(node, binding, lambda n: str(n.name))
    if found is None:
        raise CaptureError(f"{node.target}: {convert.DATA_DEPENDENT}")
    return found


def _outputs(node: Node) -> tuple[str, ...]:
    returned = node.args[0]
    listed = returned if isinstance(returned, tuple | list) else (returned,)
    for value in listed:
        if not isinstance(value, Node) or not isinstance(convert.meta_value(value), torch.Tensor):
            raise CaptureError(f"it returns {value}, not a tensor")
    return tuple(str(value.name) for value in listed)
