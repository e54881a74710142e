"""The driver: a Graph → passes → StableHLO → Executable. Every stage is handed to an observer, which may write it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

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


class Observer:
    """Who is told of each stage while it happens; one that looks at a stage overrides its method.

    An observer belongs to one captured graph. ``traced`` and ``placed`` come once; the others once per executable,
    of which a graph has several where ops that run eagerly split it.
    """

    def traced(self, dynamo: str, aot: Callable[[], str]) -> None:
        """The graph as Dynamo captured it (empty where nobody asked for it) and as AOTAutograd gave it, as Python."""

    def placed(self, entries: Sequence[Entry]) -> None:
        """The ops that will run eagerly and the random draws, in program order."""

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Entered for the length of ``compile`` and, inside it, of ``passes``, ``lower`` and ``xla``."""
        return nullcontext()

    def captured(self, program: Program, inputs: Sequence[Layout], outputs: Sequence[Layout]) -> None:
        """The program before the first pass, and how its arguments and results lie in memory."""

    def after_pass(self, index: int, pass_: Any, before: Program, after: Program, seconds: float) -> None:
        """What a pass made, before it is verified; the same object where it changed nothing."""

    def lowered(self, module: emit.Module) -> None:
        """The StableHLO, before XLA sees it."""

    def compiled(self, compilation: Compilation) -> None:
        """All of it."""

    def note(self, name: str, text: Callable[[], str]) -> None:
        """A text about the graph, under a file's name: why it was compiled again, which sizes were padded."""


_recorders: list[list[Compilation]] = []


@contextmanager
def recording() -> Iterator[list[Compilation]]:
    """A list that receives every Compilation that this process makes inside the block, in any thread; for reports."""
    found: list[Compilation] = []
    _recorders.append(found)
    try:
        yield found
    finally:
        # By identity: two empty lists are equal.
        _recorders[:] = [other for other in _recorders if other is not found]


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
    observer = observer or Observer()
    with observer.stage("compile"):
        return _compile(graph, inputs, outputs, options, observer)


def _compile(
    graph: Graph, inputs: Sequence[Layout], outputs: Sequence[Layout], options: Options, observer: Observer
) -> Compilation:
    seconds: dict[str, float] = {}
    captured = Program(graph, target=options.target)
    observer.captured(captured, inputs, outputs)
    with _timed("passes", seconds, observer):
        program, records = optimise(graph, options, observer)
    return _for_host(program, captured, records, inputs, outputs, options, observer, seconds)


def compile_program(
    program: Program,
    inputs: Sequence[Layout],
    outputs: Sequence[Layout],
    options: Options,
    observer: Observer | None = None,
) -> Compilation:
    """Compile a program whose passes have run, such as one that was read from its text."""
    observer = observer or Observer()
    with observer.stage("compile"):
        observer.captured(program, inputs, outputs)
        return _for_host(program, program, (), inputs, outputs, options, observer, {"passes": 0.0})


def _for_host(
    program: Program,
    captured: Program,
    records: tuple[PassRecord, ...],
    inputs: Sequence[Layout],
    outputs: Sequence[Layout],
    options: Options,
    observer: Observer,
    seconds: dict[str, float],
) -> Compilation:
    graph = captured.graph
    with _timed("lower", seconds, observer):
        functions, reasons = _emulation(program, options)
        module = emit.lower(
            program,
            device=interop.device(),
            input_layouts=[layout.order for layout in inputs],
            output_layouts=[layout.order for layout in outputs],
            group_functions=functions,
            first_call=interop.KEEP_SUBNORMALS if interop.keeps_subnormals() else "",
        )
    observer.lowered(module)
    with _timed("xla", seconds, observer):
        loaded = _xla(graph, module)
    LEDGER.record(Entry("compile", graph.name))
    log.info("%s: %d ops in %d groups, %s", graph.name, len(graph.ops), len(program.plan.groups), seconds)
    executable = Executable(graph.name, loaded, inputs, outputs, module.faults)
    compilation = Compilation(program, captured, records, module, executable, seconds, tuple(functions), reasons)
    observer.compiled(compilation)
    for recorder in tuple(_recorders):
        recorder.append(compilation)
    return compilation


@contextmanager
def _timed(name: str, seconds: dict[str, float], observer: Observer) -> Iterator[None]:
    """A stage for its observer, and its wall seconds."""
    started = time.perf_counter()
    with observer.stage(name):
        yield
    seconds[name] = time.perf_counter() - started


def _xla(graph: Graph, module: emit.Module) -> Any:
    try:
        return compile_interruptibly(module.bytecode)
    except Exception as error:
        raise LoweringError(
            f"XLA could not compile {graph.name}: {error}",
            when="xla",
            hint="write the StableHLO with NEURON_COMPILER_DUMP=dir and report it",
        ) from error
