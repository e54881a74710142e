"""The steps of one binding as JSON and back; what they run, the segments, is kept beside them.

In: a Sequence, or the JSON of one with the executables of its segments. Out: the other. Invariant: a step that has no
form, such as an operator that holds a graph of its own, raises ``Inexpressible``: nothing is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from neuron_compiler.errors import ArtifactError
from neuron_compiler.ledger import Entry
from neuron_compiler.runtime import Executable, Layout
from neuron_compiler.saved.values import Inexpressible, decode, device, encode, function, function_name
from neuron_compiler.sequence import RunEager, RunExecutable, Step, Writeback
from neuron_compiler.sequence import Sequence as Steps

ERRORS: Mapping[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        AssertionError,
        IndexError,
        NotImplementedError,
        OverflowError,
        RuntimeError,
        TypeError,
        ValueError,
        ZeroDivisionError,
        torch.linalg.LinAlgError,
    )
}
"""Errors that a run-time check of a program may raise."""


def to_json(steps: Steps) -> dict[str, Any]:
    """The steps; segments are numbered in the order in which they run."""
    if steps.constants:
        kinds = {type(constant).__name__ for constant in steps.constants}
        raise Inexpressible(f"a step holds a graph of its own ({', '.join(sorted(kinds))})")
    written: list[dict[str, Any]] = []
    segments = 0
    for step in steps.steps:
        if isinstance(step, RunExecutable):
            written.append({"run": segments, "reads": list(step.reads), "writes": list(step.writes)})
            segments += 1
        elif isinstance(step, RunEager):
            written.append(
                {
                    "call": function_name(step.function),
                    "args": [encode(value) for value in step.args],
                    "kwargs": [[name, encode(value)] for name, value in step.kwargs],
                    "write": step.write,
                    "entry": None if step.entry is None else list(vars(step.entry).values()),
                }
            )
        else:
            written.append({"copy_into": step.target, "value": step.value})
    outputs = [encode(value) for value in steps.outputs]
    return {"arguments": steps.arguments, "steps": written, "slots": steps.slots, "outputs": outputs}


def from_json(found: Mapping[str, Any], executables: Sequence[Executable]) -> Steps:
    """The steps with these executables."""
    steps = [_step(step, executables) for step in found["steps"]]
    return Steps(found["arguments"], (), steps, found["slots"], [decode(value) for value in found["outputs"]])


def _step(found: Mapping[str, Any], executables: Sequence[Executable]) -> Step:
    if "run" in found:
        return RunExecutable(executables[found["run"]], tuple(found["reads"]), tuple(found["writes"]))
    if "call" in found:
        kwargs = tuple((name, decode(value)) for name, value in found["kwargs"])
        entry = None if found["entry"] is None else Entry(*found["entry"])
        return RunEager(function(found["call"]), tuple(map(decode, found["args"])), kwargs, found["write"], entry)
    return Writeback(found["copy_into"], found["value"])


def executable_to_json(executable: Executable) -> dict[str, Any]:
    """All that is known of an executable but its machine code."""
    for _, error in executable.faults:
        if ERRORS.get(error.__name__) is not error:
            raise Inexpressible(f"a run-time check raises {error.__name__}, which has no form in a file")
    return {
        "name": executable.name,
        "inputs": [_layout_to_json(layout) for layout in executable.inputs],
        "outputs": [_layout_to_json(layout) for layout in executable.outputs],
        "faults": [[message, error.__name__] for message, error in executable.faults],
    }


def layouts(found: Mapping[str, Any], side: str) -> tuple[Layout, ...]:
    """Layouts of the ``inputs`` or ``outputs`` of a segment."""
    return tuple(Layout.of(size, stride, device(place)) for size, stride, place in found[side])


def faults(found: Mapping[str, Any]) -> tuple[tuple[str, type[Exception]], ...]:
    """Run-time checks of a segment."""
    if unknown := [name for _, name in found["faults"] if name not in ERRORS]:
        raise ArtifactError(f"the program raises {unknown[0]}, which this release does not know")
    return tuple((message, ERRORS[name]) for message, name in found["faults"])


def _layout_to_json(layout: Layout) -> list[Any]:
    return [list(layout.size), list(layout.stride), str(layout.device)]
