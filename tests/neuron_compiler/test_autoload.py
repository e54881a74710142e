"""The hook of ``import torch``: what it registers, what it leaves alone, and that it never raises."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from importlib.metadata import entry_points

import pytest
import torch

from neuron_compiler import autoload, logs


def run_python(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter without device neuron, with only the given TORCH_ variables set."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TORCH_")}
    kept["NEURON_COMPILER_DEVICE"] = "0"
    return subprocess.run(
        [sys.executable, "-c", code], env={**kept, **environ}, cwd="/", capture_output=True, text=True, timeout=120
    )


def test_entry_points_name_the_hook_and_the_backend() -> None:
    hooks = {p.name: p.value for p in entry_points(group="torch.backends")}
    assert hooks["neuron_compiler"] == "neuron_compiler.autoload:register"
    backends = {p.name: p.value for p in entry_points(group="torch_dynamo_backends")}
    assert backends["neuron"] == "neuron_compiler.capture:neuron"


def test_torch_logs_takes_our_names_and_shows_only_those_asked_for() -> None:
    code = """
import logging, torch
from neuron_compiler.logs import artifact_logger
for name in ("neuron_graph", "neuron_groups", "neuron_hlo", "neuron_fallbacks"):
    artifact_logger(name).debug("text of " + name)
logging.getLogger("neuron_compiler.capture").info("at level info")
logging.getLogger("neuron_compiler.capture").debug("at level debug")
"""
    done = run_python(code, TORCH_LOGS="neuron,neuron_graph,neuron_hlo,neuron_fallbacks")
    assert done.returncode == 0, done.stderr
    shown = [line.split("] ", 1)[1] for line in done.stderr.splitlines()]
    assert shown == [
        "[__neuron_graph] text of neuron_graph",
        "[__neuron_hlo] text of neuron_hlo",
        "[__neuron_fallbacks] text of neuron_fallbacks",
        "at level info",
    ]


def test_help_shows_each_artifact_with_its_sentence() -> None:
    done = run_python("import torch", TORCH_LOGS="help")
    listed = {line.split("\t")[0].strip(): line.split("\t")[1] for line in done.stderr.splitlines() if "\t" in line}
    assert {name: text for name, text in listed.items() if name.startswith("neuron")} == dict(logs.ARTIFACTS)
    assert "  neuron\n" in done.stderr


def test_import_torch_stays_as_it_was() -> None:
    code = """
import sys, torch
heavy = ("jax", "networkx", "torch._dynamo", "neuron_compiler.capture", "neuron_compiler.eager_fallback")
print([name for name in heavy if name in sys.modules])
print("neuron_compiler.autoload" in sys.modules)
print(torch._C._get_privateuse1_backend_name(), hasattr(torch, "neuron"), torch.accelerator.is_available())
"""
    done = run_python(code)
    assert done.stdout.splitlines() == ["[]", "True", "privateuseone False False"], done.stderr
    assert done.stderr == ""


def test_switched_off_loggers_still_work() -> None:
    code = """
import sys, torch
print("neuron_compiler" in sys.modules)
from neuron_compiler.logs import artifact_logger
artifact_logger("neuron_fallbacks").warning("still seen")
"""
    done = run_python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "still seen\n")


def test_a_changed_registry_is_said_once_and_never_raised(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(autoload, "_warned", False)
    monkeypatch.setattr(logs, "TORCH_VERSIONS", ((9, 0), (9, 1)))
    autoload.register()
    autoload.register()
    assert [r.getMessage() for r in caplog.records] == [
        "TORCH_LOGS does not know neuron, neuron_graph, neuron_groups, neuron_hlo, neuron_fallbacks: "
        f"RuntimeError: PyTorch {torch.__version__} is not in the range 9.0 to below 9.1"
    ]
    assert caplog.records[0].levelno == logging.WARNING


def test_a_missing_private_call_is_not_raised(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(autoload, "_warned", False)
    monkeypatch.delattr("torch._logging._internal.register_artifact")
    autoload.register()
    assert "ImportError" in caplog.records[0].getMessage()
