"""Turns, spreads and distances: by numbers that are known beforehand."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from neuron_compiler.measure import clock
from neuron_compiler.measure.difference import Difference, difference
from neuron_compiler.measure.rows import judge, verdict
from neuron_compiler.measure.systems import EAGER, NEURON, Prepared, prepare
from neuron_compiler.models import Example


class Time:
    """A clock that calls advance."""

    def __init__(self) -> None:
        self.now = 0.0
        self.order: list[str] = []

    def call(self, name: str, seconds: float) -> Callable[[], None]:
        def run() -> None:
            self.order.append(name)
            self.now += seconds

        return run


def test_systems_take_turns() -> None:
    time = Time()
    calls = {"a": time.call("a", 0.25), "b": time.call("b", 0.5)}
    told: list[int] = []
    found = clock.interleaved(calls, 3, clock=lambda: time.now, each_round=told.append)
    assert found == {"a": (0.25, 0.25, 0.25), "b": (0.5, 0.5, 0.5)}
    assert time.order == ["a", "b"] * 4, "one round to warm up, three to count"
    assert told == [1, 2, 3]


def test_quick_calls_are_repeated_within_their_turn() -> None:
    time = Time()
    calls = {"quick": time.call("quick", 0.25), "slow": time.call("slow", 2.0)}
    found = clock.interleaved(calls, 1, minimum_seconds=1.0, clock=lambda: time.now)
    assert found == {"quick": (0.25,), "slow": (2.0,)}
    assert time.order == ["quick", "slow", *["quick"] * 4, "slow"]


def test_quantiles() -> None:
    values = [5.0, 1.0, 3.0, 2.0, 4.0]
    assert [clock.quantile(values, share) for share in (0.0, 0.1, 0.5, 0.9, 1.0)] == [1.0, 1.4, 3.0, 4.6, 5.0]
    assert clock.Spread.of([7.0]) == clock.Spread(7.0, 7.0, 7.0)
    with pytest.raises(ValueError, match="no values"):
        clock.quantile([], 0.5)


def test_ratios_are_taken_within_a_round() -> None:
    # The machine got twice as slow in the second round: the ratio does not see it, the noise does.
    reference, other = (1.0, 2.0, 2.0), (0.5, 1.0, 1.0)
    assert clock.ratio(reference, other) == clock.Spread(2.0, 2.0, 2.0)
    assert clock.noise(reference).median == 0.75
    assert clock.noise((1.0,)) == clock.Spread(1.0, 1.0, 1.0)


def test_difference_is_relative_and_the_worst() -> None:
    want = [torch.tensor([3.0, -4.0]), torch.tensor([100.0])]
    got = [torch.tensor([3.0, -4.5]), torch.tensor([100.25])]
    found = difference(got, want)
    assert found.rms == pytest.approx(0.5 / 5.0)
    assert found.largest == 0.5
    assert difference(want, want) == Difference(0.0, 0.0, "")


@pytest.mark.parametrize(
    ("got", "fault"),
    [
        ([], "0 results instead of 1"),
        ([torch.zeros(3)], "result 0: shape (3,) instead of (2,)"),
        ([torch.zeros(2, dtype=torch.float64)], "result 0: torch.float64 instead of torch.float32"),
        ([torch.tensor([1.0, math.nan])], "result 0: NaN or infinite where the other is not"),
    ],
)
def test_difference_beside_values(got: list[torch.Tensor], fault: str) -> None:
    found = difference(got, [torch.ones(2)])
    assert found == Difference(math.inf, math.inf, fault)
    assert verdict(found, 1e-4) == fault


def test_integers_have_to_be_equal() -> None:
    found = difference([torch.tensor([1, 2])], [torch.tensor([1, 3])])
    assert found.fault == "result 0: 1 of 2 values of torch.int64 differ"


def test_a_result_of_zeros_allows_no_error() -> None:
    assert difference([torch.tensor([1e-9])], [torch.zeros(1)]).rms == math.inf


def test_floor_measures_small_results_by_the_largest() -> None:
    want = [torch.tensor([10.0]), torch.tensor([1e-9])]
    got = [torch.tensor([10.0]), torch.tensor([2e-9])]
    assert difference(got, want).rms == pytest.approx(1.0)
    assert difference(got, want, floor=1e-3).rms == pytest.approx(1e-7, rel=1e-4)


def prepared(system: str, *results: torch.Tensor) -> Prepared:
    return Prepared(system, lambda: list(results), 1.0, results)


def test_judge_float32_by_a_bound() -> None:
    want = torch.ones(4)
    found = judge({EAGER: prepared(EAGER, want), NEURON: prepared(NEURON, want * 1.01)}, [want], train=False)
    assert found[EAGER].verdict == ""
    assert found[NEURON].verdict == "relative RMS error 1.0e-02 is over 1.0e-04"


@pytest.mark.parametrize(("factor", "good"), [(1.0, True), (1.4, True), (2.0, False)])
def test_judge_16_bit_results_by_eagers_own_error(factor: float, good: bool) -> None:
    want = torch.ones(64)
    eager, own = (1 + 2**-6 * torch.ones(64)).bfloat16(), (1 + 2**-6 * factor * torch.ones(64))
    systems = {EAGER: prepared(EAGER, eager), NEURON: prepared(NEURON, own)}
    assert (judge(systems, [want], train=False)[NEURON].verdict == "") is good


def test_a_training_step_gives_loss_and_gradients() -> None:
    module = torch.nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[2.0, 3.0]]))
    made = prepare(EAGER, Example(module, (torch.tensor([[1.0, 1.0]]),)), train=True)
    loss, gradient = made.results
    assert loss.item() == 25.0
    assert gradient.tolist() == [[10.0, 10.0]]
    assert made.call is not None
    assert made.call()[1].tolist() == [[10.0, 10.0]], "gradients are not summed over calls"


def test_this_compiler_hands_over_what_it_made() -> None:
    made = prepare(NEURON, Example(torch.nn.Linear(2, 1), (torch.ones(1, 2),)))
    (compilation,) = made.compilations
    assert [op.kind for op in compilation.program.graph.ops] != []
    assert made.fallbacks == 0
