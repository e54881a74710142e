"""What a step or a signature holds, as JSON and back: numbers, types, devices, operators, slots.

Numbers, texts and lists stand for themselves; all else is a dictionary of one key, which names the type. Invariant: a
value that cannot be written so raises ``Inexpressible``, and one that cannot be read so raises ArtifactError.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch

from neuron_compiler.errors import ArtifactError
from neuron_compiler.sequence import Fresh, Slot, bernoulli_in_order_of_memory

LAYOUTS = {"strided": torch.strided}
MEMORY_FORMATS = {
    name: getattr(torch, name) for name in ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")
}
_OPERATOR = (
    "abs add and_ eq floordiv ge getitem gt invert le lshift lt mod mul ne neg not_ or_ pos pow rshift sub truediv xor"
)
_TORCH = "clone sym_float sym_int sym_ite sym_max sym_min sym_not sym_sum _sym_sqrt"
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{f"operator.{name}": getattr(operator, name) for name in _OPERATOR.split()},
    **{f"torch.{name}": getattr(torch, name) for name in _TORCH.split()},
    **{f"math.{name}": getattr(math, name) for name in ("ceil", "floor", "trunc", "sqrt")},
    "neuron_compiler.bernoulli_in_order_of_memory": bernoulli_in_order_of_memory,
}
"""Functions of Python that a step may call; operators of PyTorch go by their own names."""


class Inexpressible(Exception):
    """A value has no form in JSON; says which."""


def encode(value: Any) -> Any:
    """The value as JSON."""
    if value is None or isinstance(value, bool | str):
        return value
    if type(value) is int or (type(value) is float and math.isfinite(value)):
        return value
    if isinstance(value, float):
        return {"float": repr(float(value))}
    if isinstance(value, complex):
        return {"complex": [encode(value.real), encode(value.imag)]}
    if isinstance(value, torch.dtype):
        return {"dtype": dtype_name(value)}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, Slot):
        return {"slot": value.index}
    if isinstance(value, Fresh):
        size, stride = list(value.size), list(value.stride)
        return {"fresh": [size, stride, dtype_name(value.dtype), str(value.device)]}
    if type(value) is list:
        return [encode(item) for item in value]
    if type(value) is tuple:
        return {"tuple": [encode(item) for item in value]}
    for key, known in (("layout", LAYOUTS), ("memory_format", MEMORY_FORMATS)):
        for name, found in known.items():
            if value is found:
                return {key: name}
    if isinstance(value, torch._ops.OpOverload) or callable(value):
        return {"function": function_name(value)}
    raise Inexpressible(f"a {type(value).__name__} has no form in a file")


def decode(value: Any) -> Any:
    """The value that was written."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1:
        raise ArtifactError(f"the program holds a value that is none: {value!r}")
    ((kind, content),) = value.items()
    match kind:
        case "float":
            return float(content)
        case "complex":
            return complex(*(decode(part) for part in content))
        case "dtype":
            return dtype(content)
        case "device":
            return device(content)
        case "slot":
            return Slot(int(content))
        case "fresh":
            size, stride, type_, place = content
            return Fresh(tuple(size), tuple(stride), dtype(type_), device(place))
        case "tuple":
            return tuple(decode(item) for item in content)
        case "layout" if content in LAYOUTS:
            return LAYOUTS[content]
        case "memory_format" if content in MEMORY_FORMATS:
            return MEMORY_FORMATS[content]
        case "function":
            return function(content)
    raise ArtifactError(f"the program holds a value of an unknown kind: {value!r}")


def dtype_name(value: torch.dtype) -> str:
    return str(value).removeprefix("torch.")


def dtype(name: str) -> torch.dtype:
    """The type of a name; ArtifactError where this PyTorch has none."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ArtifactError(f"the program holds tensors of type {name!r}, which this PyTorch does not know")
    return found


def device(name: str) -> torch.device:
    """The device of a name; ArtifactError where this process has none such."""
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise ArtifactError(f"the program runs on device {name}, which this process does not have: {error}") from None


def function_name(called: Any) -> str:
    """``aten::add.Tensor`` for an operator, ``operator.getitem`` for a function that is known by name."""
    if isinstance(called, torch._ops.OpOverload):
        return f"{called.namespace}::{called._opname}.{called._overloadname}"
    for name, known in FUNCTIONS.items():
        if called is known:
            return name
    raise Inexpressible(f"{getattr(called, '__name__', called)} is no operator that a file can name")


def function(name: str) -> Callable[..., Any]:
    """The operator or function of a name; ArtifactError where it is not registered here."""
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    namespace, _, rest = name.partition("::")
    operator_name, _, overload = rest.partition(".")
    if namespace == "neuron_compiler":
        import neuron_compiler.lowering.ops  # noqa: F401  (registers it)
    try:
        found = getattr(getattr(getattr(torch.ops, namespace), operator_name), overload or "default")
    except (AttributeError, RuntimeError):
        found = None
    if not isinstance(found, torch._ops.OpOverload):
        raise ArtifactError(
            f"the program calls {name}, which is not registered in this process",
            when="load",
            hint="import the package that registers the operator before loading",
        )
    return found
