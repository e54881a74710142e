"""examples/train_gpt2.py prints the same losses on both devices, in any number of threads, and nearly so compiled."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

pytest.importorskip("neuron_compiler.eager_fallback", reason="device neuron cannot be built here", exc_type=Exception)

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "train_gpt2.py"
TINY = ["--steps", "4", "--width", "16", "--time", "12", "--batch", "2"]


@pytest.fixture(scope="module", autouse=True)
def one_thread_each() -> Iterator[None]:
    """Four models with threads of their own for each operator are slow where there are fewer processors."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_gpt2", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def alone(example: ModuleType) -> dict[int, list[float]]:
    """Losses of four models on the CPU, each trained in a run of its own."""
    losses: dict[int, list[float]] = {}
    for seed in range(4):
        losses |= example.main([*TINY, "--device", "cpu", "--seed", str(seed)])
    assert [len(of_one) for of_one in losses.values()] == [4] * 4
    assert len({loss for of_one in losses.values() for loss in of_one}) == 16
    return losses


def test_a_program_of_its_own_on_the_device(alone: dict[int, list[float]]) -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE), *TINY], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    shown = [f"seed 0 step {step} loss {loss:.9g}" for step, loss in enumerate(alone[0])]
    assert done.stdout.splitlines() == shown


@pytest.mark.parametrize("device", ["cpu", "neuron"])
def test_four_threads_at_once(example: ModuleType, alone: dict[int, list[float]], device: str) -> None:
    for _ in range(2):
        assert example.main([*TINY, "--threads", "4", "--device", device]) == alone


def test_compiled(example: ModuleType, alone: dict[int, list[float]]) -> None:
    losses = example.main([*TINY, "--threads", "4", "--compile"])
    assert losses.keys() == alone.keys()
    for seed, expected in alone.items():
        assert losses[seed] == pytest.approx(expected, rel=1e-4, abs=0)


def test_it_learns(example: ModuleType) -> None:
    losses = example.main(["--steps", "60", "--width", "32", "--time", "16"])[0]
    assert sum(losses[-5:]) / 5 < losses[0] - 0.2


FULL = pytest.mark.full  # slow, and eager modes have tests of their own


@pytest.mark.parametrize("mode", ["each", pytest.param("fused", marks=FULL), pytest.param("compiled", marks=FULL)])
def test_eager_modes(example: ModuleType, mode: str) -> None:
    small = [*TINY, "--layers", "1", "--steps", "3"]
    expected = example.main([*small, "--device", "cpu"])[0]
    try:
        losses = example.main([*small, "--eager-mode", mode])[0]
        assert torch.neuron.get_eager_mode() == mode
    finally:
        torch.neuron.set_eager_mode("each")
    assert losses == pytest.approx(expected, rel=0 if mode == "each" else 1e-4, abs=0)
