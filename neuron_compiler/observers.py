"""Who looks at a compile: chosen once per graph, told of every stage as one.

The dump writes files (``NEURON_COMPILER_DUMP``, ``TORCH_COMPILE_DEBUG``), the logs answer ``TORCH_LOGS``, the trace
answers ``TORCH_TRACE``, progress draws on a terminal. Invariant: a text is built only for somebody who reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from neuron_compiler import compile_metrics, progress
from neuron_compiler.artifacts import Logs, Trace, enabled_loggers
from neuron_compiler.compile import Compilation, Observer
from neuron_compiler.dump.folder import roots
from neuron_compiler.dump.observer import Dump
from neuron_compiler.errors import NeuronCompilerError
from neuron_compiler.ir.plan import Program
from neuron_compiler.ledger import Entry
from neuron_compiler.options import Options
from neuron_compiler.runtime import Layout


@dataclass(frozen=True)
class Capture:
    """What is known only while Dynamo hands a graph over; its parts may be compiled much later.

    Attributes:
        dynamo: Dynamo's graph as Python; empty where nobody will read it.
        compile_id: PyTorch's id of the compile, for the trace.
    """

    dynamo: str = ""
    compile_id: Any = None

    @classmethod
    def now(cls, options: Options, readable: Callable[[], str]) -> Capture:
        """Of the compile that runs in this thread; ``readable`` prints Dynamo's graph."""
        from torch._guards import CompileContext

        return cls(readable() if roots(options) else "", CompileContext.current_compile_id())


def observers_for(options: Options, name: str, capture: Capture | None = None) -> Observers:
    """Everybody who looks at the compile of one graph.

    Args:
        options: of the compile.
        name: the captured graph's.
        capture: what Dynamo knew of it; None outside of PyTorch's compile.
    """
    dumps: list[Observer] = [Dump(root, name, options) for root in roots(options)]
    chosen: list[Observer] = [Metrics(), Trace(name, capture.compile_id if capture is not None else None)]
    if enabled := enabled_loggers():
        chosen.append(Logs(name, enabled))
    if progress.wanted():
        chosen.append(progress.Progress(name))
    return Observers([*chosen, *(dumps or [AskForDump()])])


class Observers(Observer):
    """Several observers as one, told in their order."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self.observers = tuple(observers)

    def traced(self, dynamo: str, aot: Callable[[], str]) -> None:
        for observer in self.observers:
            observer.traced(dynamo, aot)

    def placed(self, entries: Sequence[Entry]) -> None:
        for observer in self.observers:
            observer.placed(entries)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        with ExitStack() as stack:
            for observer in self.observers:
                stack.enter_context(observer.stage(name))
            yield

    def captured(self, program: Program, inputs: Sequence[Layout], outputs: Sequence[Layout]) -> None:
        for observer in self.observers:
            observer.captured(program, inputs, outputs)

    def after_pass(self, index: int, pass_: Any, before: Program, after: Program, seconds: float) -> None:
        for observer in self.observers:
            observer.after_pass(index, pass_, before, after, seconds)

    def lowered(self, module: Any) -> None:
        for observer in self.observers:
            observer.lowered(module)

    def compiled(self, compilation: Compilation) -> None:
        for observer in self.observers:
            observer.compiled(compilation)

    def note(self, name: str, text: Callable[[], str]) -> None:
        for observer in self.observers:
            observer.note(name, text)


class Metrics(Observer):
    """Keeps how long each stage took."""

    def compiled(self, compilation: Compilation) -> None:
        ops = compilation.captured.graph.ops
        collective = any(op.kind.startswith("_c10d_functional.") for op in ops)
        compile_metrics.add(compilation.captured.graph.name, len(ops), collective, compilation.seconds)


class AskForDump(Observer):
    """Where nothing is dumped: an error in a pass says how to see the program before and after it."""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        try:
            yield
        except NeuronCompilerError as error:
            if name == "passes" and error.failure is not None:
                error.suggest("NEURON_COMPILER_DUMP=folder writes the program before and after the pass")
            raise
