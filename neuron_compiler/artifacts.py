"""What ``TORCH_LOGS`` and ``TORCH_TRACE`` show of a compile: the same texts, to a logger and to tlparse.

In: the stages of a compile. Out: log records, once per compile and never per call. Invariant: a text is built only
where its logger is enabled or a trace is written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from neuron_compiler import interop, logs
from neuron_compiler.compile import Compilation, Observer
from neuron_compiler.ir import text
from neuron_compiler.ledger import Entry
from neuron_compiler.report.eager import fallbacks
from neuron_compiler.report.summary import barriers, groups


def _graph(compilation: Compilation) -> str:
    return f"{text.format(compilation.captured)}\nafter the passes:\n\n{text.format(compilation.program)}"


def _groups(compilation: Compilation) -> str:
    program = compilation.program
    return f"{groups(program)}\n\nedges that were not fused:\n\n{barriers(program)}\n"


def _hlo(compilation: Compilation) -> str:
    optimised = interop.optimised_hlo(compilation.executable.loaded)
    return f"{compilation.module.text()}\nas XLA optimised it:\n\n{optimised}"


ARTIFACTS: Mapping[str, Callable[[Compilation], str]] = {
    "neuron_graph": _graph,
    "neuron_groups": _groups,
    "neuron_hlo": _hlo,
}
"""What each artifact shows of one executable."""

FALLBACKS = "neuron_fallbacks"
"""The artifact of the whole graph."""


def enabled_loggers() -> dict[str, logging.Logger]:
    """Loggers of the artifacts that somebody asked for."""
    known = {name: logs.artifact_logger(name) for name in (*ARTIFACTS, FALLBACKS)}
    # An artifact that must be named is cut off from the handlers above it until it is.
    return {name: log for name, log in known.items() if log.isEnabledFor(logging.DEBUG) and log.hasHandlers()}


class Logs(Observer):
    """Writes the artifacts of ``TORCH_LOGS`` that are asked for."""

    def __init__(self, name: str, enabled: Mapping[str, logging.Logger]) -> None:
        self.name, self.enabled = name, enabled

    def placed(self, entries: Sequence[Entry]) -> None:
        if (logger := self.enabled.get(FALLBACKS)) is not None:
            logger.debug("%s", fallbacks(self.name, entries))

    def compiled(self, compilation: Compilation) -> None:
        for name, shown in ARTIFACTS.items():
            if (logger := self.enabled.get(name)) is not None:
                logger.debug("%s of %s:\n\n%s", name, compilation.program.graph.name, shown(compilation))


class Trace(Observer):
    """Writes the same artifacts for tlparse, and the stages into PyTorch's record of compile times.

    The compile id goes with each: a dynamic graph's bindings and some backward graphs are compiled while they run, when
    PyTorch knows no id.
    """

    def __init__(self, name: str, compile_id: Any = None) -> None:
        self.name, self.compile_id = name, compile_id

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        from torch._dynamo.utils import dynamo_timed

        with dynamo_timed(f"neuron_{name}", metadata={"graph": self.name}, compile_id=self.compile_id):
            yield

    def placed(self, entries: Sequence[Entry]) -> None:
        self._artifact(FALLBACKS, lambda: fallbacks(self.name, entries))

    def compiled(self, compilation: Compilation) -> None:
        for name, shown in ARTIFACTS.items():
            self._artifact(name, lambda shown=shown: shown(compilation))  # type: ignore[misc]

    def _artifact(self, name: str, payload: Callable[[], str]) -> None:
        from torch._logging import trace_structured

        trace_structured(
            "artifact",
            metadata_fn=lambda: {"name": name, "encoding": "string"},
            payload_fn=payload,
            expect_trace_id=False,
            compile_id=self.compile_id,
        )
