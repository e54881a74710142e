"""One model under all systems: first calls, results checked against eager, then times taken in turns.

In: a catalogue entry. Out: a ``Row``, which ``to_json`` turns into plain data. Invariant: a system whose results are
wrong is not timed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from neuron_compiler.compile import Compilation
from neuron_compiler.measure import clock
from neuron_compiler.measure.difference import HALF_FACTOR, RMS_LIMIT, Difference, difference
from neuron_compiler.measure.systems import EAGER, SYSTEMS, Call, Prepared, prepare
from neuron_compiler.models import Entry, Size
from neuron_compiler.models.example import Example

Tell = Callable[[str], None]
"""Told, in a few words, what is being done."""


@dataclass(frozen=True)
class Result:
    """One system on one model.

    Attributes:
        first_call_seconds: wall seconds of the first call, compiling included; None if it never ran.
        seconds: per call, one figure a round.
        difference: from eager's results; in 16-bit types from those of float32.
        verdict: why the results are not good enough, or why the system did not run; empty where all is well.
        fallbacks: ops that ran eagerly in the first call.
        executables: number of XLA executables; 0 for other systems.
    """

    first_call_seconds: float | None = None
    seconds: tuple[float, ...] = ()
    difference: Difference = field(default_factory=Difference)
    verdict: str = ""
    fallbacks: int = 0
    executables: int = 0


@dataclass(frozen=True)
class Row:
    """All systems on one model."""

    model: str
    title: str
    dtype: str
    train: bool
    results: Mapping[str, Result]
    compilations: tuple[Compilation, ...] = field(default=(), compare=False)

    @property
    def correct(self) -> bool:
        """Whether every system that ran gave good results."""
        return not any(r.verdict for r in self.results.values() if r.first_call_seconds is not None)


def measure(
    entry: Entry,
    *,
    size: Size = Size.FULL,
    systems: Sequence[str] = SYSTEMS,
    rounds: int = 10,
    dtype: torch.dtype = torch.float32,
    train: bool = False,
    options: Mapping[str, Any] | None = None,
    tell: Tell = lambda _: None,
) -> Row:
    """Build a model, run it with each system, check, and take times.

    Args:
        entry: the model.
        size: how large it is built.
        systems: which of ``SYSTEMS``; eager is always among them, as the reference.
        rounds: of timing; 0 takes no times.
        dtype: of weights and inputs.
        train: forward and backward instead of forward alone.
        options: of this compiler.
        tell: for a progress display.
    """
    tell("building")
    example = entry.builder(size)
    reference: Example | None = None
    if dtype is not torch.float32:
        # The weights as rounded, computed in float32: what is measured is the arithmetic, not the rounding of weights.
        example = example.to(dtype)
        reference = example.to(torch.float32)
    prepared: dict[str, Prepared] = {}
    for system in dict.fromkeys((EAGER, *systems)):
        tell(f"{system}: first call")
        prepared[system] = prepare(system, example, train=train, options=options)
    wanted = prepared[EAGER].results
    if reference is not None:
        tell("float32 reference")
        wanted = prepare(EAGER, reference, train=train).results
    found = judge(prepared, wanted, train)
    calls = {name: p.call for name, p in prepared.items() if p.call is not None and not found[name].verdict}
    seconds: dict[str, tuple[float, ...]] = {}
    if rounds:
        seconds = clock.interleaved(_named(calls), rounds, each_round=lambda n: tell(f"round {n} of {rounds}"))
    results = {name: dataclasses.replace(r, seconds=seconds.get(name, ())) for name, r in found.items()}
    compilations = tuple(c for p in prepared.values() for c in p.compilations)
    return Row(entry.name, entry.title, str(dtype).removeprefix("torch."), train, results, compilations)


def _named(calls: Mapping[str, Call | None]) -> dict[str, Call]:
    return {name: call for name, call in calls.items() if call is not None}


def judge(prepared: Mapping[str, Prepared], wanted: Sequence[torch.Tensor], train: bool) -> dict[str, Result]:
    """Each system's distance from the wanted results, and whether it is small enough.

    float32 results may be away from eager's by ``RMS_LIMIT``; 16-bit results from float32's by ``HALF_FACTOR`` times
    eager's own distance.
    """
    half = any(a.dtype is not b.dtype for a, b in zip(prepared[EAGER].results, wanted, strict=True))
    floor = GRADIENT_FLOOR if train else 0.0
    found: dict[str, Result] = {}
    limit = RMS_LIMIT
    for name, system in prepared.items():
        if system.call is None:
            found[name] = Result(verdict=system.absent)
            continue
        apart = difference(system.results, wanted, dtypes=not half, floor=floor)
        if half and name == EAGER:
            limit = HALF_FACTOR * apart.rms
        found[name] = Result(
            system.first_call_seconds,
            difference=apart,
            verdict=verdict(apart, limit),
            fallbacks=system.fallbacks,
            executables=len(system.compilations),
        )
    return found


GRADIENT_FLOOR = 1e-3
"""Gradients that are zero but for rounding (of a key's bias, say) are measured by this share of the largest one."""


def verdict(apart: Difference, limit: float) -> str:
    """Why a difference is too large; empty where it is not."""
    if apart.fault:
        return apart.fault
    if not apart.rms <= limit:
        return f"relative RMS error {apart.rms:.1e} is over {limit:.1e}"
    return ""


def to_json(row: Row) -> dict[str, Any]:
    """The row as plain data, with the spreads that tables show."""
    reference = row.results[EAGER].seconds
    systems: dict[str, Any] = {}
    for name, result in row.results.items():
        shown = dataclasses.asdict(result)
        if result.seconds:
            shown["spread"] = dataclasses.asdict(clock.Spread.of(result.seconds))
            shown["times_eager"] = dataclasses.asdict(clock.ratio(reference, result.seconds))
        systems[name] = shown
    noise = dataclasses.asdict(clock.noise(reference)) if reference else None
    return {
        "model": row.model,
        "title": row.title,
        "dtype": row.dtype,
        "train": row.train,
        "eager_against_itself": noise,
        "systems": systems,
    }
