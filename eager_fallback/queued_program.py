"""What a queue held: operators on the memory of the device, as a program that can be run or traced.

In: the text that the library writes. Out: a ``QueuedProgram``; called with the tensors that the program is given, it
runs operator by operator and returns those that somebody still holds. Invariant: the same calls in the same order as
the user's, so that running it is what would have been run at once.

The text is JSON: ``device`` is an index, ``default`` PyTorch's default type by its number, ``inputs`` are memory that
was there, ``live`` the memory that is returned, and an operator is its name, its arguments and its results. Memory is a
number; ``[place, dtype, sizes, strides]`` is a tensor that covers it, ``{"t": [place, dtype, sizes, strides, offset]}``
a view of it and ``{"w": number}`` a number of the user's.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from neuron_compiler.eager_fallback import strided_view
from neuron_compiler.errors import DeviceError

DTYPES: dict[int, torch.dtype] = {
    0: torch.uint8,
    1: torch.int8,
    2: torch.int16,
    3: torch.int32,
    4: torch.int64,
    5: torch.float16,
    6: torch.float32,
    7: torch.float64,
    9: torch.complex64,
    10: torch.complex128,
    11: torch.bool,
    15: torch.bfloat16,
    23: torch.float8_e5m2,
    24: torch.float8_e4m3fn,
    27: torch.uint16,
    28: torch.uint32,
    29: torch.uint64,
}
"""PyTorch's types by their numbers in c10/core/ScalarType.h, which schemas and libraries are bound to."""

LAYOUTS = {0: torch.strided}
MEMORY_FORMATS = {
    0: torch.contiguous_format,
    1: torch.preserve_format,
    2: torch.channels_last,
    3: torch.channels_last_3d,
}
NAMED_TYPES: dict[str, dict[int, Any]] = {"ScalarType": DTYPES, "Layout": LAYOUTS, "MemoryFormat": MEMORY_FORMATS}
"""Arguments that a call carries as numbers, by the type that the schema gives them."""

EMPTY = "empty"
"""Not an operator: memory whose old values the program does not read."""


class View(NamedTuple):
    """A view of the memory at a place, in elements."""

    place: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class Whole(NamedTuple):
    """A tensor that covers the memory at a place."""

    place: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """One operator: its overload, arguments with a View for each tensor, and where its results go."""

    overload: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    results: tuple[Whole | None, ...]


@dataclass(frozen=True)
class QueuedProgram:
    """Operators in order.

    Attributes:
        device: index of the device that all of it is on.
        default_dtype: PyTorch's default type when the operators were called.
        inputs: memory that the program is given, by its place; one tensor each.
        calls: what is run.
        live: places of the memory that is returned.
    """

    device: int
    default_dtype: torch.dtype
    inputs: tuple[Whole, ...]
    calls: tuple[Call, ...]
    live: tuple[int, ...]

    def __call__(self, *given: torch.Tensor) -> list[torch.Tensor]:
        """Run on one tensor per input, written in place where the program does so; returns one per ``live``."""
        held = self._held(given)
        for call in self.calls:
            self._run(call, held)
        return [held[place] for place in self.live]

    def as_far_as_possible(self, given: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor | None], Exception | None]:
        """Run all operators but those that raise and those that need what these would give; returns one tensor per
        ``live``, None where there is none, and the first error.
        """
        held, first = self._held(given), None
        for call in self.calls:
            if first is not None and not held.keys() >= set(_places((call.args, call.kwargs))):
                continue
            try:
                self._run(call, held)
            except Exception as error:
                first = first or error
        return [held.get(place) for place in self.live], first

    def _held(self, given: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
        return {whole.place: tensor for whole, tensor in zip(self.inputs, given, strict=True)}

    def _run(self, call: Call, held: dict[int, torch.Tensor]) -> None:
        if call.overload is torch.empty_strided:
            device = torch.device("neuron", self.device)
            for whole in filter(None, call.results):
                held[whole.place] = torch.empty_strided(whole.size, whole.stride, dtype=whole.dtype, device=device)
            return
        made = call.overload(
            *(_tensors(argument, held) for argument in call.args),
            **{name: _tensors(argument, held) for name, argument in call.kwargs},
        )
        made = made if isinstance(made, tuple | list) else (made,)
        for whole, result in zip(call.results, made, strict=True):
            if whole is not None:
                held[whole.place] = result


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Context in which PyTorch's default type is another, for all threads: it is not asked for one thread alone."""
    before = torch.get_default_dtype()
    if dtype == before:
        yield
        return
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _places(argument: Any) -> Iterator[int]:
    if isinstance(argument, View):
        yield argument.place
    elif isinstance(argument, list | tuple):
        for item in argument:
            yield from _places(item)


def _tensors(argument: Any, held: dict[int, torch.Tensor]) -> Any:
    if isinstance(argument, View):
        return strided_view.view(held[argument.place], argument.size, argument.stride, argument.offset)
    if isinstance(argument, list):
        return [_tensors(item, held) for item in argument]
    return argument


def parse(text: str) -> QueuedProgram:
    """The program of a queue's text; raises DeviceError where an operator is not there any more."""
    found = json.loads(text)
    return QueuedProgram(
        found["device"],
        DTYPES[found["default"]],
        tuple(_whole(item) for item in found["inputs"]),
        tuple(_call(*item) for item in found["ops"]),
        tuple(found["live"]),
    )


def _whole(item: Sequence[Any]) -> Whole:
    place, dtype, size, stride = item
    return Whole(place, DTYPES[dtype], tuple(size), tuple(stride))


def _call(name: str, arguments: Sequence[Any], results: Sequence[Any]) -> Call:
    wholes = tuple(None if item is None else _whole(item) for item in results)
    if name == EMPTY:
        return Call(torch.empty_strided, (), (), wholes)
    overload = overload_of(name)
    args, kwargs = [], []
    for argument, (keyword, kind) in zip(arguments, _parameters(overload), strict=True):
        value = _argument(argument, NAMED_TYPES.get(kind))
        if keyword is None:
            args.append(value)
        else:
            kwargs.append((keyword, value))
    # An in-place operator returns its argument, and writes it too: only new memory has a place among the results.
    return Call(overload, tuple(args), tuple(kwargs), wholes)


def _argument(value: Any, named: dict[int, Any] | None) -> Any:
    if isinstance(value, dict):
        if "w" in value:
            return value["w"]
        place, _, size, stride, offset = value["t"]
        return View(place, tuple(size), tuple(stride), offset)
    if isinstance(value, list):
        return [_argument(item, named) for item in value]
    return named[value] if named is not None and value is not None else value


@functools.cache
def overload_of(name: str) -> Callable[..., Any]:
    """PyTorch's overload of a name as the dispatcher has it, ``aten::add.Tensor``."""
    qualified, _, overload = name.partition(".")
    namespace, _, operator = qualified.partition("::")
    try:
        found: Callable[..., Any] = getattr(getattr(getattr(torch.ops, namespace), operator), overload or "default")
    except AttributeError as error:
        raise DeviceError(f"{name} was queued and is not registered now", when="running queued operators") from error
    return found


def _type_name(kind: Any) -> str:
    text = str(kind)
    return text[len("Optional[") : -1] if text.startswith("Optional[") else text


@functools.cache
def _parameters(overload: Any) -> tuple[tuple[str | None, str], ...]:
    """Of each argument: its keyword, None where it is given by position, and the name of its type."""
    return tuple(
        (argument.name if argument.kwarg_only else None, _type_name(argument.real_type))
        for argument in overload._schema.arguments
    )
