"""Rows that index tensors select: shapes and numbers as those of indexing itself."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest
import torch

from neuron_compiler.lowering.addressing import Rows, rows_of

SHAPE = (3, 4, 2, 5)


def _index(size: int, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return torch.randint(0, size, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("given", [g for n in (1, 2, 3, 4) for g in itertools.combinations(range(4), n)])
def test_selection_is_that_of_indexing(given: tuple[int, ...]) -> None:
    x = torch.arange(120).reshape(SHAPE)
    shapes = itertools.cycle([(2, 3), (3,), (2, 1)])
    indices = [_index(SHAPE[d], next(shapes), d) if d in given else None for d in range(given[-1] + 1)]
    wanted = torch.ops.aten.index(x, indices)
    with jax.enable_x64(True):
        rows = rows_of(SHAPE, [None if i is None else jax.numpy.asarray(i.numpy()) for i in indices])
        assert rows.shape == tuple(wanted.shape)
        assert rows.window == SHAPE[given[-1] + 1 :]
        assert np.array_equal(rows.read(jax.numpy.asarray(x.numpy())), wanted.numpy())


def test_later_of_equal_rows_stays_and_rows_beyond_the_last_are_left_out() -> None:
    with jax.enable_x64(True):
        rows = Rows(jax.numpy.asarray([1, 1, 4, 9, 1]), (2,))
        values = jax.numpy.asarray(np.arange(10.0).reshape(5, 2))
        written = rows.write(jax.numpy.zeros((5, 2)), values)
        assert written.tolist() == [[0, 0], [8, 9], [0, 0], [0, 0], [4, 5]]
        added = rows.write(jax.numpy.zeros((5, 2)), values, "add")
        assert added[1].tolist() == [0 + 2 + 8, 1 + 3 + 9]


def test_numbers_are_narrow_unless_the_array_is_too_large() -> None:
    index = jax.numpy.asarray([0])
    assert rows_of((4, 5), (index,)).numbers.dtype == np.int32
    with jax.enable_x64(True):
        assert rows_of((2**20, 2**12), (index, index)).numbers.dtype == np.int64
