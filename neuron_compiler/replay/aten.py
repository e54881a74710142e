"""A Graph computed by ATen, op by op, each looked up by its own name: the reference for what is compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from neuron_compiler import dtypes
from neuron_compiler.errors import CaptureError
from neuron_compiler.ir.graph import GETITEM, Constant, DType, Graph, Op, Operand, Value

Values = Mapping[str, Any]


def evaluate(graph: Graph, arguments: Sequence[torch.Tensor]) -> dict[str, Any]:
    """Every value of the graph by name, for arguments in the order of its inputs; raises what ATen raises."""
    values: dict[str, Any] = {i.name: t for i, t in zip(graph.inputs, arguments, strict=True)}
    values.update((constant.name, constant_tensor(constant)) for constant in graph.constants)
    with torch.no_grad():
        for op in graph.ops:
            values[op.result] = _call(op, values)
    return values


def constant_tensor(constant: Constant) -> torch.Tensor:
    """A constant's elements as a tensor."""
    dtype = dtypes.to_torch(constant.type.dtype)
    if not constant.data:
        return torch.empty(constant.type.shape, dtype=dtype)
    return torch.frombuffer(bytearray(constant.data), dtype=dtype).reshape(constant.type.shape)


def _call(op: Op, values: Values) -> Any:
    args = [_argument(operand, values) for operand in op.operands]
    kwargs = {name: _argument(value, values) for name, value in op.attrs}
    return (SPECIAL.get(op.kind) or _overload(op))(*args, **kwargs)


def _argument(operand: Operand, values: Values) -> Any:
    if isinstance(operand, Value):
        return values[operand.name]
    if isinstance(operand, tuple):
        return [_argument(item, values) for item in operand]
    if isinstance(operand, Graph):
        return partial(_subgraph, operand)
    if isinstance(operand, DType):
        return dtypes.to_torch(operand)
    return operand


def _subgraph(graph: Graph, *arguments: Any) -> Any:
    """What a branch or the body of a loop returns, for its arguments, numbers among them left out."""
    values = evaluate(graph, [a for a in arguments if isinstance(a, torch.Tensor)])
    return tuple(values[name] for name in graph.outputs)


def _overload(op: Op) -> Callable[..., Any]:
    found: Any = torch.ops
    try:
        for part in op.kind.split("."):
            found = getattr(found, part)
    except AttributeError:
        raise CaptureError(f"PyTorch has no op {op.kind}", op=str(op), loc=op.loc, when="replay") from None
    return found  # type: ignore[no-any-return]


def _reshape(tensor: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    return tensor.reshape(size)


def _view_dtype(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.contiguous().view(dtype)


def _as_strided(
    tensor: torch.Tensor, size: list[int], stride: list[int], offset: int = 0, *, input_stride: list[int]
) -> torch.Tensor:
    """``as_strided`` addresses memory: the operand is laid out first as it lay when the graph was captured."""
    laid = torch.empty_strided(tensor.shape, input_stride, dtype=tensor.dtype).copy_(tensor)
    return laid.as_strided(size, stride, offset)


# In the IR a view renames positions, whatever the strides are: after a pass they may be others than in PyTorch.
SPECIAL: Mapping[str, Callable[..., Any]] = {
    GETITEM: lambda values, index: values[index],
    "aten.view.default": _reshape,
    "aten._unsafe_view.default": _reshape,
    "aten.view.dtype": _view_dtype,
    "aten.as_strided.default": _as_strided,
}
