"""``torch.export`` programs → CompiledProgram, without Dynamo.

In: an ExportedProgram. Out: a CompiledProgram that shares its weights. A program without symbols is compiled at once;
one with symbols for each size when it is first called with.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram

from neuron_compiler import interop
from neuron_compiler import options as options_module
from neuron_compiler.capture import exported, symbols
from neuron_compiler.capture.build import device_with_index
from neuron_compiler.capture.sequences import SequenceBuilder
from neuron_compiler.errors import ArtifactError
from neuron_compiler.observers import Capture
from neuron_compiler.options import Options
from neuron_compiler.runtime import Executable
from neuron_compiler.saved import exported_text
from neuron_compiler.saved.bindings import Key
from neuron_compiler.saved.program import Built, CompiledProgram, Segment, WeightInfo
from neuron_compiler.saved.signature import Input, Read, Signature, SizeInput, TensorInput, ValueInput

_numbers = itertools.count()


def compile_exported(
    program: ExportedProgram, *, mode: str | None = None, options: Mapping[str, Any] | None = None
) -> CompiledProgram:
    """Compile what ``torch.export.export`` returned.

    Args:
        program: stays as it is; its parameters and buffers are shared, and changed where the program changes them.
        mode: any of PyTorch's modes; all mean the same here.
        options: as for ``torch.compile``; see ``neuron_compiler.Options``.

    Raises:
        CaptureError: the program holds what cannot be compiled, such as a script object.
        UnsupportedOp: under ``strict``, an op would run eagerly.
    """
    if not isinstance(program, ExportedProgram):
        raise ArtifactError(
            f"{type(program).__name__} is no exported program",
            when="compile_exported",
            hint="torch.export.export(model, args) gives one",
        )
    return compile_captured(program, f"export{next(_numbers)}", options_module.from_call(mode, options))


def compile_captured(program: ExportedProgram, name: str, chosen: Options) -> CompiledProgram:
    """Compile with these options, under this name."""
    found = exported.capture(program)
    source = Exports(program, found, name, chosen)
    compiled = CompiledProgram(
        name, signature_of(found), {w: _info(found, w) for w in found.weights}, chosen, source, "", dict(found.weights)
    )
    if not compiled.signature.reads:
        compiled.built.get((), lambda: source.build((), ()))
    return compiled


class Exports:
    """Builds bindings from an exported program."""

    def __init__(self, program: ExportedProgram, found: exported.Exported, name: str, options: Options) -> None:
        self.program, self.found = program, found
        capture = Capture.now(options, lambda: str(program.graph_module.print_readable(print_output=False)))
        self.builder = SequenceBuilder(found.module, name, options, capture, found.origins)

    def build(self, key: Key, flat: Sequence[Any]) -> Built:
        sources = self.found.sources
        # Read again: one that was loaded may name its symbols otherwise than the file does.
        numbers = symbols.numbers(sources, [source.read(flat) for source in sources])
        steps, made = self.builder.build(numbers)
        return Built(steps, tuple(Segment(c.program, serializer(c.executable)) for c in made))

    def exported(self) -> bytes:
        return exported_text.dumps(self.program)


def serializer(executable: Executable) -> Callable[[], bytes]:
    """What gives the machine code of an executable, when it is asked for."""
    return lambda: interop.serialize(executable.loaded)


def signature_of(found: exported.Exported) -> Signature:
    """The calling convention as plain data."""
    return Signature(
        tuple(map(_input, found.user)),
        tuple(a.name if isinstance(a, exported.Weight) else a for a in found.arguments),
        found.tokens,
        tuple(
            Read(str(s.symbol), s.argument, s.dimension, s.of_stride, int(s.scale), int(s.shift)) for s in found.sources
        ),
        dict(found.ranges),
        found.guards,
        found.in_spec,
        found.out_spec,
    )


def _input(value: Any) -> Input:
    if isinstance(value, torch.Tensor):
        size = tuple(exported.expression(s) for s in value.shape)
        return TensorInput(value.dtype, size, device_with_index(value.device))
    if isinstance(value, torch.SymInt):
        return SizeInput(exported.expression(value))
    return ValueInput(value)


def _info(found: exported.Exported, name: str) -> WeightInfo:
    weight = next(a for a in found.arguments if isinstance(a, exported.Weight) and a.name == name)
    tensor = found.weights[name]
    return WeightInfo(
        weight.kind,
        weight.persistent,
        tensor.dtype,
        tuple(tensor.shape),
        tuple(tensor.stride()),
        device_with_index(tensor.device),
    )
