"""With the package installed and no neuron in use, PyTorch does what it does without it.

One script runs in three fresh interpreters: without the hook of ``import torch``, with it, and with device neuron
registered by it and unused. Everything it saw has to be the same, warnings included; of the third, all but whether
there is an accelerator.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from neuron_compiler import device_library

SCRIPT = r"""
import io, json, sys, warnings
import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

seen = {}

def look(name):
    def run(function):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.manual_seed(3)
            result = function()
        seen[name] = [result, [f"{w.category.__name__}: {w.message}" for w in caught]]
    return run

@look("device")
def _():
    return [
        torch._C._get_privateuse1_backend_name(),
        hasattr(torch, "neuron"),
        str(torch.device("privateuseone")),
        str(torch.get_default_device()),
        str(torch.empty(0).device),
    ]

@look("accelerator")
def _():
    return [
        torch.accelerator.is_available(),
        str(torch.accelerator.current_accelerator()),
        torch.accelerator.device_count(),
    ]

@look("loader")
def _():
    data = TensorDataset(torch.arange(6))
    batches = []
    for workers in (0, 1):
        loader = DataLoader(data, batch_size=4, shuffle=True, pin_memory=True, num_workers=workers)
        batches += [[batch.tolist(), batch.is_pinned()] for (batch,) in loader]
    return batches

@look("fork_rng")
def _():
    before = torch.rand(2)
    with torch.random.fork_rng():
        torch.manual_seed(9)
        inside = torch.rand(2)
    return [before.tolist(), inside.tolist(), torch.rand(2).tolist(), torch.initial_seed()]

@look("checkpoint")
def _():
    layer = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.Tanh())
    x = torch.rand(3, 4, requires_grad=True)
    found = []
    for reentrant in (False, True):
        torch.manual_seed(5)
        y = checkpoint(layer, x, use_reentrant=reentrant)
        (gradient,) = torch.autograd.grad(y.sum(), [layer[0].weight]) if not reentrant else (None,)
        if reentrant:
            y.sum().backward()
            gradient = layer[0].weight.grad
        found.append([y.tolist(), gradient.tolist()])
    return found

@look("autocast")
def _():
    x = torch.rand(3, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x
    scaler = torch.amp.GradScaler("cpu")
    weight = torch.nn.Parameter(torch.rand(3, 3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler.scale((x @ weight).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    return [str(y.dtype), y.tolist(), weight.tolist(), scaler.get_scale(), str(torch.get_autocast_dtype("cpu"))]

@look("autocast without a device")
def _():
    try:
        torch.autocast("neuron")
    except Exception as error:
        return f"{type(error).__name__}: {error}"

@look("save and load")
def _():
    model = torch.nn.Linear(3, 2)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    size = file.tell()
    loads = []
    for keywords in ({}, {"map_location": "cpu"}, {"weights_only": False}):
        file.seek(0)
        loaded = torch.load(file, **keywords)
        loads.append([{k: v.tolist() for k, v in loaded.items()}, sorted({str(v.device) for v in loaded.values()})])
    return [size, loads]

@look("compile")
def _():
    default = torch.compiler.get_default_backend()
    return [str(default), torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2)).tolist()]

@look("neuron is an unknown device")
def _():
    try:
        torch.empty(1, device="neuron")
    except Exception as error:
        return type(error).__name__

heavy = [name for name in ("jax", "neuron_compiler.capture", "neuron_compiler.eager_fallback") if name in sys.modules]
hook = "neuron_compiler.autoload" in sys.modules
print(json.dumps({"seen": seen, "heavy": heavy, "hook": hook}))
"""


def run(autoload: str, device: str) -> tuple[dict[str, Any], str]:
    """What the script saw, and its standard error."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": autoload, "NEURON_COMPILER_DEVICE": device},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.fixture(scope="module")
def with_hook() -> tuple[dict[str, Any], str]:
    return run("1", "0")


@pytest.fixture(scope="module")
def without_hook() -> tuple[dict[str, Any], str]:
    return run("0", "0")


@pytest.fixture(scope="module")
def with_device() -> tuple[dict[str, Any], str]:
    if device_library.find() is None:
        subprocess.run([sys.executable, "-m", "neuron_compiler", "setup"], check=True, timeout=600)
    return run("1", "1")


def test_the_two_runs_differ_in_the_hook(with_hook: Any, without_hook: Any) -> None:
    assert (with_hook[0]["hook"], without_hook[0]["hook"]) == (True, False)


@pytest.mark.parametrize(
    "what",
    [
        "device",
        "accelerator",
        "loader",
        "fork_rng",
        "checkpoint",
        "autocast",
        "autocast without a device",
        "save and load",
        "compile",
        "neuron is an unknown device",
    ],
)
def test_as_without_us(with_hook: Any, without_hook: Any, what: str) -> None:
    assert with_hook[0]["seen"][what] == without_hook[0]["seen"][what]


def test_nothing_is_said_and_nothing_heavy_is_loaded(with_hook: Any, without_hook: Any) -> None:
    assert with_hook[1] == without_hook[1]
    assert with_hook[0]["heavy"] == []


def test_what_it_is_without_us(with_hook: Any) -> None:
    seen = with_hook[0]["seen"]
    assert seen["device"][0] == ["privateuseone", False, "privateuseone", "cpu", "cpu"]
    assert seen["accelerator"][0] == [False, "None", 0]
    assert seen["compile"][0] == ["inductor", [2.0, 2.0]]
    values = [value for batch, pinned in seen["loader"][0] for value in batch]
    assert sorted(values) == sorted([*range(6), *range(6)])


@pytest.mark.parametrize("what", ["fork_rng", "checkpoint", "autocast", "save and load", "compile"])
def test_as_without_us_with_a_device_that_is_not_used(with_device: Any, without_hook: Any, what: str) -> None:
    assert with_device[0]["seen"]["device"][0] == ["neuron", True, "neuron", "cpu", "cpu"]
    assert with_device[0]["seen"][what] == without_hook[0]["seen"][what]


def test_a_device_that_is_not_used_pins_memory_for_a_loader(with_device: Any, without_hook: Any) -> None:
    (pinned, warned), (plain, _) = with_device[0]["seen"]["loader"], without_hook[0]["seen"]["loader"]
    assert [batch for batch, _ in pinned] == [batch for batch, _ in plain]
    assert [kept for _, kept in pinned] == [True] * 4
    assert warned == []
    assert [name for name in with_device[0]["heavy"] if name != "neuron_compiler.eager_fallback"] == []
    assert with_device[1] == ""
