"""What is told of one build of a graph: to its observers, the ledger, and the report of recompiles.

A build that shares every program with an earlier one compiles nothing, and nobody is told of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule

from neuron_compiler.buckets.prove import Refusal
from neuron_compiler.capture import frame as frames
from neuron_compiler.capture.buckets import Plan
from neuron_compiler.capture.build import Segment
from neuron_compiler.capture.origins import shortened
from neuron_compiler.compile import Compilation, Observer, compile_graph
from neuron_compiler.ir.plan import Program
from neuron_compiler.ledger import LEDGER, Entry
from neuron_compiler.options import Options
from neuron_compiler.report import recompiles
from neuron_compiler.report.buckets import bucket_text
from neuron_compiler.runtime import Executable, Layout

EVICTED = "a larger program_cache_size keeps the programs of more sizes"


@dataclass
class Caller:
    """The user's function that a graph belongs to.

    Attributes:
        function: its record in the report.
        symbols: what Dynamo calls the sizes, by the names of their symbols.
    """

    function: recompiles.Function
    symbols: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def now(cls, module: GraphModule, label: str) -> tuple[Caller, recompiles.Row | None]:
        """Of the compile that runs in this thread, and its row in the report where it is not the first."""
        frame = frames.current()
        if frame is None:
            return cls(recompiles.function(label, ""), _symbols(module)), None
        caller = cls(recompiles.function(frame.name, frame.site), _symbols(module))
        if not frame.guard:
            caller.function.start_over()
            return caller, None
        changed, advice = frames.change(frame)
        row = recompiles.Row("trace", changed, frame.guard, advice, frame.seconds)
        return caller, caller.function.add(row)


def _symbols(module: GraphModule) -> dict[str, str]:
    """``s77`` → ``x.size()[0]``, for the sizes that Dynamo passes as arguments."""
    found: dict[str, str] = {}
    for node in module.graph.nodes:
        value = node.meta.get("example_value") if node.op == "placeholder" else None
        name = getattr(getattr(node.meta.get("grapharg"), "source", None), "name", None)
        if isinstance(value, torch.SymInt | torch.SymFloat) and isinstance(name, str):
            found[str(value.node.expr)] = shortened(name)
    return found


@dataclass
class Watch:
    """One build, from what is known of its sizes to the last program.

    Args:
        options: of the compile.
        caller: whose graph it is.
        sizes: the symbols' numbers by name.
        before: those of the build before; empty for the first.
        of_tensors: the symbols that are sizes of arguments; the others are numbers.
    """

    options: Options
    caller: Caller
    sizes: Mapping[str, int | float]
    before: Mapping[str, int | float]
    of_tensors: frozenset[str]
    plan: Plan | None = None
    left_out: Mapping[str, Refusal] = field(default_factory=dict)
    observer: Observer = field(default_factory=Observer)
    row: recompiles.Row | None = None
    compiled: bool = False

    def observe(self, make: Callable[[], Observer]) -> Observer:
        """Who looks on; with a plan, made only when something is compiled."""
        self.observer = LateObserver(make) if self.plan is not None else make()
        return self.observer

    def planned(self, plan: Plan | None, left_out: Mapping[Any, Refusal]) -> None:
        """What was found out about buckets."""
        self.plan, self.left_out = plan, {str(symbol): refusal for symbol, refusal in left_out.items()}

    def compile(self, segment: Segment) -> Executable:
        """Compile a segment; the first of a new size starts a row of the report."""
        if not self.compiled:
            self.compiled = True
            if self.before:
                self.row = self.caller.function.join(recompiles.Row("size", self._changed(), advice=self._advice()))
            for refusal in dict.fromkeys(self.left_out.values()):
                LEDGER.record(Entry("unbucketed", refusal.op, refusal.cause, refusal.site))
        with recompiles.timed(self.row):
            return compile_graph(segment.graph, segment.inputs, segment.outputs, self.options, self.observer).executable

    def end(self) -> None:
        """All is compiled: the files of the dump that tell of sizes."""
        if self.options.buckets is not None and self.sizes:
            self.observer.note("buckets.txt", lambda: bucket_text(self._padded(), self._named(self.left_out)))
        if self.caller.function.rows:
            self.observer.note("recompiles.txt", lambda: f"{self.caller.function.report}\n")

    def dropped(self, sizes: Mapping[str, int | float]) -> None:
        """A program was dropped for this one."""
        words = ", ".join(f"{self._name(s)} = {n}" for s, n in sizes.items())
        self.caller.function.add(recompiles.Row("evicted", words, advice=EVICTED))

    # --- words -------------------------------------------------------------------------------------------------

    def _name(self, symbol: str) -> str:
        return self.caller.symbols.get(symbol, symbol)

    def _named(self, of: Mapping[str, Any]) -> dict[str, Any]:
        return {self._name(symbol): value for symbol, value in of.items()}

    def _padded(self) -> dict[str, tuple[int | float, int]]:
        buckets = {} if self.plan is None else {str(s): size for s, size in self.plan.sizes.items()}
        return {self._name(s): (self.sizes[s], size) for s, size in buckets.items()}

    def _changed(self) -> str:
        pairs = [(s, self.before.get(s), n) for s, n in self.sizes.items() if self.before.get(s) != n]
        return ", ".join(f"{self._name(s)}: {old} -> {new}" for s, old, new in pairs) or "a size seen before"

    def _advice(self) -> str:
        if self.left_out:
            causes = dict.fromkeys(
                f"{r.op} {r.cause}" + (f" ({r.site})" if r.site else "") for r in self.left_out.values()
            )
            return "not padded to a bucket: " + "; ".join(causes)
        changed = [s for s, n in self.sizes.items() if self.before.get(s) != n]
        if numbers := [self._name(s) for s in changed if s not in self.of_tensors]:
            return f"{', '.join(numbers)}: a number that programs are made for; pass it as a tensor, torch.tensor(...)"
        if self.plan is not None:
            return ""
        largest = max((self.sizes[s] for s in changed), default=0)
        if not isinstance(largest, int) or largest < 2:
            return ""
        bucket = 1 << (largest - 1).bit_length()
        return (
            f"options={{'buckets': 'powers_of_2'}}: one program for sizes {bucket // 2 + 1} to {bucket}, where the "
            "check proves that padding changes no result"
        )


class LateObserver(Observer):
    """An observer that is made when the first program is compiled; what it was told before is told to it then."""

    def __init__(self, make: Callable[[], Observer]) -> None:
        self._make = make
        self._made: Observer | None = None
        self._entries: Sequence[Entry] = ()

    def placed(self, entries: Sequence[Entry]) -> None:
        self._entries = entries

    def stage(self, name: str) -> AbstractContextManager[None]:
        if self._made is None:
            self._made = self._make()
            self._made.placed(self._entries)
        return self._made.stage(name)

    def note(self, name: str, text: Callable[[], str]) -> None:
        if self._made is not None:
            self._made.note(name, text)

    def captured(self, program: Program, inputs: Sequence[Layout], outputs: Sequence[Layout]) -> None:
        self._told.captured(program, inputs, outputs)

    def after_pass(self, index: int, pass_: Any, before: Program, after: Program, seconds: float) -> None:
        self._told.after_pass(index, pass_, before, after, seconds)

    def lowered(self, module: Any) -> None:
        self._told.lowered(module)

    def compiled(self, compilation: Compilation) -> None:
        self._told.compiled(compilation)

    @property
    def _told(self) -> Observer:
        # Every compile begins with a stage.
        return self._made or Observer()
