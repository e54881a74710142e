"""FX nodes → Graph ops: the ATen call in schema order, with concrete numbers and types."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.fx import GraphModule, Node

from neuron_compiler import dtypes
from neuron_compiler.capture.location import location
from neuron_compiler.capture.symbols import Binding
from neuron_compiler.errors import CaptureError
from neuron_compiler.ir.graph import GETITEM, Op, Operand, TensorType, TupleType, Type, Value
from neuron_compiler.opdef import kind_name

aten = torch.ops.aten

# Where a tensor lies is the runtime's matter: these arguments change no value.
_PLACEMENT = frozenset({"device", "layout", "pin_memory", "memory_format", "non_blocking"})

VIEWS = frozenset(
    {
        aten.alias.default,
        aten.as_strided.default,
        aten.detach.default,
        aten.diagonal.default,
        aten.expand.default,
        aten.permute.default,
        aten.select.int,
        aten.slice.Tensor,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.t.default,
        aten.transpose.int,
        aten.unfold.default,
        aten.unsqueeze.default,
        aten.view.default,
    }
)
"""Overloads whose result shares the memory of their first argument."""

MULTI_VIEWS = frozenset({aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int, aten.chunk.default})
"""Overloads that return several views of their first argument."""


NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)
"""Types of what a size or a scalar may be to a trace."""

DEVICES = frozenset({"cpu", "neuron"})

DATA_DEPENDENT = "data-dependent size"


def meta_value(node: Node) -> Any:
    """The fake value that tracing recorded for a node; None where the node returns nothing."""
    return node.meta.get("val", node.meta.get("example_value"))


def tensor_type(value: torch.Tensor, binding: Binding) -> TensorType | None:
    """IR type of a fake tensor; None where its shape depends on data."""
    shape = binding.sizes(value.shape)
    return None if shape is None else TensorType(shape, dtypes.from_torch(value.dtype))


def named(node: Node) -> Any:
    """What a ``get_attr`` node names: a captured tensor or a subgraph."""
    found: Any = node.graph.owning_module
    for part in str(node.target).split("."):
        found = getattr(found, part)
    return found


def unrepresentable(value: Any, binding: Binding) -> str | None:
    """Why a value cannot be an array of the executable; None where it can."""
    if isinstance(value, tuple | list):
        return next((why for v in value if v is not None and (why := unrepresentable(v, binding))), None)
    if not isinstance(value, torch.Tensor):
        return f"{type(value).__name__} value"
    if value.layout is not torch.strided:
        return f"{value.layout} tensor"
    if value.device.type not in DEVICES:
        return f"tensor on device {value.device.type}"
    if value.dtype not in dtypes.TORCH:
        return f"dtype {value.dtype}"
    if value.is_nested:
        return "nested tensor"
    if tensor_type(value, binding) is None:
        return DATA_DEPENDENT
    return None


def value_type(value: Any, binding: Binding) -> Type | None:
    """IR type of what a node returns; None where a shape depends on data."""
    if isinstance(value, torch.Tensor):
        return tensor_type(value, binding)
    if isinstance(value, tuple | list):
        elements: list[TensorType | None] = []
        for item in value:
            if item is None:
                elements.append(None)
            elif not isinstance(item, torch.Tensor):
                raise CaptureError(f"a tuple result holds {type(item).__name__}, not a tensor")
            elif (found := tensor_type(item, binding)) is None:
                return None
            else:
                elements.append(found)
        return TupleType(tuple(elements))
    raise CaptureError(f"a node returns {type(value).__name__}, not a tensor")


def operand(argument: Any, binding: Binding, names: Callable[[Node], str]) -> Operand:
    """An FX argument as an IR operand; symbolic scalars become numbers, subgraphs Graphs."""
    if isinstance(argument, Node):
        if isinstance(value := meta_value(argument), GraphModule):
            from neuron_compiler.capture.subgraphs import subgraph  # which converts its ops here

            return subgraph(str(argument.target), value, binding)
        if isinstance(value, torch.Tensor | tuple | list):
            return Value(names(argument))
        return binding.number(value)
    if isinstance(argument, tuple | list):
        return tuple(operand(item, binding, names) for item in argument)
    if argument is None or isinstance(argument, bool | int | float | complex | str):
        return argument
    if isinstance(argument, torch.SymInt | torch.SymFloat | torch.SymBool):
        return binding.number(argument)
    if isinstance(argument, torch.dtype):
        return dtypes.from_torch(argument)
    if isinstance(argument, torch.device | torch.layout | torch.memory_format):
        return str(argument)
    raise CaptureError(f"argument {argument!r} of type {type(argument).__name__} has no IR form")


def _schema_arguments(node: Node) -> tuple[list[Any], dict[str, Any]]:
    """The call's arguments by its schema: positional in order without trailing defaults, keyword-only ones by name."""
    schema = node.target._schema
    given: dict[str, Any] = dict(node.kwargs)
    positional_names = [a.name for a in schema.arguments if not a.kwarg_only]
    given.update(zip(positional_names, node.args, strict=False))
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    kept = 0
    for argument in schema.arguments:
        default = argument.default_value if argument.has_default_value() else None
        value = given.get(argument.name, default)
        is_default = argument.has_default_value() and _same(value, default)
        if argument.kwarg_only:
            if not is_default and argument.name not in _PLACEMENT:
                keywords[argument.name] = value
        elif argument.name not in _PLACEMENT:
            positional.append(value)
            if not is_default:
                kept = len(positional)
    return positional[:kept], keywords


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Node) or isinstance(b, Node):
        return a is b
    if type(a) is not type(b) and not (isinstance(a, list | tuple) and isinstance(b, list | tuple)):
        return False
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def view_base(node: Node) -> Node:
    """The node whose memory a chain of views looks at."""
    while node.target in VIEWS and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


def _as_strided(node: Node, binding: Binding, names: Callable[[Node], str]) -> tuple[list[Any], dict[str, Operand]]:
    """``as_strided`` addresses the whole storage of its operand: said of the tensor that owns it, with its strides."""
    source, size, stride, *rest = node.args
    offset = rest[0] if rest else node.kwargs.get("storage_offset")
    if offset is None:
        offset = meta_value(source).storage_offset()
    base = view_base(source)
    strides = binding.sizes(meta_value(base).stride())
    positional = [base, size, stride, offset]
    return [operand(a, binding, names) for a in positional], {"input_stride": strides}


def as_strided_limit(node: Node, binding: Binding) -> str | None:
    """Why an ``as_strided`` may look beyond its operand, at memory that only the owner of the storage knows."""
    if node.target is not aten.as_strided.default:
        return None
    base = meta_value(view_base(node.args[0]))
    sizes, strides = binding.sizes(base.shape), binding.sizes(base.stride())
    if sizes is None or strides is None:
        return DATA_DEPENDENT
    extent = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    return None if 0 in sizes or extent == prod(sizes) else "as_strided over a storage with gaps"


def to_op(node: Node, binding: Binding, names: Callable[[Node], str]) -> Op | None:
    """The op of one ``call_function`` node; None where a size in it depends on data.

    Raises CaptureError for an argument or a result that the IR has no form for.
    """
    result_type = value_type(meta_value(node), binding)
    if result_type is None:
        return None
    loc = location(node)
    if node.target is operator.getitem:
        source, index = node.args
        return Op(names(node), GETITEM, (Value(names(source)), index), result_type, (), loc)
    if node.target is aten.as_strided.default:
        operands, attrs = _as_strided(node, binding, names)
    elif isinstance(node.target, HigherOrderOperator):
        operands = [operand(a, binding, names) for a in node.args]
        attrs = {name: operand(value, binding, names) for name, value in node.kwargs.items()}
    else:
        positional, keywords = _schema_arguments(node)
        operands = [operand(a, binding, names) for a in positional]
        attrs = {name: operand(value, binding, names) for name, value in keywords.items()}
    return Op(names(node), kind_name(node.target), tuple(operands), result_type, tuple(sorted(attrs.items())), loc)


def constant_bytes(tensor: torch.Tensor) -> bytes:
    """Row-major bytes of a real tensor."""
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy().tobytes()) if flat.numel() else b""


def type_map(values: Mapping[str, Any], binding: Binding) -> dict[str, Type]:
    """IR types of named fake values that have one."""
    found = {name: value_type(value, binding) for name, value in values.items()}
    return {name: t for name, t in found.items() if t is not None}
