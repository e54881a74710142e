"""The ledger of eager operators: counts, classes, sites, exports, and what operators of the fallback class do."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import torch
from in_fresh_process import on_device, run

from neuron_compiler import options
from neuron_compiler.eager_fallback import op_classes, op_ledger
from neuron_compiler.errors import OptionsError


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.neuron.clear_op_tracking()
    yield
    torch.neuron.set_fallback_mode("warn")
    torch.neuron.set_op_tracking(False)
    torch.neuron.clear_op_tracking()


def test_nothing_is_counted_unless_asked() -> None:
    torch.ones(2, device="neuron") * 2
    assert torch.neuron.ledger().rows == ()
    assert "track_ops" in str(torch.neuron.ledger())


def test_counts_times_bytes_and_classes() -> None:
    x = torch.rand(8, 8, device="neuron")
    with torch.neuron.track_ops():
        x + x
        x + x
        x.view(64)
        x.uniform_()
        torch.linalg.qr(x)
    x + x
    found = {row.op: row for row in torch.neuron.ledger().rows}
    assert (found["aten::add.Tensor"].calls, found["aten::add.Tensor"].bytes) == (2, 2 * 3 * 256)
    assert 0 < found["aten::add.Tensor"].time_us < 1e6
    classes = {name: row.op_class for name, row in found.items()}
    assert classes["aten::add.Tensor"] == "chip"
    assert classes["aten::view"] == "view"
    assert classes["aten::uniform_"] == "host draw"
    assert classes["aten::linalg_qr"] == "cpu fallback"
    assert torch.neuron.get_fallback_ops() == ["aten::linalg_qr"]
    assert "aten::add.Tensor" in torch.neuron.get_executed_ops()
    assert "aten::linalg_qr" not in torch.neuron.get_executed_ops()
    times = [row.time_us for row in torch.neuron.ledger().rows]
    assert times == sorted(times, reverse=True)
    torch.neuron.clear_op_tracking()
    assert (torch.neuron.get_fallback_ops(), torch.neuron.get_executed_ops()) == ([], [])


def test_shown_as_a_table_and_as_json() -> None:
    with torch.neuron.track_ops():
        torch.ones(4, device="neuron").mul_(3)
    ledger = torch.neuron.ledger()
    assert [line for line in str(ledger).splitlines() if "aten::mul_.Tensor" in line and "chip" in line]
    rows = {row["op"]: row for row in json.loads(ledger.to_json())["ops"]}
    assert rows["aten::mul_.Tensor"]["calls"] == 1
    assert rows["aten::mul_.Tensor"]["bytes"] == 2 * 16


def test_the_first_call_of_the_fallback_class_has_its_site() -> None:
    x = torch.eye(3, device="neuron")
    torch.linalg.det(x)
    with torch.neuron.track_ops():
        torch.linalg.det(x)
        x + x
    sites = {row.op: row.site for row in torch.neuron.ledger().rows}
    line = test_the_first_call_of_the_fallback_class_has_its_site.__code__.co_firstlineno + 2
    assert sites["aten::_linalg_det"] == f"{__file__}:{line}"
    assert sites["aten::add.Tensor"] == ""
    with torch.neuron.track_ops(sites=True):
        torch.nn.functional.relu(x)
    sites = {row.op: row.site for row in torch.neuron.ledger().rows}
    assert sites["aten::relu"] == f"{__file__}:{line + 9}"


def test_warned_of_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op_ledger, "_warned", set())
    x = torch.eye(3, device="neuron")
    with caplog.at_level(logging.WARNING, "neuron_compiler.fallbacks"):
        torch.inverse(x)
        torch.inverse(x)
        torch.neuron.clear_op_tracking()
        torch.inverse(x)
        x @ x
    assert [r.getMessage().split(" (")[0] for r in caplog.records] == [
        "aten::linalg_inv_ex would run on the CPU, not on the chip"
    ]
    assert __file__ in caplog.text


def test_silent(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op_ledger, "_warned", set())
    torch.neuron.set_fallback_mode("silent")
    with caplog.at_level(logging.WARNING, "neuron_compiler.fallbacks"):
        torch.linalg.svd(torch.eye(3, device="neuron"))
    assert caplog.records == []
    assert torch.neuron.get_fallback_ops() == ["aten::_linalg_svd"]


def test_an_error_every_time() -> None:
    torch.neuron.set_fallback_mode("error")
    x = torch.eye(3, device="neuron")
    for _ in range(2):
        with pytest.raises(NotImplementedError, match="aten::linalg_cholesky_ex would run on the CPU"):
            torch.linalg.cholesky(x)
    assert (x @ x).sum().item() == 3
    assert torch.neuron.get_fallback_mode() == "error"
    with pytest.raises(OptionsError, match="'loud'; it takes one of silent, warn, error"):
        torch.neuron.set_fallback_mode("loud")


def test_the_environment_chooses() -> None:
    code = """
try:
    torch.linalg.eigh(torch.eye(2, device="neuron"))
except NotImplementedError as error:
    print("refused", torch.neuron.get_fallback_mode())
"""
    assert on_device(code, NEURON_COMPILER_EAGER_FALLBACK="error") == ["refused error"]
    done = run("import torch; print(hasattr(torch, 'neuron'))", NEURON_COMPILER_EAGER_FALLBACK="loud")
    assert done.stdout == "False\n"
    assert "NEURON_COMPILER_EAGER_FALLBACK is 'loud'" in done.stderr
    assert options.eager_fallback({}) == "warn"


# PyTorch 2.14 has it no more.
GONE = {"cholesky": ["aten::cholesky", "aten::cholesky.out"]}


def test_every_overload_of_the_fallback_class_is_listed() -> None:
    expected = [
        f"aten::{name}.{overload}".removesuffix(".")
        for row in op_classes.TABLE
        if row.op_class == "cpu fallback"
        for name in row.operators
        if name not in GONE
        for overload in torch._C._jit_get_operation(f"aten::{name}")[1]
    ] + [overload for overloads in GONE.values() for overload in overloads]
    assert sorted(op_classes.FALLBACK_OVERLOADS) == sorted(expected)


def test_every_operator_of_the_table_exists_once() -> None:
    names = [name for row in op_classes.TABLE for name in row.operators] + sorted(op_classes.VIEWS)
    assert len(names) == len(set(names))
    for name in names:
        assert hasattr(torch.ops.aten, name) or name in GONE
    assert all(row.source.startswith("https://") and row.why for row in op_classes.TABLE)


def test_backward_on_another_thread_is_told_of_too() -> None:
    x = torch.eye(3, device="neuron").requires_grad_()
    with torch.neuron.track_ops():
        torch.linalg.slogdet(x).logabsdet.backward()
    x.grad = None
    with torch.neuron.track_ops(sites=True):
        (x @ x).sum().backward()
    assert "aten::linalg_lu_solve" in torch.neuron.get_fallback_ops()
    assert x.grad.tolist() == [[2.0] * 3] * 3
