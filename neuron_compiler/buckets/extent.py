"""Extents under two sizes: what a dimension is at the true size and at its bucket, and where the true elements lie.

A dimension is a list of factors, outermost first: [3, s] merged into one dimension of 3 * s has the factors 3 and s;
its true elements are the first s of each of the 3 runs. Invariant of every value of a program that was made at the
bucket's sizes: its elements at true positions are those of the program made at the true sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TypeAlias

from neuron_compiler.ir.graph import DType


@dataclass(frozen=True, slots=True)
class Factor:
    """Extent of one factor at the true size and at the bucket.

    Attributes:
        repeats: whether each element of the padding equals the last true one: then what is computed of the padding is
            what is computed of a true element, and cannot raise where that does not.
    """

    true: int
    bucket: int
    repeats: bool = field(default=False, compare=False)

    @property
    def is_padded(self) -> bool:
        return self.true != self.bucket


Dim: TypeAlias = tuple[Factor, ...]


def is_padded(dim: Dim) -> bool:
    return any(f.is_padded for f in dim)


def repeats(dim: Dim) -> bool:
    """Whether all padding of the dimension repeats the last true element."""
    return all(f.repeats for f in dim if f.is_padded)


def without_repeats(dim: Dim) -> Dim:
    return tuple(replace(f, repeats=False) for f in dim)


def extents(dim: Dim) -> tuple[int, int]:
    """Elements of the dimension at the true size and at the bucket."""
    return prod(f.true for f in dim), prod(f.bucket for f in dim)


def canonical(dim: Dim) -> Dim:
    """The same positions by the fewest factors: an outer one and an inner one that is not padded are one."""
    found: list[Factor] = []
    for factor in dim:
        if factor.true == factor.bucket == 1:
            continue
        if found and not factor.is_padded:
            found[-1] = Factor(found[-1].true * factor.true, found[-1].bucket * factor.bucket)
        else:
            found.append(factor)
    return tuple(found)


def alike(a: Dim, b: Dim) -> bool:
    """Whether true elements lie at the same positions of both."""
    return canonical(a) == canonical(b)


def plain(true: int, bucket: int, repeats: bool = False) -> Dim:
    """A dimension whose padding, if any, comes after all true elements."""
    return (Factor(true, bucket, repeats and true != bucket),)


def regrouped(dims: Iterable[Dim], true: Sequence[int], bucket: Sequence[int]) -> tuple[Dim, ...] | None:
    """The dimensions of a reshape's result; None where some padding would lie within a factor that is not padded so."""
    rest = [f for dim in dims for f in dim if not f.true == f.bucket == 1]
    found: list[Dim] = []
    for want in zip(true, bucket, strict=True):
        taken: list[Factor] = []
        while (have := extents(tuple(taken))) != want:
            if not rest:
                return None
            factor = rest.pop(0)
            if not _divides(tuple(h * f for h, f in zip(have, (factor.true, factor.bucket), strict=True)), want):
                outer = _quotient(want, have)
                inner = _quotient((factor.true, factor.bucket), outer) if outer else None
                if outer is None or inner is None or inner[0] != inner[1]:
                    return None
                rest.insert(0, Factor(*inner))
                # The last row of the outer part is a whole row of the inner one, the padding repeats single elements.
                factor = Factor(*outer)
            taken.append(factor)
        found.append(tuple(taken) or (Factor(1, 1),))
    return tuple(found) if not rest else None


def _divides(part: tuple[int, ...], whole: tuple[int, int]) -> bool:
    return all(p and w % p == 0 for p, w in zip(part, whole, strict=True))


def _quotient(whole: tuple[int, int], part: tuple[int, int]) -> tuple[int, int] | None:
    if not _divides(part, whole):
        return None
    return whole[0] // part[0], whole[1] // part[1]


@dataclass(frozen=True)
class Tensor:
    """A value of the two programs: the program's name for it, its element type and its dimensions."""

    name: str
    dtype: DType
    dims: tuple[Dim, ...]

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def true(self) -> tuple[int, ...]:
        return tuple(extents(d)[0] for d in self.dims)

    @property
    def bucket(self) -> tuple[int, ...]:
        return tuple(extents(d)[1] for d in self.dims)

    @property
    def is_padded(self) -> bool:
        return any(map(is_padded, self.dims))

    @property
    def padded(self) -> tuple[int, ...]:
        """Numbers of the padded dimensions."""
        return tuple(d for d, dim in enumerate(self.dims) if is_padded(dim))
