"""Values of a Graph by PyTorch, op by op, and the kernels of its groups held against them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from unittest import mock

import torch

from neuron_compiler import dtypes, run_kernel
from neuron_compiler.capture import watch
from neuron_compiler.compile import optimise
from neuron_compiler.ir.graph import GETITEM, DType, Graph, Op, Operand, TensorType, Value
from neuron_compiler.ir.plan import Group, Program
from neuron_compiler.lowering.kernels import kernel_of
from neuron_compiler.options import Options


def evaluated(graph: Graph, given: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Every value of the graph."""
    found: dict[str, Any] = dict(given)
    for constant in graph.constants:
        raw = torch.frombuffer(bytearray(constant.data), dtype=torch.uint8) if constant.data else torch.empty(0)
        found[constant.name] = raw.view(dtypes.to_torch(constant.type.dtype)).reshape(constant.type.shape).clone()
    with torch.no_grad():
        for op in graph.ops:
            found[op.result] = _one(op, found)
    return found


def _one(op: Op, found: Mapping[str, Any]) -> Any:
    def python(operand: Operand) -> Any:
        if isinstance(operand, Value):
            value = found[operand.name]  # values of a Graph have no strides
            return value.contiguous() if isinstance(value, torch.Tensor) else value
        if isinstance(operand, tuple):
            return [python(o) for o in operand]
        return dtypes.to_torch(operand) if isinstance(operand, DType) else operand

    if op.kind == GETITEM:
        return python(op.operands[0])[op.operands[1]]
    namespace, name, overload = op.kind.split(".")
    function = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    result = function(*map(python, op.operands), **{key: python(v) for key, v in op.attrs})
    if isinstance(result, torch.Tensor) and isinstance(op.type, TensorType):
        return result.to(dtypes.to_torch(op.type.dtype))
    return result


class Captured(Exception):
    """Stops a compile as soon as its graph is known."""


def captured(function: Callable[..., Any], *inputs: torch.Tensor) -> Program:
    """The optimised program of a function, which is compiled no further."""
    programs: list[Program] = []

    def stop(graph: Any, *_: Any, **__: Any) -> Any:
        programs.append(optimise(graph, Options(verify="every"))[0])
        raise Captured

    torch._dynamo.reset()
    stopping = mock.patch.object(watch, "compile_graph", stop)
    with stopping, torch.no_grad(), suppress(torch._dynamo.exc.BackendCompilerFailed):
        torch.compile(function, backend="neuron", fullgraph=True)(*inputs)
    (program,) = programs
    return program


Difference = tuple[str, torch.Tensor, torch.Tensor]


def differences(program: Program, group: Group, values: Mapping[str, Any]) -> list[Difference]:
    """What the group's kernel gives and what PyTorch does, for each of its results."""
    kernel = kernel_of(program, group)
    made = run_kernel(kernel, *(values[name].contiguous() for name in kernel.inputs), verify=False)
    results = (made,) if isinstance(made, torch.Tensor) else made
    return [(name, result, values[name]) for name, result in zip(kernel.outputs, results, strict=True)]
