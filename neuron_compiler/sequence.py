"""Sequence: what one compiled graph does on a call, step by step.

Most graphs are one executable. Random draws come before it; ops that cannot be compiled run eagerly between
executables; results that belong to an argument are written back at the end. Every eager step is counted.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Any

import torch

from neuron_compiler.ledger import LEDGER, Entry


@dataclass(frozen=True, slots=True)
class Slot:
    """A place that holds a value during a call."""

    index: int


@dataclass(frozen=True, slots=True)
class Fresh:
    """A new tensor with unspecified values: for random ops that read only the shape of their operand."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def make(self) -> torch.Tensor:
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=self.device)


@dataclass(frozen=True)
class RunExecutable:
    """Run a compiled segment."""

    executable: Callable[[SequenceOf[torch.Tensor]], list[torch.Tensor]]
    reads: tuple[int, ...]
    writes: tuple[int, ...]

    def run(self, slots: list[Any]) -> None:
        results = self.executable([slots[i] for i in self.reads])
        for index, result in zip(self.writes, results, strict=True):
            slots[index] = result


@dataclass(frozen=True)
class RunEager:
    """Call one op through ATen. ``entry`` is what the ledger counts; None for plumbing such as ``getitem``."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    write: int
    entry: Entry | None

    @property
    def reads(self) -> tuple[int, ...]:
        found: list[int] = []
        _collect(self.args, found)
        _collect(tuple(v for _, v in self.kwargs), found)
        return tuple(found)

    def run(self, slots: list[Any]) -> None:
        args = _fill(self.args, slots)
        kwargs = {name: _fill(value, slots) for name, value in self.kwargs}
        if self.entry is not None:
            LEDGER.record(self.entry)
        slots[self.write] = self.function(*args, **kwargs)


@dataclass(frozen=True)
class Writeback:
    """Copy a computed value into the argument that the program changed in place."""

    target: int
    value: int

    @property
    def reads(self) -> tuple[int, ...]:
        return (self.target, self.value)

    def run(self, slots: list[Any]) -> None:
        slots[self.target].copy_(slots[self.value])


Step = RunExecutable | RunEager | Writeback


def _collect(value: Any, found: list[int]) -> None:
    if isinstance(value, Slot):
        found.append(value.index)
    elif isinstance(value, tuple | list):
        for item in value:
            _collect(item, found)


def _fill(value: Any, slots: list[Any]) -> Any:
    if isinstance(value, Slot):
        return slots[value.index]
    if isinstance(value, Fresh):
        return value.make()
    if isinstance(value, tuple | list):
        return type(value)(_fill(item, slots) for item in value) if type(value) in (tuple, list) else value
    return value


class Sequence:
    """Steps over slots: the first slots are the arguments, then the constants, then what steps write.

    Args:
        arguments: number of arguments of a call.
        constants: values that stay the same in all calls.
        steps: in order of execution.
        slots: number of slots in all.
        outputs: per result, a Slot, or the result itself (a number, None).
    """

    def __init__(
        self,
        arguments: int,
        constants: SequenceOf[Any],
        steps: SequenceOf[Step],
        slots: int,
        outputs: SequenceOf[Any],
    ) -> None:
        self.arguments = arguments
        self.constants = list(constants)
        self.steps = tuple(steps)
        self.slots = slots
        self.outputs = tuple(outputs)
        self._frees = self._last_reads()

    def _last_reads(self) -> tuple[tuple[int, ...], ...]:
        """Per step, the slots that nothing reads after it: freed early, so that activations do not pile up."""
        last: dict[int, int] = {}
        for position, step in enumerate(self.steps):
            for index in step.reads:
                last[index] = position
        kept = {o.index for o in self.outputs if isinstance(o, Slot)}
        frees: list[list[int]] = [[] for _ in self.steps]
        for index, position in last.items():
            if index not in kept:
                frees[position].append(index)
        return tuple(map(tuple, frees))

    def __call__(self, arguments: list[Any]) -> list[Any]:
        """Run; ``arguments`` is emptied, as PyTorch's boxed calling convention allows."""
        slots = [*arguments, *self.constants]
        arguments.clear()
        slots.extend([None] * (self.slots - len(slots)))
        for step, frees in zip(self.steps, self._frees, strict=True):
            step.run(slots)
            for index in frees:
                slots[index] = None
        return [slots[o.index] if isinstance(o, Slot) else o for o in self.outputs]


def eager_getitem(source: int, index: int, write: int) -> RunEager:
    """Take one element of an eager op's tuple result."""
    return RunEager(operator.getitem, (Slot(source), index), (), write, None)


def bernoulli_in_order_of_memory(
    x: torch.Tensor, p: float, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    """True with probability ``p``, drawn in the order in which the elements of ``x`` lie."""
    return torch.empty_like(x).bernoulli_(p, generator=generator)
