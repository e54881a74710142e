"""Times of several systems, taken in turns: A B C A B C …, so that what disturbs the machine disturbs all alike.

Figures are medians with the 10th and 90th percentile. A ratio is the median of the ratios within each round; beside it
stands the same ratio of the reference against its own next round, which is what noise alone gives.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

MINIMUM_SECONDS = 0.005
"""One timing repeats a call until it takes about this long: below, the clock and the loop weigh too much."""


@dataclass(frozen=True)
class Spread:
    """A median and the 10th and 90th percentile."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of values; raises ValueError where there are none."""
        return cls(quantile(values, 0.5), quantile(values, 0.1), quantile(values, 0.9))


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which that share lies, interpolated between neighbours."""
    if not values:
        raise ValueError("no values to take a quantile of")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def interleaved(
    calls: Mapping[str, Callable[[], Any]],
    rounds: int,
    *,
    minimum_seconds: float = MINIMUM_SECONDS,
    clock: Callable[[], float] = time.perf_counter,
    each_round: Callable[[int], None] = lambda _: None,
) -> dict[str, tuple[float, ...]]:
    """Seconds per call of each system, one figure a round.

    Args:
        calls: by name, in the order of a round.
        rounds: at least 1, after one round that is not counted.
        minimum_seconds: a call that is quicker is repeated within its turn.
        clock: seconds, rising.
        each_round: told the number of each finished round, from 1.
    """
    repeats = {name: max(1, math.ceil(minimum_seconds / _one(call, 1, clock))) for name, call in calls.items()}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    with _no_collection():
        for done in range(1, rounds + 1):
            for name, call in calls.items():
                seconds[name].append(_one(call, repeats[name], clock))
            each_round(done)
    return {name: tuple(figures) for name, figures in seconds.items()}


def _one(call: Callable[[], Any], repeats: int, clock: Callable[[], float]) -> float:
    started = clock()
    for _ in range(repeats):
        call()
    # A clock may not have moved at all.
    return max(clock() - started, 1e-9) / repeats


def ratio(reference: Sequence[float], other: Sequence[float]) -> Spread:
    """How many times faster than the reference, round by round; above 1 is faster."""
    return Spread.of([a / b for a, b in zip(reference, other, strict=True)])


def noise(reference: Sequence[float]) -> Spread:
    """The reference against itself, each round against the next; of a single round, nothing is known but 1."""
    return Spread.of([a / b for a, b in pairwise(reference)] or [1.0])


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage collection inside the block: it would fall on whichever call is next."""
    was = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
