"""The driver: a Graph → passes → StableHLO → Executable. Every stage is handed to an observer, which may write it."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from neuron_compiler import interop
from neuron_compiler.errors import LoweringError
from neuron_compiler.ir.graph import Graph
from neuron_compiler.ir.plan import Program
from neuron_compiler.ledger import LEDGER, Entry
from neuron_compiler.lowering import emit
from neuron_compiler.options import Options
from neuron_compiler.passes import pipeline
from neuron_compiler.passes.base import PassRecord, run_pipeline
from neuron_compiler.runtime import Executable, Layout, compile_interruptibly

log = logging.getLogger("neuron_compiler.compile")


@dataclass(frozen=True)
class Compilation:
    """All that one Graph became; what dumps and reports show.

    Attributes:
        program: after the last pass.
        captured: before the first.
        passes: what each pass did.
        module: StableHLO.
        executable: ready to run.
        seconds: wall seconds by stage: ``passes``, ``lower``, ``xla``.
        emulated: names of the groups that run tile by tile; ``not_emulated`` says of the others why not.
    """

    program: Program
    captured: Program
    passes: tuple[PassRecord, ...]
    module: emit.Module
    executable: Executable
    seconds: dict[str, float]
    emulated: tuple[str, ...] = ()
    not_emulated: dict[str, str] = field(default_factory=dict)


class Observer(Protocol):
    """Who is told of each stage while it happens."""

    def captured(self, program: Program) -> None: ...
    def after_pass(self, index: int, pass_: Any, before: Program, after: Program, seconds: float) -> None: ...
    def lowered(self, module: emit.Module) -> None: ...
    def compiled(self, compilation: Compilation) -> None: ...


def optimise(
    graph: Graph, options: Options, observer: Observer | None = None
) -> tuple[Program, tuple[PassRecord, ...]]:
    """Run the default passes on a graph; the result's plan is complete and verified."""
    program = Program(graph, target=options.target)
    return run_pipeline(
        program,
        pipeline.DEFAULT,
        verify_level=options.verify,
        limit=options.pass_limit,
        observer=observer.after_pass if observer is not None else None,
    )


def _emulation(program: Program, options: Options) -> tuple[dict[str, emit.GroupFunction], dict[str, str]]:
    """Tile-by-tile implementations of the groups that have one, and why the others have none."""
    if options.emulation != "tile":
        return {}, {}
    from neuron_compiler.trainium import execute, target

    machine = target.by_name(program.target)
    functions: dict[str, emit.GroupFunction] = {}
    reasons: dict[str, str] = {}
    for group in program.plan.groups:
        tile = program.plan.tiles.get(group.name)
        reason = execute.why_not(program.graph, group, tile)
        function = None if reason else execute.group_function(program.graph, group, tile, machine)
        if function is None:
            reasons[group.name] = reason or "no tile execution"
        else:
            functions[group.name] = function
    return functions, reasons


def compile_graph(
    graph: Graph,
    inputs: Sequence[Layout],
    outputs: Sequence[Layout],
    options: Options,
    observer: Observer | None = None,
) -> Compilation:
    """Compile one Graph for this host.

    Args:
        graph: as captured.
        inputs: memory layout of each argument.
        outputs: memory layout of each result.
        options: target, verification, emulation.
        observer: told of every stage.
    """
    started = time.perf_counter()
    captured = Program(graph, target=options.target)
    if observer is not None:
        observer.captured(captured)
    program, records = optimise(graph, options, observer)
    optimised = time.perf_counter()
    functions, reasons = _emulation(program, options)
    module = emit.lower(
        program,
        device=interop.device(),
        input_layouts=[layout.order for layout in inputs],
        output_layouts=[layout.order for layout in outputs],
        group_functions=functions,
    )
    if observer is not None:
        observer.lowered(module)
    lowered = time.perf_counter()
    try:
        loaded = compile_interruptibly(module.bytecode)
    except Exception as error:
        raise LoweringError(
            f"XLA could not compile {graph.name}: {error}",
            when="xla",
            hint="write the StableHLO with NEURON_COMPILER_DUMP=dir and report it",
        ) from error
    done = time.perf_counter()
    LEDGER.record(Entry("compile", graph.name))
    seconds = {"passes": optimised - started, "lower": lowered - optimised, "xla": done - lowered}
    log.info("%s: %d ops in %d groups, %s", graph.name, len(graph.ops), len(program.plan.groups), seconds)
    executable = Executable(graph.name, loaded, inputs, outputs, module.faults)
    compilation = Compilation(program, captured, records, module, executable, seconds, tuple(functions), reasons)
    if observer is not None:
        observer.compiled(compilation)
    return compilation
