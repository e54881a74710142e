"""Comparison of elements: keys, stable positions, extremes, and NaN through sums of maxima."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from against_aten import to_array

from neuron_compiler.lowering import order

SPECIAL = [1.0, -0.0, 0.0, float("nan"), float("inf"), -float("inf"), 1e-42, -1e-42, -1.0, float("nan"), 2.0, 0.0]


def _run(function, *arrays):
    with jax.enable_x64(True):
        return np.asarray(jax.jit(function)(*arrays))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_positions_of_floats_are_those_of_a_stable_sort_in_aten(dtype: torch.dtype, descending: bool) -> None:
    x = torch.tensor(SPECIAL, dtype=dtype)
    found = _run(lambda a: order.sorted_positions(a, 0, descending), to_array(x))
    assert found.tolist() == torch.sort(x, stable=True, descending=descending).indices.tolist()


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(
    "dtype",
    [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64],
)
def test_positions_of_integers_hold_at_both_ends_of_the_range(dtype: torch.dtype, descending: bool) -> None:
    info = np.iinfo(str(dtype)[6:])
    values = [info.max, info.min, 0, 1, info.max, info.min, info.max - 1, 1]
    found = _run(lambda a: order.sorted_positions(a, 0, descending), np.array(values, info.dtype))
    wanted = sorted(range(len(values)), key=lambda i: -values[i] if descending else values[i])
    assert found.tolist() == wanted


def test_key_takes_zeros_alike_and_subnormals_apart() -> None:
    key = _run(order.sort_key, np.array([-1e-42, -0.0, 0.0, 1e-42, np.nan, -np.nan, np.inf], np.float32))
    assert key[0] < key[1] == key[2] < key[3]
    assert key[4] == key[5] > key[6]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, jnp.bfloat16, np.float16])
def test_nan_anywhere_in_a_row_wins(dtype: type) -> None:
    x = np.random.default_rng(0).standard_normal((37, 1000)).astype(dtype)
    places = {3: 0, 7: 1, 20: 500, 36: 999}
    for row, place in places.items():
        x[row, place] = np.nan

    def folded(a):
        extremes = [fold(a, (1,)).astype(np.float64) for fold in (order.largest, order.smallest)]
        positions = [find(a, 1) for find in (order.position_of_largest, order.position_of_smallest)]
        return jnp.stack(extremes + [p.astype(np.float64) for p in positions])

    largest, smallest, first, other = _run(folded, x)
    assert np.flatnonzero(np.isnan(largest)).tolist() == list(places)
    assert np.flatnonzero(np.isnan(smallest)).tolist() == list(places)
    assert first[list(places)].tolist() == other[list(places)].tolist() == list(places.values())


def test_nan_of_a_maximum_reaches_the_sum_after_it() -> None:
    """XLA's library kernels for sums take the maximum into themselves and lose it there."""
    x = np.ones((64, 1000), np.float32)
    x[3, 500] = np.nan
    zero = np.zeros((), np.float32)
    for choose in (order.maximum, order.minimum):
        summed = _run(lambda a, choose=choose: jnp.sum(choose(a, jnp.broadcast_to(zero, a.shape)), axis=1), x)
        assert np.flatnonzero(np.isnan(summed)).tolist() == [3]
