"""The ledger: exact counts, under threads too, logged once, and mirrored where PyTorch's tools look."""

from __future__ import annotations

import logging
import sys
import threading

import pytest
from torch._dynamo.utils import counters

from neuron_compiler.ledger import LEDGER, Entry, Ledger

SVD = Entry("fallback", "aten.linalg_svd.default", "no lowering rule", "model.py:7")
RAND = Entry("random", "aten.rand.default")
COMPILE = Entry("compile", "")


def test_counts_by_entry_and_by_event() -> None:
    ledger = Ledger()
    ledger.record(SVD)
    ledger.record(RAND, 3)
    ledger.record(SVD)
    assert ledger.counts() == {SVD: 2, RAND: 3}
    assert ledger.counts("fallback") == {SVD: 2}
    assert ledger.counts("transfer") == {}
    assert (ledger.total("fallback"), ledger.total("random"), ledger.total("transfer")) == (2, 3, 0)


def test_site_and_cause_tell_entries_apart() -> None:
    ledger = Ledger()
    elsewhere = Entry(SVD.event, SVD.op, SVD.cause, "model.py:9")
    ledger.record(SVD)
    ledger.record(elsewhere)
    assert ledger.counts() == {SVD: 1, elsewhere: 1}


def test_what_is_given_out_is_a_copy() -> None:
    ledger = Ledger()
    ledger.record(RAND)
    ledger.counts()[RAND] = 99
    assert ledger.counts() == {RAND: 1}


def test_dynamo_is_told_what_was_counted_before_it_was_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger()
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "torch._dynamo.utils")
        ledger.record(RAND, 2)
    ledger.record(COMPILE)
    assert dict(counters["neuron"]) == {"random: aten.rand.default": 2, "compile": 1}


def test_clear_forgets_and_counts_again() -> None:
    ledger = Ledger()
    ledger.record(RAND)
    ledger.clear()
    assert ledger.counts() == {}
    ledger.record(RAND)
    assert ledger.counts() == {RAND: 1}


def test_counters_of_dynamo_hold_the_same_numbers() -> None:
    ledger = Ledger()
    ledger.record(SVD, 2)
    ledger.record(Entry(SVD.event, SVD.op, SVD.cause, "model.py:9"))
    ledger.record(RAND)
    ledger.record(COMPILE)
    assert dict(counters["neuron"]) == {
        "fallback: aten.linalg_svd.default: no lowering rule": 3,
        "random: aten.rand.default": 1,
        "compile": 1,
    }


def test_first_fallback_is_logged_and_only_the_first(caplog: pytest.LogCaptureFixture) -> None:
    ledger = Ledger()
    for _ in range(3):
        ledger.record(SVD)
    ledger.record(Entry("fallback", "aten.bincount.default", "data-dependent shape"))
    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [
        (logging.WARNING, "aten.linalg_svd.default runs eagerly: no lowering rule (model.py:7)"),
        (logging.WARNING, "aten.bincount.default runs eagerly: data-dependent shape (no source line)"),
    ]


def test_random_draws_and_compiles_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    ledger = Ledger()
    ledger.record(RAND)
    ledger.record(COMPILE)
    assert caplog.records == []


def test_threads_lose_no_count() -> None:
    ledger = Ledger()
    threads = [threading.Thread(target=lambda: [ledger.record(RAND) for _ in range(2000)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.counts() == {RAND: 16000}
    assert counters["neuron"]["random: aten.rand.default"] == 16000


def test_each_test_starts_with_an_empty_ledger_first() -> None:
    LEDGER.record(RAND)
    assert LEDGER.counts() == {RAND: 1}


def test_each_test_starts_with_an_empty_ledger_again() -> None:
    assert LEDGER.counts() == {}
    assert counters["neuron"] == {}
