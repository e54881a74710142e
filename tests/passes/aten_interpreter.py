"""Runs a program with PyTorch's own kernels, op by op: the meaning that passes have to keep."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._decomp import core_aten_decompositions
from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_func

from neuron_compiler import dtypes
from neuron_compiler.capture.convert import to_op
from neuron_compiler.capture.symbols import Binding
from neuron_compiler.ir.graph import GETITEM, Constant, DType, Graph, Input, Op, Operand, TensorType, Value
from neuron_compiler.ir.plan import Program

aten = torch.ops.aten


def overload(kind: str) -> Callable[..., Any]:
    namespace, name, suffix = kind.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), suffix)


def resolve(operand: Operand, env: dict[str, Any]) -> Any:
    if isinstance(operand, Value):
        return env[operand.name]
    if isinstance(operand, tuple):
        return [resolve(item, env) for item in operand]
    return dtypes.to_torch(operand) if isinstance(operand, DType) else operand


def run_op(op: Op, env: dict[str, Any]) -> Any:
    arguments = [resolve(operand, env) for operand in op.operands]
    if op.kind == GETITEM:
        return arguments[0][arguments[1]]
    keywords = {name: resolve(value, env) for name, value in op.attrs}
    if op.kind in ("aten.view.default", "aten._unsafe_view.default"):  # a value has no strides to be in the way
        return aten.reshape.default(*arguments)
    return overload(op.kind)(*arguments, **keywords)


def constant_tensor(constant: Constant) -> torch.Tensor:
    dtype = dtypes.to_torch(constant.type.dtype)
    if not constant.data:
        return torch.empty(constant.type.shape, dtype=dtype)
    return torch.frombuffer(bytearray(constant.data), dtype=dtype).reshape(constant.type.shape)


def run(program: Program, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """The returned values for some inputs; every op's result is held to its recorded type."""
    graph = program.graph
    env: dict[str, Any] = {c.name: constant_tensor(c) for c in graph.constants}
    env.update((i.name, tensor) for i, tensor in zip(graph.inputs, inputs, strict=True))
    for op in graph.ops:
        env[op.result] = result = run_op(op, env)
        if isinstance(op.type, TensorType):
            assert dtypes.type_of(result) == op.type, f"{op} gave {dtypes.type_of(result)}"
    return [env[name] for name in graph.outputs]


def data_of(tensor: torch.Tensor) -> bytes:
    """Row-major bytes."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def evaluate(op: Op, operands: tuple[Constant, ...]) -> bytes | None:
    """What ``ConstantFold`` asks the lowering for."""
    return data_of(run_op(op, {c.name: constant_tensor(c) for c in operands}))


def same_bits(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> bool:
    """Equal types and bytes; any NaN is as good as another."""

    def clean(t: torch.Tensor) -> torch.Tensor:
        return torch.where(t.isnan(), torch.full_like(t, math.nan), t) if t.is_floating_point() else t

    return len(a) == len(b) and all(
        x.dtype == y.dtype and x.shape == y.shape and data_of(clean(x)) == data_of(clean(y))
        for x, y in zip(a, b, strict=True)
    )


def to_program(module: torch.fx.GraphModule) -> Program:
    """A functional ATen graph as a program."""
    inputs: list[Input] = []
    ops: list[Op] = []
    outputs: list[str] = []
    for node in module.graph.nodes:
        if node.op == "placeholder":
            inputs.append(Input(node.name, dtypes.type_of(node.meta["val"])))
        elif node.op == "call_function":
            op = to_op(node, Binding(), lambda n: n.name)
            assert op is not None
            ops.append(op)
        elif node.op == "output":
            outputs = [n.name for n in node.args[0] if n is not None]
    return Program(Graph("model", tuple(inputs), tuple(ops), tuple(outputs)))


def capture(model: Callable[..., Any], *inputs: torch.Tensor) -> list[tuple[Program, list[torch.Tensor]]]:
    """The programs that a model becomes (forward; backward too if it needs gradients), each with its real inputs."""
    found: list[tuple[Program, list[torch.Tensor]]] = []

    def compiler(module: torch.fx.GraphModule, _: Any) -> Any:
        program = to_program(module)

        def call(*arguments: torch.Tensor) -> Any:
            found.append((program, [a.detach().clone() for a in arguments]))
            return module(*arguments)

        return make_boxed_func(call)

    def backend(module: Any, examples: Any) -> Any:
        return aot_module_simplified(module, examples, fw_compiler=compiler, decompositions=core_aten_decompositions())

    torch._dynamo.reset()
    result = torch.compile(model, backend=backend, dynamic=False)(*inputs)
    if result.requires_grad:
        result.sum().backward()
    return found
