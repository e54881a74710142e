"""Where an element of a value is read: an index for each of its dimensions, affine in the atoms of an iteration space.

An atom is one counter of the space. A view between two values changes the indices and moves nothing, so that a kernel
reads through it. A reshape may need an atom cut in two (64 columns as 4 heads of 16); concatenation needs a range of
one cut where a part ends. Both are raised to whoever chose the atoms, who chooses finer ones and begins again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from neuron_compiler.ir.graph import Op, TensorType, Value
from neuron_compiler.ir.kernel import Affine, affine, row_major
from neuron_compiler.ir.space import RESHAPES, base_name, is_permutation, permutation

Index = tuple[Affine, ...]
"""One place, for each dimension of a value."""

Extents = Mapping[str, int]
"""How far each atom counts."""


class Split(Exception):
    """An atom is to become two: an outer one, and an inner one of ``inner`` places."""

    def __init__(self, atom: str, inner: int) -> None:
        super().__init__(atom, inner)
        self.atom, self.inner = atom, inner


class Cut(Exception):
    """The range of an atom is to end at ``at``, and the rest to be another space."""

    def __init__(self, atom: str, at: int) -> None:
        super().__init__(atom, at)
        self.atom, self.at = atom, at


class Stored(Exception):
    """A value is to lie in HBM before it is read: written by loops of its own."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass(frozen=True)
class Padding:
    """A copy of a value with a border: ``before`` and ``after`` each dimension, of one number."""

    source: str
    before: tuple[int, ...]
    after: tuple[int, ...]
    number: float

    @property
    def name(self) -> str:
        return f"{self.source}.padded"


class Padded(Exception):
    """A value is to lie in HBM with a border."""

    def __init__(self, padding: Padding) -> None:
        super().__init__(padding.name)
        self.padding = padding


class NoKernel(Exception):
    """What is asked for has no kernel; the text says why."""


def identity(names: tuple[str, ...]) -> Index:
    """The index of a value whose dimensions are these atoms."""
    return tuple(Affine(0, ((name, 1),)) for name in names)


def flat(index: Index, shape: tuple[int, ...]) -> Affine:
    """The place in row-major order."""
    total = affine(0)
    for place, stride in zip(index, row_major(shape), strict=True):
        total = total + place * stride
    return total


def unflat(place: Affine, shape: tuple[int, ...], extents: Extents) -> Index:
    """The index of a place in row-major order.

    Raises:
        Split: an atom runs over the end of a dimension.
        NoKernel: no choice of atoms gives one index a dimension.
    """
    strides = row_major(shape)
    found = [affine(0)] * len(shape)
    for axis, stride in enumerate(strides):
        constant = place.constant // stride % shape[axis] if shape[axis] else 0
        found[axis] = affine(constant)
    wide = [axis for axis, extent in enumerate(shape) if extent > 1]
    for atom, factor in place.terms:
        axis = next((a for a in wide if strides[a] <= factor), None)
        if factor < 0 or axis is None or factor % strides[axis]:
            raise NoKernel(f"steps of {factor} do not fit a reshape to {list(shape)}")
        step = factor // strides[axis]
        if step * (extents[atom] - 1) >= shape[axis]:
            if shape[axis] % step or shape[axis] == step or extents[atom] % (shape[axis] // step):
                raise NoKernel(f"{extents[atom]} steps of {factor} do not fit a reshape to {list(shape)}")
            raise Split(atom, shape[axis] // step)
        found[axis] = found[axis] + Affine(0, ((atom, step),))
    for axis, index in enumerate(found):
        if _reach(index, extents) >= max(shape[axis], 1):
            raise NoKernel(f"an offset runs over the end of a dimension of {list(shape)}")
    return tuple(found)


def is_view(op: Op) -> bool:
    """Whether ``through`` knows the op."""
    return is_permutation(op) or base_name(op.kind) in (*RESHAPES, "expand", "slice", "select", "flip")


def through(op: Op, index: Index, source: TensorType, extents: Extents) -> Index:
    """The index in the source of a view of what lies at ``index`` in its result."""
    name, result = base_name(op.kind), op.type
    if not isinstance(result, TensorType):
        raise NoKernel(f"{op.kind} gives several results")
    if name in RESHAPES:
        return unflat(flat(index, result.shape), source.shape, extents)
    if is_permutation(op):
        order = permutation(op, source.rank)
        return tuple(index[order.index(axis)] for axis in range(source.rank))
    if name == "expand":
        return broadcast(index, source.shape)
    dimension = op.operand(1)
    if name == "flip" and isinstance(dimension, tuple):
        turned = {d % source.rank for d in dimension if isinstance(d, int)}
        return tuple(
            extent - 1 - i if a in turned else i for a, (i, extent) in enumerate(zip(index, source.shape, strict=True))
        )
    if not isinstance(dimension, int):
        raise NoKernel(f"{op.kind} names no dimension")
    axis = dimension % source.rank
    if name == "select" and isinstance(place := op.operand(2), int):
        return (*index[:axis], affine(place % source.shape[axis]), *index[axis:])
    if name == "slice":
        start, step = op.operand(2, 0) or 0, op.operand(4, 1)
        if isinstance(start, int) and isinstance(step, int):
            first = min(max(start + source.shape[axis] if start < 0 else start, 0), source.shape[axis])
            return (*index[:axis], index[axis] * step + first, *index[axis + 1 :])
    raise NoKernel(f"{op.kind} is not read through")


def broadcast(index: Index, shape: tuple[int, ...]) -> Index:
    """The index of an operand of this shape that is broadcast to a result."""
    own = index[len(index) - len(shape) :]
    return tuple(affine(0) if extent == 1 else place for place, extent in zip(own, shape, strict=True))


def part_of(op: Op, number: int, index: Index, source: TensorType) -> Index:
    """The index in what ``split`` or its kin cut, of what lies at ``index`` in one of its parts."""
    sizes, axis = op.operand(1), op.operand(2, 0)
    if not isinstance(axis, int):
        raise NoKernel(f"{op.kind} names no dimension")
    axis %= source.rank
    if isinstance(sizes, int):
        first = sizes * number
    elif isinstance(sizes, tuple):
        first = sum(size for size in sizes[:number] if isinstance(size, int))
    else:
        raise NoKernel(f"{op.kind} names no sizes")
    return (*index[:axis], index[axis] + first, *index[axis + 1 :])


def joined(op: Op, index: Index, parts: list[TensorType], extents: Extents) -> tuple[int, Index]:
    """Which operand of ``cat`` or ``stack`` lies at ``index`` of its result, and where in it.

    Raises:
        Cut: that depends on an atom.
    """
    axis = op.operand(1, op.attr("dim", 0))
    if not isinstance(axis, int):
        raise NoKernel(f"{op.kind} names no dimension")
    axis %= len(index)
    stacked = base_name(op.kind) == "stack"
    place, end = index[axis], 0
    low, high = place.constant, _reach(place, extents)
    for number, part in enumerate(parts):
        begin, end = end, end + (1 if stacked else part.shape[axis] if part.rank == len(index) else 0)
        if low >= end:
            continue
        if high < end:
            rest = index[axis + 1 :]
            return number, (*index[:axis], *rest) if stacked else (*index[:axis], place - begin, *rest)
        atom, factor = place.terms[-1] if len(place.terms) == 1 else ("", 0)
        if factor < 1 or (end - low) % factor:
            raise NoKernel(f"the parts of {op.kind} are not read in whole ranges")
        raise Cut(atom, (end - low) // factor)
    raise NoKernel(f"{op.kind} has no element there")


def tensors(op: Op) -> list[str]:
    """Names of the tensors in the list that an op takes first."""
    listed = op.operand(0)
    return [v.name for v in listed if isinstance(v, Value)] if isinstance(listed, tuple) else []


def _reach(index: Affine, extents: Extents) -> int:
    """The largest number of an index without negative multiples."""
    return index.constant + sum(factor * (extents[atom] - 1) for atom, factor in index.terms)
