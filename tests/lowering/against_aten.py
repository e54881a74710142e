"""Holds lowering rules to the ATen kernels they stand for, on calls that a test makes; many calls compile as one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

import neuron_compiler.lowering.ops  # noqa: F401  (fills the registry)
from neuron_compiler import dtypes
from neuron_compiler.ir.graph import Op, Operand, TensorType, TupleType, Type, Value
from neuron_compiler.lowering import emit
from neuron_compiler.opdef import Work, work_of

FP8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz)
HALVES = (torch.bfloat16, torch.float16)
COMPILER_OPTIONS = {"xla_allow_excess_precision": False}
"""As programs are compiled: what is rounded on the way stays rounded."""


def to_array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The tensor as a row-major numpy array of jax's element type."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if tensor.dtype in HALVES or tensor.dtype.itemsize == 1:
        plain = plain.view(torch.int16 if tensor.dtype.itemsize == 2 else torch.uint8)
    return plain.numpy().view(dtypes.to_numpy(dtypes.from_torch(tensor.dtype))).reshape(tuple(tensor.shape))


def to_tensor(array: Any) -> torch.Tensor:
    data = np.array(array, order="C")
    dtype = dtypes.to_torch(dtypes.from_numpy(data.dtype))
    if dtype in HALVES or dtype.itemsize == 1:
        data = data.view(np.int16 if dtype.itemsize == 2 else np.uint8)
    return torch.from_numpy(data).view(dtype).reshape(data.shape)


def type_of(result: Any) -> Type:
    """IR type of what an overload returned; what it left undefined has none."""
    if isinstance(result, torch.Tensor):
        return dtypes.type_of(result)
    return TupleType(tuple(None if r is None else dtypes.type_of(r) for r in result))


@dataclass(frozen=True)
class Call:
    """One call of an overload."""

    overload: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def recorded(self) -> Type:
        """The result type that the capture records: what the overload returns for fake tensors."""
        with FakeTensorMode() as mode:
            args, kwargs = tree_map(
                lambda x: mode.from_tensor(x) if isinstance(x, torch.Tensor) else x, (self.args, self.kwargs)
            )
            return type_of(self.overload(*args, **kwargs))

    def as_op(self) -> tuple[Op, dict[str, torch.Tensor]]:
        """The call in the IR, and the tensors it reads by name."""
        tensors: dict[str, torch.Tensor] = {}

        def operand(x: Any) -> Operand:
            if isinstance(x, torch.Tensor):
                tensors[f"x{len(tensors)}"] = x
                return Value(f"x{len(tensors) - 1}")
            if isinstance(x, list | tuple):
                return tuple(map(operand, x))
            return dtypes.from_torch(x) if isinstance(x, torch.dtype) else x

        operands = tuple(map(operand, self.args))
        attrs = tuple(sorted((name, operand(value)) for name, value in self.kwargs.items()))
        return Op("result", str(self.overload), operands, self.recorded(), attrs), tensors

    def expected(self, widened: bool = False) -> list[torch.Tensor | None]:
        """What ATen gives; ``widened``, what it gives in float32 for halves, since it rounds some sums twice."""

        def wide(x: Any) -> Any:
            return x.float() if widened and isinstance(x, torch.Tensor) and x.dtype in HALVES else x

        result = self.overload(*tree_map(wide, self.args), **tree_map(wide, self.kwargs))
        recorded = self.recorded()
        elements = (recorded,) if isinstance(recorded, TensorType) else recorded.elements
        results = (result,) if isinstance(result, torch.Tensor) else result
        return [
            None if r is None or e is None else r.to(dtypes.to_torch(e.dtype))
            for r, e in zip(results, elements, strict=True)
        ]


def call(overload: Any, *args: Any, **kwargs: Any) -> Call:
    return Call(overload, args, kwargs)


def evaluate(*calls: Call) -> list[list[torch.Tensor | None]]:
    """The rules' results, compiled together; the emitter holds their types to the recorded ones."""
    ops = [one.as_op() for one in calls]

    def run(environments: list[dict[str, Any]]) -> list[Any]:
        return [emit.apply(op, env) for (op, _), env in zip(ops, environments, strict=True)]

    with emit.tracing_scope():
        compiled = jax.jit(run, compiler_options=COMPILER_OPTIONS)
        results = compiled([{name: to_array(t) for name, t in tensors.items()} for _, tensors in ops])
    return [
        [None if r is None else to_tensor(r) for r in (result if isinstance(result, list | tuple) else (result,))]
        for result in results
    ]


def lower(overload: Any, *args: Any, **kwargs: Any) -> Any:
    """One rule's result: a tensor, or a list of tensors and None."""
    (results,) = evaluate(call(overload, *args, **kwargs))
    return results[0] if len(results) == 1 else results


def check(*calls: Call, rtol: float | None = None, atol: float | None = None) -> None:
    """Assert that the rules give what the ATen kernels give: types exactly, values to ``assert_close``.

    Halves may be as ATen's own, or as exact as it is in float32.
    """

    def compare(one: Call, found: list[torch.Tensor | None], expected: list[torch.Tensor | None]) -> None:
        for index, (f, e) in enumerate(zip(found, expected, strict=False)):
            if f is not None and e is not None:
                if e.dtype in FP8 and f.dtype is e.dtype:  # assert_close takes a tolerance for wider floats only
                    f, e = f.float(), e.float()
                torch.testing.assert_close(
                    f,
                    e,
                    rtol=rtol,
                    atol=atol,
                    equal_nan=True,
                    check_stride=False,
                    msg=lambda text, i=index: f"{one.overload} result {i} of {_described(one.args)}\n{text}",
                )

    for one, found in zip(calls, evaluate(*calls), strict=True):
        try:
            compare(one, found, one.expected(widened=True))
        except AssertionError:
            if not any(isinstance(x, torch.Tensor) and x.dtype in HALVES for x in tree_leaves((one.args, one.kwargs))):
                raise
            compare(one, found, one.expected())


def _described(args: tuple[Any, ...]) -> str:
    return str([f"{x.dtype}{list(x.shape)}" if isinstance(x, torch.Tensor) else x for x in args])


def work(overload: Any, *args: Any, **kwargs: Any) -> Work:
    """The work that the op's record states for a call."""
    op, tensors = call(overload, *args, **kwargs).as_op()
    return work_of(op, {name: dtypes.type_of(t) for name, t in tensors.items()})
