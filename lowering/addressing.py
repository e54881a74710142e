"""Where elements lie: index tensors to row numbers of a row-major array, with PyTorch's checks of their range.

XLA clamps an index that is out of range on reading and drops it on writing; ATen raises. So every rule that takes
indices from the user's tensors checks them here, and addresses memory by plain row numbers: XLA's CPU gathers and
scatters are fastest with one index per row, and slow where a window is strided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import jax.numpy as jnp
import numpy as np
from jax import lax

from neuron_compiler.lowering import checks
from neuron_compiler.lowering.numeric import Array

INT32_MAX = np.iinfo(np.int32).max


def in_range(index: Array, size: int, message: str, error: type[Exception] = IndexError, low: int = 0) -> None:
    """Require ``low <= index < size`` of every element of a run."""
    if index.size:
        checks.require((index >= low) & (index < size), message, error)


def from_end(index: Array, size: int) -> Array:
    """Indices that count from the end where negative, as indices from the start."""
    return jnp.where(index < 0, index + np.array(size, index.dtype), index)


@dataclass(frozen=True)
class Rows:
    """What index tensors select of an array, as numbers of rows of its memory.

    Attributes:
        numbers: one per selected row, of the shape that the indexed dimensions have in the result.
        window: shape of a row: the dimensions after the last indexed one.
    """

    numbers: Array
    window: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the selection."""
        return tuple(self.numbers.shape) + self.window

    def read(self, x: Array) -> Array:
        """The selection of an array, of shape ``shape``."""
        rows = x.reshape(-1, *self.window) if self.window else x.reshape(-1)
        if rows.size == 0 or self.numbers.size == 0:
            return jnp.zeros(self.shape, x.dtype)
        return rows.at[self.numbers].get(mode="promise_in_bounds", wrap_negative_indices=False)

    def write(self, x: Array, values: Array, how: str = "set") -> Array:
        """The array with ``values`` (of shape ``shape``) written, or combined in by ``how``: add, mul, min or max.

        Rows beyond the last are left out; of equal rows, later values come after earlier ones.
        """
        if x.size == 0 or self.numbers.size == 0 or values.size == 0:
            return x
        width = prod(self.window)
        rows, updates = x.reshape(-1, width), values.reshape(-1, width)
        numbers = self.numbers.reshape(-1)
        if width == 1:
            rows, updates = rows.reshape(-1), updates.reshape(-1)
        at = rows.at[numbers]
        combine = {"set": at.set, "add": at.add, "mul": at.multiply, "min": at.min, "max": at.max}[how]
        return combine(updates, mode="drop", wrap_negative_indices=False).reshape(x.shape)


def number_type(shape: Sequence[int]) -> type[np.signedinteger]:
    """Type for numbers of elements of an array: the narrow one halves what an index array costs."""
    return np.int32 if prod(shape) <= INT32_MAX else np.int64


def rows_of(shape: tuple[int, ...], indices: Sequence[Array | None]) -> Rows:
    """Rows that ``x[indices]`` selects of an array of this shape; a None stands for a whole dimension.

    Indices are in range and not negative. As in PyTorch, the broadcast shape of the indices takes the place of the
    indexed dimensions where these are neighbours, and the front otherwise.
    """
    given = [d for d, index in enumerate(indices) if index is not None]
    last = given[-1]
    kind = number_type(shape)
    selected = jnp.broadcast_shapes(*(indices[d].shape for d in given))
    neighbours = given == list(range(given[0], last + 1))
    before = [d for d in range(last + 1) if indices[d] is None and (neighbours and d < given[0])]
    after = [d for d in range(last + 1) if indices[d] is None and d not in before]
    result = (*(shape[d] for d in before), *selected, *(shape[d] for d in after))
    numbers = jnp.zeros(result, kind)
    for dim in range(last + 1):
        stride = np.array(prod(shape[dim + 1 : last + 1]), kind)
        index = indices[dim]
        if index is None:
            place = before.index(dim) if dim in before else len(before) + len(selected) + after.index(dim)
            coordinate = lax.broadcasted_iota(kind, result, place)
        else:
            trailing = index.astype(kind).reshape(*index.shape, *(1,) * len(after))
            coordinate = jnp.broadcast_to(trailing, result)
        numbers = numbers + coordinate * stride
    return Rows(numbers, tuple(shape[last + 1 :]))


def elements_of(shape: tuple[int, ...], axis: int, index: Array) -> Rows:
    """Single elements at ``index`` along one axis and at their own place along the others: gather, scatter."""
    kind = number_type(shape)
    numbers = jnp.zeros(index.shape, kind)
    for dim in range(len(shape)):
        own = index.astype(kind) if dim == axis else lax.broadcasted_iota(kind, index.shape, dim)
        numbers = numbers + own * np.array(prod(shape[dim + 1 :]), kind)
    return Rows(numbers, ())


def slices_of(shape: tuple[int, ...], axis: int, index: Array) -> Rows:
    """Whole slices at the places of a one-dimensional ``index`` along one axis: index_select, index_add."""
    return rows_of(shape, (*(None,) * axis, index))
