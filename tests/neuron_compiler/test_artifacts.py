"""TORCH_LOGS, TORCH_TRACE and TORCH_COMPILE_DEBUG in whole processes, and that the same program dumps the same."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import neuron_compiler
from neuron_compiler import artifacts, logs
from neuron_compiler.capture import neuron

ROOT = Path(neuron_compiler.__file__).parent.parent

PROGRAM = """
import torch
from neuron_compiler.autoload import register
from neuron_compiler.capture import neuron

register()  # an installed package is registered by torch, before TORCH_LOGS is read
torch._logging._internal._init_logs()


def model(x, w):
    return torch.nn.functional.dropout(x @ w * 2, 0.5).sum()


torch.manual_seed(0)
w = torch.ones(8, 4, requires_grad=True)
compiled = torch.compile(model, backend=neuron, dynamic=True)
for rows in (3, 3, 5):
    compiled(torch.ones(rows, 8), w).backward()
print(sorted(name for name in torch._dynamo.utils.compilation_time_metrics if name.startswith("neuron_")))
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folders of two processes that ran the same program: one with everything on, one with the dump alone."""
    found = []
    for index, asked in enumerate(({"TORCH_LOGS": ",".join(logs.ARTIFACTS), "TORCH_COMPILE_DEBUG": "1"}, {})):
        folder = tmp_path_factory.mktemp("run")
        (folder.parent / "model.py").write_text(PROGRAM)  # the same path: it is in every location
        environ = {key: value for key, value in os.environ.items() if not key.startswith(("TORCH", "NEURON"))}
        environ |= {"PYTHONPATH": str(ROOT), "NEURON_COMPILER_DUMP": "dump", **asked}
        if index == 0:
            environ["TORCH_TRACE"] = str(folder / "trace")
        command = [sys.executable, str(folder.parent / "model.py")]
        run = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=600)
        assert run.returncode == 0, run.stderr
        (folder / "stdout").write_text(run.stdout)
        (folder / "stderr").write_text(run.stderr)
        found.append(folder)
    return found


GRAPHS = ["graph0_forward_3_8_4", "graph0_backward_3_4_8", "graph0_forward_5_8_4", "graph0_backward_5_4_8"]


def test_two_runs_write_the_same(runs):
    first, second = (run / "dump" for run in runs)
    files = sorted(p.relative_to(first) for p in first.rglob("*") if p.is_file())
    assert sorted(p.relative_to(second) for p in second.rglob("*") if p.is_file()) == files
    assert [p.name for p in sorted(first.iterdir())] == [f"{n:04d}_{name}" for n, name in enumerate(GRAPHS)]
    differ = {p.name for p in files if (first / p).read_bytes() != (second / p).read_bytes()}
    assert differ <= {"timings.tsv", "recompiles.txt"}, "both tell seconds"


def test_compile_debug_writes_beside_pytorchs_folder(runs):
    (own,) = (runs[0] / "torch_compile_debug").glob("run_*/neuron")
    for folder in (runs[0] / "dump").iterdir():
        for path in folder.rglob("*.*"):
            if path.name != "timings.tsv":
                assert (own / path.relative_to(runs[0] / "dump")).read_bytes() == path.read_bytes()
    assert not (runs[1] / "torch_compile_debug").exists()


def test_logs_show_each_artifact_once_a_compile(runs):
    shown = (runs[0] / "stderr").read_text()
    for name in artifacts.ARTIFACTS:
        for graph in GRAPHS:
            assert shown.count(f"{name} of {graph}:\n") == 1
    for graph in GRAPHS[::2]:
        assert shown.count(f"{graph}: 0 ops eager, 1 random draw in each call\n") == 1
    assert "after the passes:" in shown
    assert "stablehlo.dot_general" in shown
    assert "HloModule jit_graph0_forward_3_8_4" in shown
    assert "neuron_" not in (runs[1] / "stderr").read_text()


def trace(folder):
    """(record, payload) of each line of the trace, payloads being the lines below that are set in by a tab."""
    (path,) = folder.glob("*.log")
    found = []
    for line in path.read_text().splitlines():
        if line.startswith("\t"):
            found[-1][1].append(line[1:])
        elif "{" in line:
            found.append((json.loads(line[line.index("{") :]), []))
    return [(record, "\n".join(payload)) for record, payload in found]


def test_trace_holds_each_artifact_once_a_compile(runs):
    records = trace(runs[0] / "trace")
    ours = [(r, payload) for r, payload in records if r.get("artifact", {}).get("name", "").startswith("neuron_")]
    assert {r["artifact"]["encoding"] for r, _ in ours} == {"string"}
    names = [r["artifact"]["name"] for r, _ in ours]
    assert {name: names.count(name) for name in names} == {name: len(GRAPHS) for name in logs.ARTIFACTS}
    # Each is filed under Dynamo's compile, also where the sizes are bound and compiled when the program runs.
    assert {(r.get("frame_id"), r.get("frame_compile_id")) for r, _ in ours} == {(0, 0)}
    graphs = [payload for r, payload in ours if r["artifact"]["name"] == "neuron_graph"]
    assert [payload.split("(")[0] for payload in graphs] == [f"graph {name}" for name in GRAPHS]


def test_stages_are_in_pytorchs_compile_times(runs):
    expected = ["neuron_compile", "neuron_lower", "neuron_passes", "neuron_xla"]
    assert (runs[0] / "stdout").read_text().strip() == str(expected)


# --- in this process ----------------------------------------------------------------------------------------------


@pytest.fixture
def loggers(monkeypatch):
    """A logger for each artifact, as PyTorch leaves them where none is asked for."""
    found = {name: logging.Logger(f"artifact {name}", logging.WARNING) for name in logs.ARTIFACTS}
    monkeypatch.setattr(logs, "artifact_logger", found.__getitem__)
    return found


class Heard(logging.Handler):
    def __init__(self):
        super().__init__()
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


def test_only_what_is_asked_for_is_built(loggers, monkeypatch):
    # As without TORCH_TRACE. Here, since pytest gives this logger handlers of its own before each test.
    monkeypatch.setattr(torch._logging._internal.trace_log, "handlers", [])

    def unwanted(*args):
        raise AssertionError("nobody reads this")

    monkeypatch.setattr("neuron_compiler.interop.optimised_hlo", unwanted)
    monkeypatch.setattr("neuron_compiler.ir.text.format", unwanted)
    heard = Heard()
    loggers["neuron_groups"].setLevel(logging.DEBUG)
    loggers["neuron_groups"].addHandler(heard)
    torch.compile(lambda x: x * 2, backend=neuron)(torch.ones(2))
    (message,) = heard.messages
    assert message.startswith("neuron_groups of graph")
    assert "edges that were not fused:" in message


def test_a_logger_that_nobody_hears_is_not_enabled(loggers):
    # TORCH_LOGS=+neuron: the level comes from above, but what must be named is cut off from the handlers there.
    loggers["neuron_hlo"].setLevel(logging.DEBUG)
    assert artifacts.enabled_loggers() == {}
    loggers["neuron_hlo"].addHandler(Heard())
    assert list(artifacts.enabled_loggers()) == ["neuron_hlo"]
