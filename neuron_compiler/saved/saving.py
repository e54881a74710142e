"""``save``: a compiled program → a file.

In: a CompiledProgram, or an ExportedProgram, which is compiled first. Out: the file, whole or not at all. It holds the
text of each program after the passes, the machine code, the steps around them, and the weights or their names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from neuron_compiler import interop
from neuron_compiler.errors import ArtifactError
from neuron_compiler.saved import archive, machine, steps, tensor_file
from neuron_compiler.saved import weights as weights_module
from neuron_compiler.saved.bindings import Key
from neuron_compiler.saved.program import Built, CompiledProgram
from neuron_compiler.saved.values import Inexpressible

WEIGHTS = ("safetensors", "reference")
KEPT_OPTIONS = ("target", "strict", "emulation", "pass_limit", "program_cache_size")
"""Options that a file keeps; dumps and verification are of the process that runs it."""

EXPORTED, TENSORS = "exported.json", "weights.safetensors"


def save(
    compiled: Any,
    path: str | os.PathLike[str],
    weights: str = "safetensors",
    *,
    options: Mapping[str, Any] | None = None,
) -> None:
    """Write a compiled program to a file.

    Args:
        compiled: what ``compile_exported`` or ``load`` returned; an ExportedProgram is compiled first.
        path: the file; one that is there is replaced when the new one is complete.
        weights: ``"safetensors"`` writes parameters and buffers into the file, memory that several share once;
            ``"reference"`` writes the names of those that a ``state_dict`` holds, to be given to ``load``.
        options: of the compile, for an ExportedProgram.

    Raises:
        ArtifactError: the program has no form in a file, or the file cannot be written.
    """
    if weights not in WEIGHTS:
        raise ArtifactError(f"weights is {weights!r}; it takes one of {', '.join(map(repr, WEIGHTS))}", when="save")
    program = _compiled(compiled, options)
    try:
        signature = program.signature.to_json()
    except Inexpressible as error:
        raise ArtifactError(
            f"{program.name} cannot be saved: {error}",
            when="save",
            hint="register the type with torch.export.register_dataclass, or take and return tuples and dictionaries",
        ) from None
    with archive.writing(path) as writer:
        described, pieces = weights_module.table(
            program.infos, program.weights, lambda info: weights == "safetensors" or not info.persistent
        )
        bindings, left_out = [], ""
        for key, built in program.bindings().items():
            try:
                bindings.append(_binding(writer, key, built, len(bindings)))
            except Inexpressible as error:
                left_out = str(error)
        exported, reason = _exported(writer, program, bool(program.signature.reads) or bool(left_out))
        if left_out and exported is None:
            raise ArtifactError(f"{program.name} cannot be saved: {left_out}, and {reason}", when="save")
        if pieces:
            writer.add(TENSORS, tensor_file.content({piece.name: piece.make() for piece in pieces}))
        writer.finish(
            {
                "name": program.name,
                "versions": machine.versions(),
                "machine": machine.describe(),
                "host_calls": sorted(interop.host_calls()),
                "options": {name: getattr(program.options, name) for name in KEPT_OPTIONS},
                "signature": signature,
                "weights": described,
                "bindings": bindings,
                "exported": exported,
                "why_not_exported": reason,
                "left_out": left_out,
            }
        )


def _compiled(given: Any, options: Mapping[str, Any] | None) -> CompiledProgram:
    if isinstance(given, CompiledProgram):
        if options:
            raise ArtifactError("options are of a compile, and the program is compiled", when="save")
        return given
    if isinstance(given, torch.export.ExportedProgram):
        from neuron_compiler.saved.exporting import compile_exported

        return compile_exported(given, options=options)
    what = type(given).__name__
    if isinstance(given, torch.nn.Module) or callable(given):
        what = f"a {what}, which torch.compile compiles anew for what it is called with, and"
    raise ArtifactError(
        f"{what} is no program that can be saved",
        when="save",
        hint="neuron_compiler.save(torch.export.export(module, args), path)",
    )


def _binding(writer: archive.Writer, key: Key, built: Built, number: int) -> dict[str, Any]:
    found = {"key": list(key), **steps.to_json(built.steps)}
    run = [step.executable for step in built.steps.steps if isinstance(step, steps.RunExecutable)]
    described = [steps.executable_to_json(executable) for executable in run]
    for index, (segment, description) in enumerate(zip(built.segments, described, strict=True)):
        place = f"programs/{number:04}/{index:04}"
        description["program"] = writer.add(f"{place}.ir", segment.text.encode())
        description["executable"] = writer.add(f"{place}.xla", segment.serialized())
    return {**found, "segments": described}


def _exported(writer: archive.Writer, program: CompiledProgram, needed: bool) -> tuple[str | None, str]:
    """The name of the member with the exported program, and why there is none."""
    if program.source is None:
        return None, program.why_no_source
    if not needed:
        return None, "it has one size only"
    try:
        return writer.add(EXPORTED, program.source.exported()), ""
    except Inexpressible as error:
        return None, str(error)
