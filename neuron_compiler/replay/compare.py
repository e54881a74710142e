"""Compiles a Graph, runs it beside ATen's ops and tells by how much each result differs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from neuron_compiler import dtypes
from neuron_compiler import options as options_module
from neuron_compiler.compile import compile_graph
from neuron_compiler.ir import text
from neuron_compiler.ir.graph import DType, Graph, TensorType
from neuron_compiler.observers import observers_for
from neuron_compiler.options import Options
from neuron_compiler.replay.arguments import random_arguments
from neuron_compiler.replay.aten import evaluate
from neuron_compiler.report.table import table
from neuron_compiler.runtime import Layout

TOLERANCE: Mapping[DType, float] = {DType.F64: 1e-8, DType.C128: 1e-8, DType.F32: 1e-4, DType.C64: 1e-4}
"""Largest difference that is taken for rounding, relative to the largest magnitude in the expected tensor."""
NARROW_TOLERANCE = 5e-2
"""The same for floats of 16 bits and less."""


@dataclass(frozen=True)
class Difference:
    """How one value differs.

    Attributes:
        name: the value's.
        type: as recorded in the graph.
        largest: largest absolute difference; for integers and bools, the number of elements that differ.
        relative: ``largest`` over the largest expected magnitude; for integers and bools, the share that differs.
        fault: what is wrong beyond rounding; empty where nothing is.
        loc: the user's ``file:line``.
    """

    name: str
    type: TensorType
    largest: float
    relative: float
    fault: str
    loc: str


@dataclass(frozen=True)
class Comparison:
    """What came of running a graph both ways; ``str`` is the report.

    Attributes:
        graph: name of the graph.
        differences: of each result, or of each value.
        raised: the errors of the executable and of ATen, where there was one.
        notes: how the arguments were made.
    """

    graph: str
    differences: tuple[Difference, ...] = ()
    raised: tuple[Exception | None, Exception | None] = (None, None)
    notes: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        """No value differs by more than rounding; where one side raises, the other raises the same type of error."""
        compiled, expected = self.raised
        return type(compiled) is type(expected) and not any(d.fault for d in self.differences)

    def __str__(self) -> str:
        lines = [f"{self.graph}: compiled against ATen op by op", *self.notes]
        if self.raised != (None, None):
            for who, error in zip(("compiled", "ATen"), self.raised, strict=True):
                lines.append(f"{who}: {'no error' if error is None else f'{type(error).__name__}: {error}'}")
        if self.differences:
            rows = [(d.name, d.type, f"{d.largest:.3g}", f"{d.relative:.3g}", d.fault, d.loc) for d in self.differences]
            header = ("value", "type", "largest difference", "relative", "fault", "line")
            lines.append(table(header, rows, ("largest difference", "relative")))
        return "\n".join([*lines, self._verdict()])

    def _verdict(self) -> str:
        if self.agrees:
            return "agrees"
        wrong = [d for d in self.differences if d.fault]
        return (
            f"DIFFERS: {len(wrong)} of {len(self.differences)}, the first is %{wrong[0].name}" if wrong else "DIFFERS"
        )


def compare(
    graph: Graph,
    arguments: Sequence[torch.Tensor],
    result_strides: Sequence[tuple[int, ...]] | None = None,
    options: Options | None = None,
    tolerance: float | None = None,
) -> Comparison:
    """Compile a graph, run it and ATen's ops on the same arguments, and compare the results.

    Args:
        graph: what to compile.
        arguments: in the order of its inputs; their strides are those it is compiled for.
        result_strides: strides in which it returns its results; None takes those that ATen gives them.
        options: how to compile.
        tolerance: relative difference taken for rounding; None has one for each element type.

    What the compiler raises is raised; what a run raises is part of the comparison.
    """
    values: dict[str, Any] = {}
    found: list[torch.Tensor] = []
    expected_error = found_error = None
    try:
        values = evaluate(graph, arguments)
    except Exception as error:
        expected_error = error
    strides = result_strides or [_strides(values.get(name), graph.tensor_type(name)) for name in graph.outputs]
    inputs = [Layout.of(t.shape, t.stride()) for t in arguments]
    outputs = [Layout.of(graph.tensor_type(n).shape, s) for n, s in zip(graph.outputs, strides, strict=True)]
    options = options or Options()
    compiled = compile_graph(graph, inputs, outputs, options, observers_for(options, graph.name))
    try:
        found = compiled.executable(arguments)
    except Exception as error:
        found_error = error
    if expected_error is not None or found_error is not None:
        return Comparison(graph.name, raised=(found_error, expected_error))
    pairs = zip(graph.outputs, found, strict=True)
    return Comparison(graph.name, tuple(_difference(graph, name, t, values[name], tolerance) for name, t in pairs))


def _strides(value: Any, type_: TensorType) -> tuple[int, ...]:
    return tuple((torch.empty(type_.shape, device="meta") if value is None else value).stride())


def _difference(
    graph: Graph, name: str, found: torch.Tensor, expected: torch.Tensor, tolerance: float | None
) -> Difference:
    type_ = graph.tensor_type(name)
    loc = graph.defs[name].loc if name in graph.defs else ""
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        fault = f"{dtypes.type_of(found)}, ATen gives {dtypes.type_of(expected)}"
        return Difference(name, type_, float("nan"), float("nan"), fault, loc)
    if type_.numel == 0:
        return Difference(name, type_, 0.0, 0.0, "", loc)
    if not (type_.dtype.is_floating or type_.dtype.is_complex):
        number = int((found.numpy() != expected.numpy()).sum())
        return Difference(name, type_, number, number / type_.numel, f"{number} elements" if number else "", loc)
    largest, relative, unlike = _float_difference(found, expected)
    limit = tolerance if tolerance is not None else TOLERANCE.get(type_.dtype, NARROW_TOLERANCE)
    fault = f"{unlike} elements are nan or inf on one side" if unlike else ""
    return Difference(name, type_, largest, relative, fault or ("beyond rounding" if relative > limit else ""), loc)


def _float_difference(found: torch.Tensor, expected: torch.Tensor) -> tuple[float, float, int]:
    """Largest finite difference, the same over the largest magnitude, and elements that are not finite on one side."""
    wide = torch.complex128 if found.is_complex() else torch.float64
    # Narrow floats have no direct way to float64.
    a, b = ((t.to(torch.float32) if t.dtype.itemsize == 1 else t).to(wide) for t in (found, expected))
    same = (a == b) | (a.isnan() & b.isnan())
    finite = a.isfinite() & b.isfinite()
    unlike = int((~same & ~finite).sum())
    if not bool(finite.any()):
        return 0.0, 0.0, unlike
    largest = float((a - b)[finite].abs().max())
    magnitude = float(b[finite].abs().max())
    return largest, largest / magnitude if magnitude else largest, unlike


def from_command_line(
    ir: Path,
    argument_strides: Mapping[str, tuple[int, ...]],
    result_strides: Sequence[tuple[int, ...]],
    options: Mapping[str, Any],
    argv: Sequence[str] | None = None,
) -> Comparison:
    """What ``repro.py`` does: reads the flags, makes arguments, compares.

    Args:
        ir: the file to compile where no other is given.
        argument_strides: by name of the input.
        result_strides: by position.
        options: as given to ``torch.compile``; those of the environment come after.
        argv: the flags; None takes the command line's.
    """
    parser = argparse.ArgumentParser(description="Compile a dumped program and compare it with ATen, op by op.")
    parser.add_argument("--ir", type=Path, default=ir, help="another .ir file (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the random arguments (default: %(default)s)")
    parser.add_argument("--values", action="store_true", help="compare every value, not only the results")
    parser.add_argument("--tolerance", type=float, help="relative difference that is taken for rounding")
    flags = parser.parse_args(argv)
    graph = text.parse(flags.ir.read_text(encoding="utf-8")).graph
    strides: Sequence[tuple[int, ...]] | None = result_strides
    if flags.values:
        graph = replace(graph, outputs=tuple(op.result for op in graph.ops if isinstance(op.type, TensorType)))
        strides = None
    elif len(result_strides) != len(graph.outputs):
        strides = None
    arguments, notes = _finite_arguments(graph, argument_strides, flags.seed)
    chosen = options_module.from_call(options=options)
    found = compare(graph, arguments, strides, chosen, flags.tolerance)
    return replace(found, notes=notes)


def _finite_arguments(
    graph: Graph, strides: Mapping[str, tuple[int, ...]], seed: int
) -> tuple[list[torch.Tensor], tuple[str, ...]]:
    """Normal deviates; without their sign where the results would hold NaN, which agrees with anything that is NaN."""
    arguments = random_arguments(graph, strides, seed)
    try:
        values = evaluate(graph, arguments)
    except Exception as error:
        return arguments, (f"seed {seed}; ATen raises {type(error).__name__} on these arguments",)
    results = [values[name] for name in graph.outputs]
    if any(t.is_floating_point() and bool(t.to(torch.float32).isnan().any()) for t in results):
        return random_arguments(graph, strides, seed, positive=True), (f"seed {seed}; positive floats",)
    return arguments, (f"seed {seed}",)
