"""Writes one captured graph into one folder while it is compiled, so that a compile that fails leaves what it reached.

The folder holds the files of the graph's first executable; those of others, where eager ops split the graph, are in
``segment1``, ``segment2``, ... inside it.
"""

from __future__ import annotations

import shlex
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from neuron_compiler import interop
from neuron_compiler.compile import Compilation, Observer
from neuron_compiler.dump import repro
from neuron_compiler.dump.folder import Folder
from neuron_compiler.errors import DumpError, NeuronCompilerError
from neuron_compiler.ir import text
from neuron_compiler.ir.plan import Program
from neuron_compiler.ledger import Entry
from neuron_compiler.options import Options
from neuron_compiler.report.eager import fallbacks
from neuron_compiler.report.hlo import hlo_map
from neuron_compiler.report.kernels import kernels
from neuron_compiler.report.summary import summary, timings
from neuron_compiler.runtime import Layout

FIRST_PASS = 3
"""Number of the file of the first pass: 00 and 01 are the FX graphs, 02 is the input."""


def _optimised(compilation: Compilation) -> str:
    return interop.optimised_hlo(compilation.executable.loaded)


AT_THE_END: Mapping[str, Callable[[Compilation], str]] = {
    "summary.txt": summary,
    "timings.tsv": timings,
    "kernels.txt": kernels,
    "xla_optimised.txt": _optimised,
    "hlo_map.txt": lambda compilation: hlo_map(_optimised(compilation), compilation.program),
}
"""Files that need the whole compilation; a new one is one line here."""


class Dump(Observer):
    """The observer that writes ``root/0003_name/``.

    Args:
        root: folder of all dumps.
        name: of the captured graph.
        options: of the compile, for ``repro.py``.

    Every method raises DumpError where it cannot write.
    """

    def __init__(self, root: Path, name: str, options: Options) -> None:
        self.name = name
        self.options = options
        self.folder = Folder.numbered(root, name)
        self.segment = self.folder
        self.segments = 0
        self._written: list[tuple[Program, str]] = []

    def traced(self, dynamo: str, aot: Callable[[], str]) -> None:
        if dynamo:
            self.folder.write("00_dynamo.py", dynamo)
        self.folder.write("01_aot.py", aot())

    def placed(self, entries: Sequence[Entry]) -> None:
        self.folder.write("fallbacks.txt", fallbacks(self.name, entries))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        try:
            yield
        except DumpError:
            raise
        except NeuronCompilerError as error:
            try:
                if name == "passes":
                    self._broken(error)
                if name == "compile":
                    self.segment.write("error.txt", "".join(traceback.format_exception(error)))
            except DumpError as unwritten:
                # The compile's own error is what the user has to see.
                error.add_note(str(unwritten))
            raise

    def captured(self, program: Program, inputs: Sequence[Layout], outputs: Sequence[Layout]) -> None:
        self.segment = self.folder if self.segments == 0 else self.folder.below(f"segment{self.segments}")
        self.segments += 1
        self._written = []
        self._write_program(program, "02_input.ir")
        self.segment.write("repro.py", repro.script(program.graph, inputs, outputs, self.options))

    def after_pass(self, index: int, pass_: Any, before: Program, after: Program, seconds: float) -> None:
        if after is not before:
            self._write_program(after, f"{FIRST_PASS + index:02d}_{pass_.name}.ir")

    def lowered(self, module: Any) -> None:
        self.segment.write("stablehlo.mlir", module.text())

    def compiled(self, compilation: Compilation) -> None:
        for name, written in AT_THE_END.items():
            self.segment.write(name, written(compilation))

    def note(self, name: str, text: Callable[[], str]) -> None:
        self.folder.write(name, text())

    def _write_program(self, program: Program, name: str) -> None:
        self.segment.write(name, _printed(program))
        self._written.append((program, name))

    def _file_of(self, program: Program) -> str | None:
        return next((name for written, name in reversed(self._written) if written == program), None)

    def _broken(self, error: NeuronCompilerError) -> None:
        """Mark the illegal program's file, and say how to run the pass again on the last legal one."""
        failure: Any = error.failure
        if failure is None:
            return
        broken = failure.before if failure.index < 0 else failure.after
        if broken is not None:
            name = self._file_of(broken) or f"{FIRST_PASS + failure.index:02d}_{failure.name.partition('{')[0]}.ir"
            self.segment.write(f"{name.removesuffix('.ir')}.BROKEN.ir", _printed(broken))
            self.segment.remove(name)
        if failure.index >= 0 and (good := self._file_of(failure.before)) is not None:
            command = ["neuron-compiler", "opt", str(self.segment.path / good), "-p", failure.name]
            error.suggest(shlex.join(command))


def _printed(program: Program) -> str:
    """A program as IR text; as Python shows it where a pass left something in it that has no text form."""
    try:
        return text.format(program)
    except TypeError as error:
        return f"# cannot be printed: {error}\n{program!r}\n"
