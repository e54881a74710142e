"""The chips' numbers: published totals follow from the parts, limits are those of the instruction set."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest

from neuron_compiler.errors import OptionsError
from neuron_compiler.options import TARGETS as OPTION_TARGETS
from neuron_compiler.trainium.target import MIB, TARGETS, TRN1, TRN2, TRN3, Target, by_name

ALL = pytest.mark.parametrize("target", [TRN1, TRN2, TRN3], ids=lambda t: t.name)


def test_published_totals():
    assert [t.sbuf_bytes // MIB for t in (TRN1, TRN2, TRN3)] == [24, 28, 32]
    assert [t.psum_bytes // MIB for t in (TRN1, TRN2, TRN3)] == [2, 2, 2]
    assert [t.hbm_bytes // 2**30 for t in (TRN1, TRN2, TRN3)] == [32, 96, 144]


@ALL
def test_one_bank_holds_512_fp32_accumulators(target: Target):
    assert target.psum_bank_bytes_per_partition == 512 * 4
    assert target.moving_free_max >= 512
    assert target.psum_bytes_per_partition == 16 * 1024


@ALL
def test_tensor_engine_limits(target: Target):
    assert (target.num_partitions, target.stationary_free_max) == (128, 128)


@ALL
def test_peak_rates_follow_from_array_and_clock(target: Target):
    array = target.num_partitions * target.stationary_free_max * 2 * target.tensor_clock_hz
    assert target.bf16_flops_per_second == pytest.approx(array, rel=5e-3)
    assert target.fp32_flops_per_second == pytest.approx(array / 4, rel=5e-3)


def test_by_name_knows_what_the_options_accept():
    assert tuple(TARGETS) == OPTION_TARGETS
    assert all(by_name(name).name == name for name in OPTION_TARGETS)


def test_by_name_refuses_an_unknown_chip():
    with pytest.raises(OptionsError, match="target 'trn9' is not known") as caught:
        by_name("trn9")
    assert caught.value.hint == "known: trn1, trn2, trn3"


@ALL
def test_assumed_names_fields(target: Target):
    assert set(target.assumed) <= {f.name for f in fields(Target)}


def test_a_target_is_frozen_and_keyword_only():
    with pytest.raises(FrozenInstanceError):
        TRN2.hbm_bytes = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        Target("trn4", 8)  # type: ignore[call-arg,misc]
