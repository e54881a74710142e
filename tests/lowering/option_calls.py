"""Calls that give an operator's options values of their own, made from calls that leave them alone.

In: calls of an overload. Out: for each option that none of them sets, a call that sets it, where ATen takes one of the
values tried. What a rule does with an option that no call sets, no test knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import torch

BASES = 6
"""Calls that are tried with an option before it is left alone."""
REFUSALS = (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError)

WITHOUT_VALUE = {
    "device": "where, not what",
    "layout": "strided is all there is",
    "pin_memory": "where, not what",
    "memory_format": "strides belong to the capture",
    "non_blocking": "when, not what",
    "requires_grad": "a matter of autograd",
    "generator": "draws are ATen's",
    "use_fast_accum": "a hint to the hardware",
    "implicit": "a hint to autograd",
    "unsafe": "leaves checks out",
    "check_errors": "raises, or leaves that to the caller",
    "stable": "a stable order is a right unstable one, too",
    "sorted": "a sorted order is a right unsorted one, too",
}
"""Parameters that may be ignored: no value depends on them."""

_VALUES: dict[str, tuple[Any, ...]] = {
    "ScalarType": (torch.float64, torch.float32, torch.int32),
    "number": (2, 0.5),
    "float": (0.5, 2.0),
    "int": (1, 0, 2, -1),
    "List[int]": ([0], [1], [0, 1]),
    "List[float]": ([0.5, 2.0], [0.5]),
}


def given(argument: Any, place: int, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The value that a call gives an argument of the schema: its default where it says nothing."""
    if not argument.kwarg_only and place < len(args):
        return args[place]
    return kwargs.get(argument.name, argument.default_value)


def is_set(argument: Any, place: int, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a call gives an option another value than its default."""
    value, default = given(argument, place, args, kwargs), argument.default_value
    if isinstance(value, torch.Tensor) or value is None or default is None:
        return value is not default
    if isinstance(value, list | tuple):
        return list(value) != list(default if isinstance(default, list | tuple) else [default] * len(value))
    return bool(value != default)


def _values(argument: Any) -> Iterator[Any]:
    """Values of the option's type to try, other than its default."""
    kind = str(argument.real_type)
    if kind.startswith("Optional["):
        kind = kind.removeprefix("Optional[").removesuffix("]")
    default = argument.default_value
    if kind == "bool":
        yield not default
    elif isinstance(default, list | tuple) and default and kind == "List[int]":
        yield [value + 1 for value in default]
    else:
        yield from (value for value in _VALUES.get(kind, ()) if value != default)


def options(overload: Any) -> list[tuple[int, Any]]:
    """Place and argument of what may be left out of a call."""
    every = enumerate(overload._schema.arguments)
    return [(i, a) for i, a in every if a.has_default_value() and a.name not in WITHOUT_VALUE]


def calls(overload: Any, made: Sequence[tuple[tuple[Any, ...], dict[str, Any]]]) -> Iterator[list[Any]]:
    """For each option that no call sets, the calls that do, in the order in which they are to be tried."""
    for place, argument in options(overload):
        if any(is_set(argument, place, *call) for call in made):
            continue
        yield [
            _with(argument, place, value, *call)
            for call, value in product(made[:BASES], _values(argument))
            if argument.kwarg_only or place <= len(call[0]) or argument.name not in call[1]
        ]


def _with(argument: Any, place: int, value: Any, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if not argument.kwarg_only and place < len(args):
        return (*args[:place], value, *args[place + 1 :]), kwargs
    return args, {**kwargs, argument.name: value}
