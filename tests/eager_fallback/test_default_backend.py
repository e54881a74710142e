"""``torch.compile`` without a backend: neuron for tensors on the device, and for others what PyTorch builds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from in_fresh_process import run

from neuron_compiler.eager_fallback import default_backend
from neuron_compiler.ledger import LEDGER


class Double(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(3.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight + 1


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()


@pytest.fixture
def inductor(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Calls of Inductor, by their arguments; it runs graphs as they are."""
    from torch._inductor import compile_fx

    calls: list[dict[str, Any]] = []

    def take(module: torch.fx.GraphModule, inputs: Any, **given: Any) -> Any:
        calls.append(given)
        return module.forward

    monkeypatch.setattr(compile_fx, "compile_fx", take)
    return calls


def test_tensors_on_the_device_are_compiled_by_neuron(inductor: list[dict[str, Any]]) -> None:
    before = LEDGER.total("compile")
    model = Double().to("neuron")
    x = torch.ones(2, 3, device="neuron")
    for compiled in (torch.compile(model), torch.compile(Double().to("neuron"), mode="max-autotune", dynamic=False)):
        torch._dynamo.reset()
        result = compiled(x)
        assert result.device.type == "neuron"
        assert result.tolist() == [[1, 2, 3]] * 2
    model.compile()
    assert model(x).tolist() == [[1, 2, 3]] * 2
    assert LEDGER.total("compile") - before >= 3
    assert inductor == []


def test_a_graph_that_makes_its_tensors_on_the_device(inductor: list[dict[str, Any]]) -> None:
    before = LEDGER.total("compile")
    made = torch.compile(lambda: torch.ones(2, device="neuron") * 3)()
    assert (made.device.type, made.tolist(), inductor) == ("neuron", [3, 3], [])
    assert LEDGER.total("compile") > before


def test_other_tensors_are_inductors(inductor: list[dict[str, Any]]) -> None:
    before = LEDGER.total("compile")
    model, x = Double(), torch.ones(2, 3)
    assert torch.equal(torch.compile(model)(x), model(x))
    assert inductor == [{"config_patches": {}, "compile_region_name": None}]
    assert LEDGER.total("compile") == before


def test_modes_options_and_names_reach_inductor(inductor: list[dict[str, Any]]) -> None:
    from torch._inductor import list_mode_options

    x = torch.ones(3)
    for given, patches in (
        ({"mode": "max-autotune-no-cudagraphs"}, list_mode_options("max-autotune-no-cudagraphs")),
        ({"mode": "max-autotune", "dynamic": True}, list_mode_options("max-autotune", True)),
        ({"options": {"max_fusion_size": 3}}, {"max_fusion_size": 3}),
        ({"name": "region", "dynamic": False}, {}),
    ):
        torch._dynamo.reset()
        inductor.clear()
        torch.compile(lambda x: x.sin(), **given)(x)
        assert inductor[0]["config_patches"] == patches
        assert inductor[0]["compile_region_name"] == given.get("name")


def test_unknown_options_and_modes_raise_when_compile_is_called() -> None:
    with pytest.raises(RuntimeError, match="Unexpected optimization option no_such"):
        torch.compile(Double(), options={"no_such": 1})
    with pytest.raises(RuntimeError, match="Unrecognized mode"):
        torch.compile(Double(), mode="no-such")


def test_pytorchs_bisector_still_chooses_the_backend(inductor: list[dict[str, Any]], monkeypatch: Any) -> None:
    from torch._inductor.compiler_bisector import CompilerBisector

    monkeypatch.setattr(CompilerBisector, "get_backend", classmethod(lambda cls: "eager"))
    before = LEDGER.total("compile")
    x = torch.ones(2, 3, device="neuron")
    assert torch.compile(Double().to("neuron"))(x).tolist() == [[1, 2, 3]] * 2
    assert (inductor, LEDGER.total("compile")) == ([], before)


def test_pytorchs_default_stays_what_it_was() -> None:
    from torch._dynamo.backends.registry import get_default_backend

    assert get_default_backend() == "inductor"
    same = (torch._TorchCompileInductorWrapper("default", None, None) for _ in range(2))
    assert next(same) == next(same)


def test_installed_once() -> None:
    installed = torch._TorchCompileInductorWrapper.__call__
    default_backend.install()
    assert torch._TorchCompileInductorWrapper.__call__ is installed


def test_no_compiler_is_imported_until_it_is_needed() -> None:
    done = run("import sys, torch; print([n for n in ('torch._dynamo', 'torch._inductor', 'jax') if n in sys.modules])")
    assert done.stdout == "[]\n"
