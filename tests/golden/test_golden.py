"""Golden dumps: the graph, groups, barriers and tiles of the main blocks of models, as text.

A change of fusion or tiling shows here as a change of text. After looking at it, accept it with
``EXPECTTEST_ACCEPT=1 pytest tests/golden``, which writes the files anew.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import blocks
import pytest
import torch

from neuron_compiler.capture import backend, watch
from neuron_compiler.compile import optimise
from neuron_compiler.ir import text, verify
from neuron_compiler.ir.plan import Program
from neuron_compiler.options import Options

FOLDER = Path(__file__).parent

Inputs = tuple[torch.Tensor, ...]

CASES: dict[str, tuple[Callable[[], Callable[..., Any]], Callable[[], Inputs]]] = {
    "gpt2_block": (blocks.GPT2Block, lambda: (torch.empty(1, 256, 768),)),
    "gpt2_block_by_hand": (lambda: blocks.GPT2Block(by_hand=True), lambda: (torch.empty(1, 256, 768),)),
    "llama_block": (
        lambda: blocks.LlamaBlock().bfloat16(),
        lambda: (
            torch.empty(1, 256, 2048, dtype=torch.bfloat16),
            torch.empty(256, 64, dtype=torch.bfloat16),
            torch.empty(256, 64, dtype=torch.bfloat16),
        ),
    ),
    "resnet_bottleneck": (lambda: blocks.Bottleneck().eval(), lambda: (torch.empty(1, 256, 56, 56),)),
    "convnext_block": (blocks.ConvNeXtBlock, lambda: (torch.empty(1, 96, 56, 56),)),
    "softmax": (lambda: blocks.softmax_by_hand, lambda: (torch.empty(8, 128, 1000),)),
    "layer_norm": (
        lambda: blocks.layer_norm,
        lambda: (torch.empty(4, 128, 768), torch.empty(4, 128, 768), torch.empty(768), torch.empty(768)),
    ),
    "cross_entropy": (
        lambda: blocks.cross_entropy,
        lambda: (torch.empty(512, 50257), torch.empty(512, dtype=torch.int64)),
    ),
    "autocast_mlp": (
        lambda: blocks.autocast_mlp,
        lambda: (torch.empty(64, 512), torch.empty(2048, 512), torch.empty(512, 2048)),
    ),
}


class Captured(Exception):
    """Stops a compile as soon as its graph is known."""


@pytest.fixture
def capture(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Program]:
    """The optimised program of a function for some inputs; nothing is handed to XLA."""

    def found(function: Callable[..., Any], *inputs: torch.Tensor) -> Program:
        programs: list[Program] = []

        def stop(graph: Any, *_: Any, **__: Any) -> Any:
            programs.append(optimise(graph, Options(verify="every"))[0])
            raise Captured

        monkeypatch.setattr(watch, "compile_graph", stop)
        torch._dynamo.reset()
        with torch.no_grad(), pytest.raises(torch._dynamo.exc.BackendCompilerFailed):
            torch.compile(function, backend=backend.neuron, fullgraph=True)(*inputs)
        (program,) = programs
        return program

    return found


def plain(program: Program, name: str) -> Program:
    """The program without what depends on where and when it was captured: source lines and the names of values."""
    graph = program.graph
    bare = replace(
        graph,
        name=name,
        inputs=tuple(replace(i, origin="") for i in graph.inputs),
        ops=tuple(replace(op, loc="") for op in graph.ops),
    )
    values = [i.name for i in graph.inputs] + [c.name for c in graph.constants] + [op.result for op in graph.ops]
    number = {value: str(n) for n, value in enumerate(values)}
    printed = text.format(replace(program, graph=bare))
    return text.parse(re.sub(r"%([\w.$]+)", lambda m: f"%{number[m[1]]}", printed))


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str, capture: Callable[..., Program]) -> None:
    make, inputs = CASES[name]
    with torch.device("meta"):  # nobody reads the weights, so they need no values
        function = make()
    if isinstance(function, torch.nn.Module):
        function = function.to_empty(device="cpu")
    program = plain(capture(function, *inputs()), name)
    verify.program(program)
    found, path = text.format(program), FOLDER / f"{name}.ir"
    if os.environ.get("EXPECTTEST_ACCEPT") == "1":
        path.write_text(found)
    kept = path.read_text()
    if found != kept:
        changes = "\n".join(difflib.unified_diff(kept.splitlines(), found.splitlines(), path.name, "now", lineterm=""))
        pytest.fail(f"{changes}\naccept with EXPECTTEST_ACCEPT=1", pytrace=False)


def test_every_dump_is_of_a_case_and_has_a_complete_plan() -> None:
    assert {path.stem for path in FOLDER.glob("*.ir")} == set(CASES)
    for path in FOLDER.glob("*.ir"):
        program = text.parse(path.read_text())
        verify.program(program)
        assert [name for group in program.plan.groups for name in group.ops]
        assert program.plan.tiles
