"""Symbolic sizes: from a call's arguments to the numbers that one concrete Graph is made for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from neuron_compiler.errors import CaptureError


@dataclass(frozen=True)
class Source:
    """Where a symbol's number is found: an argument itself, or one of its sizes or strides.

    What is found there is ``scale * symbol + shift``.
    """

    symbol: sympy.Symbol
    argument: int
    dimension: int | None = None
    of_stride: bool = False
    scale: int = 1
    shift: int = 0

    def read(self, arguments: Sequence[Any]) -> int | float:
        value = arguments[self.argument]
        if self.dimension is not None:
            value = value.stride(self.dimension) if self.of_stride else value.size(self.dimension)
        if self.scale == 1 and self.shift == 0:
            return value  # type: ignore[no-any-return]
        return (value - self.shift) // self.scale  # type: ignore[no-any-return]


def sources(examples: Sequence[Any]) -> tuple[Source, ...]:
    """The first place among the (fake) arguments where each symbol can be read."""
    found: dict[sympy.Symbol, Source] = {}
    derived: dict[sympy.Symbol, Source] = {}

    def note(value: Any, *where: Any) -> None:
        if not isinstance(value, torch.SymInt | torch.SymFloat):
            return
        if isinstance(expr := value.node.expr, sympy.Symbol):
            found.setdefault(expr, Source(expr, *where))
        elif (line := _linear(expr)) is not None:
            symbol, scale, shift = line
            derived.setdefault(symbol, Source(symbol, *where, scale=scale, shift=shift))

    for index, example in enumerate(examples):
        note(example, index)
    for index, example in enumerate(examples):
        if isinstance(example, torch.Tensor):
            for d, size in enumerate(example.shape):
                note(size, index, d)
            for d, stride in enumerate(example.stride()):
                note(stride, index, d, True)
    return (*found.values(), *(source for symbol, source in derived.items() if symbol not in found))


def _linear(expr: sympy.Expr) -> tuple[sympy.Symbol, int, int] | None:
    """Symbol, scale and shift of an expression that is linear in its one symbol, with whole numbers."""
    if len(expr.free_symbols) != 1:
        return None
    symbol = next(iter(expr.free_symbols))
    scale, rest = expr.coeff(symbol, 1), expr.coeff(symbol, 0)
    if not (scale.is_Integer and rest.is_Integer) or scale == 0 or sympy.expand(expr - scale * symbol - rest) != 0:
        return None
    return symbol, int(scale), int(rest)


def numbers(found: Sequence[Source], key: Sequence[int | float]) -> dict[sympy.Symbol, int | float]:
    """The numbers of the symbols, from those read at their sources."""
    return {source.symbol: number for source, number in zip(found, key, strict=True)}


@dataclass(frozen=True)
class Binding:
    """Numbers of a graph's symbols. Expressions without an unbound symbol become plain Python numbers."""

    numbers: Mapping[sympy.Symbol, int | float] = field(default_factory=dict)
    _cache: dict[sympy.Expr, int | float | bool | None] = field(default_factory=dict, compare=False, repr=False)

    def try_number(self, value: Any) -> int | float | bool | None:
        """The number of a plain or symbolic scalar; None where it depends on data."""
        if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return value  # type: ignore[no-any-return]
        expr = value.node.expr
        if expr not in self._cache:
            self._cache[expr] = self._evaluate(expr, value)
        return self._cache[expr]

    def _evaluate(self, expr: Any, value: Any) -> int | float | bool | None:
        bound = expr.xreplace({s: sympy.sympify(n) for s, n in self.numbers.items()}) if self.numbers else expr
        if bound.free_symbols:
            return None
        if isinstance(value, torch.SymInt):
            return int(bound)
        return bool(bound) if isinstance(value, torch.SymBool) else float(bound)

    def number(self, value: Any) -> int | float | bool:
        """Like ``try_number``, but a value that depends on data is an error."""
        found = self.try_number(value)
        if found is None:
            raise CaptureError(f"the size {value} depends on data", when="capture")
        return found

    def sizes(self, values: Sequence[Any]) -> tuple[int, ...] | None:
        """Numbers of sizes or strides; None where one depends on data."""
        found = []
        for value in values:
            number = value if type(value) is int else self.try_number(value)
            if number is None:
                return None
            found.append(int(number))
        return tuple(found)
