"""A rule that is wrong in one way fails its generated test: for rules at random, and without a budget for all."""

from __future__ import annotations

import os

import op_check
import op_samples
import planted_faults
import pytest
import torch

RULES = planted_faults.rules()
FEW = planted_faults.picked(int(os.environ.get("NEURON_TEST_SEED", "0")), 20)
REST = pytest.mark.skipif("NEURON_TEST_BUDGET" in os.environ, reason="without a budget alone: make test-all")


SAMPLED = [*FEW, *(pytest.param(name, marks=REST) for name in RULES if name not in FEW)]
HOLE = "no call tells a wrong rule of {} ({}): add one to hand_calls_*.py"


@pytest.mark.parametrize("overload", SAMPLED)
def test_a_wrong_value_is_seen(overload: str) -> None:
    calls = planted_faults.calls(overload)
    faults = planted_faults.wrong_values(overload, calls)
    assert faults
    unseen = planted_faults.unseen(overload, faults, calls)
    assert not unseen, HOLE.format(overload, unseen)


@REST
@pytest.mark.parametrize("overload", RULES)
def test_an_ignored_option_is_seen(overload: str) -> None:
    calls = planted_faults.calls_with_options(overload)
    op_check.check(calls)
    unseen = planted_faults.unseen(overload, planted_faults.ignored_options(overload), calls)
    assert not unseen, HOLE.format(overload, unseen)


def test_a_right_rule_is_no_fault() -> None:
    name = "aten.sum.dim_IntList"
    right = planted_faults.Fault("none", planted_faults.REGISTRY[name].lower)
    assert not planted_faults.seen(name, right, planted_faults.calls(name))


def test_what_no_call_tells_is_named() -> None:
    name = "aten.searchsorted.Tensor"
    faults = planted_faults.ignored_options(name)
    places = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.5, 2.5])
    plain = [op_samples.made(name, places, {})]
    named = ["right is ignored", "side is ignored", "sorter is ignored"]
    assert planted_faults.unseen(name, faults, plain) == named
    # The call with ``right`` meets no equal values, so it says nothing.
    telling = [
        op_samples.made(name, places, {"right": True}),
        op_samples.made(name, (places[0], places[0]), {"side": "right"}),
    ]
    assert planted_faults.unseen(name, faults, plain + telling) == ["right is ignored", "sorter is ignored"]


def test_options_that_no_call_sets_are_set() -> None:
    name = "aten.any.dim"
    calls = [op_samples.made(name, (torch.eye(3) > 0, 1), {})]
    (added,) = op_samples.setting_options(name, calls)
    assert added.kwargs == {"keepdim": True}
    assert added.result.shape == (3, 1)
