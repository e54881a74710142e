"""Runs one lowering rule next to the ATen kernel it stands for; used by the tests of the rules."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import torch
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_map

import neuron_compiler.lowering.ops  # noqa: F401  (fills the registry)
from neuron_compiler import dtypes
from neuron_compiler.ir.graph import Op, TensorType, TupleType, Type, Value
from neuron_compiler.opdef import REGISTRY, Work, work_of

HALVES = (torch.bfloat16, torch.float16)


def to_jax(tensor: torch.Tensor) -> np.ndarray:
    """The tensor as a numpy array of jax's element type."""
    dtype = dtypes.to_numpy(dtypes.from_torch(tensor.dtype))
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if plain.dtype in (torch.bfloat16, torch.float16) or plain.dtype.itemsize == 1:
        plain = plain.view(torch.int16 if plain.dtype.itemsize == 2 else torch.uint8)
    return plain.numpy().view(dtype).reshape(tuple(tensor.shape))


def to_torch(array: Any) -> torch.Tensor:
    """The jax array as a tensor."""
    data = np.array(array, order="C")
    dtype = dtypes.to_torch(dtypes.from_numpy(data.dtype))
    if dtype in (torch.bfloat16, torch.float16) or dtype.itemsize == 1:
        data = data.view(np.int16 if dtype.itemsize == 2 else np.uint8)
    return torch.from_numpy(data).view(dtype).reshape(data.shape)


def type_of(result: Any) -> Type:
    """IR type of what an ATen overload returned; None and undefined results have none."""
    if isinstance(result, torch.Tensor):
        return dtypes.type_of(result)
    return TupleType(tuple(None if r is None else dtypes.type_of(r) for r in result))


def recorded_type(overload: Any, *args: Any, **kwargs: Any) -> Type:
    """The result type that capture records: what the overload returns for fake tensors."""
    with FakeTensorMode() as mode:
        fake_args, fake_kwargs = tree_map(
            lambda x: mode.from_tensor(x) if isinstance(x, torch.Tensor) else x, (args, kwargs)
        )
        return type_of(overload(*fake_args, **fake_kwargs))


def lower(overload: Any, *args: Any, **kwargs: Any) -> Any:
    """The rule's result as tensors, traced and compiled as the emitter does; types are held to what was recorded."""
    record = REGISTRY[str(overload)]
    recorded = recorded_type(overload, *args, **kwargs)
    tensors: list[np.ndarray] = []

    def hold(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            tensors.append(to_jax(x))
            return Value(str(len(tensors) - 1))
        return dtypes.from_torch(x) if isinstance(x, torch.dtype) else x

    def place(x: Any, arrays: Any) -> Any:
        if isinstance(x, Value):
            return arrays[int(x.name)]
        return tuple(place(i, arrays) for i in x) if isinstance(x, list | tuple) else x

    held, held_kwargs = tree_map(hold, list(args)), tree_map(hold, kwargs)
    if record.wants_out:
        held_kwargs["out"] = recorded

    def run(*arrays: Any) -> Any:
        return record.lower(*place(held, arrays), **{k: place(v, arrays) for k, v in held_kwargs.items()})

    with jax.enable_x64(True):
        results = jax.jit(run)(*tensors)
    if isinstance(recorded, TensorType):
        found = to_torch(results)
        assert dtypes.type_of(found) == recorded, (dtypes.type_of(found), recorded)
        return found
    assert len(results) >= len(recorded.elements)
    tensors_found = tuple(None if r is None else to_torch(r) for r in results)
    for one, wanted in zip(tensors_found, recorded.elements, strict=False):
        assert wanted is None or (one is not None and dtypes.type_of(one) == wanted), (one, wanted)
    return tensors_found


def reference(overload: Any, *args: Any, **kwargs: Any) -> Any:
    """What the ATen kernel gives; for halves, what it gives in float32: ATen rounds some of its own sums twice."""

    def wide(x: Any) -> Any:
        return x.float() if isinstance(x, torch.Tensor) and x.dtype in HALVES else x

    def round_once(result: Any, element: TensorType | None) -> Any:
        return result if element is None else result.to(dtypes.to_torch(element.dtype))

    expected = overload(*tree_map(wide, args), **tree_map(wide, kwargs))
    recorded = recorded_type(overload, *args, **kwargs)
    if isinstance(recorded, TensorType):
        return round_once(expected, recorded)
    return tuple(round_once(r, e) for r, e in zip(expected, recorded.elements, strict=True))


def check(overload: Any, *args: Any, rtol: float | None = None, atol: float | None = None, **kwargs: Any) -> None:
    """Assert that the rule gives what the ATen kernel gives: types exactly, values to ``assert_close``."""
    expected = reference(overload, *args, **kwargs)
    found = lower(overload, *args, **kwargs)
    if isinstance(expected, torch.Tensor):
        expected, found = (expected,), (found,)
    for f, e in zip(found, expected, strict=False):
        if f is not None and e is not None:
            torch.testing.assert_close(f, e, rtol=rtol, atol=atol, equal_nan=True, check_stride=False)


def work(overload: Any, *args: Any, **kwargs: Any) -> Work:
    """The work that the op's record states for a call."""
    types: dict[str, Type] = {}

    def hold(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            types[f"a{len(types)}"] = dtypes.type_of(x)
            return Value(f"a{len(types) - 1}")
        if isinstance(x, list | tuple):
            return tuple(hold(i) for i in x)
        return dtypes.from_torch(x) if isinstance(x, torch.dtype) else x

    result = recorded_type(overload, *args, **kwargs)
    operands = tuple(hold(a) for a in args)
    attrs = tuple(sorted((k, hold(v)) for k, v in kwargs.items()))
    return work_of(Op("r", str(overload), operands, result, attrs), types)
