"""``load``: a file → a CompiledProgram, without FX, Dynamo or the passes where the machine code fits.

In: a file that ``save`` wrote. Out: a program that computes to the bit what the saved one did. Machine code of another
machine or release is made again from the text of the program, which is logged and counted.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from neuron_compiler import interop
from neuron_compiler import options as options_module
from neuron_compiler.errors import ArtifactError
from neuron_compiler.ledger import LEDGER, Entry
from neuron_compiler.options import Options
from neuron_compiler.runtime import Executable
from neuron_compiler.saved import archive, machine, steps, tensor_file, values
from neuron_compiler.saved import weights as weights_module
from neuron_compiler.saved.bindings import Key
from neuron_compiler.saved.program import Built, CompiledProgram, Segment, WeightInfo
from neuron_compiler.saved.signature import Signature

if TYPE_CHECKING:
    from neuron_compiler.saved.exporting import Exports

log = logging.getLogger("neuron_compiler.saved")

EXPORTED, TENSORS = "exported.json", "weights.safetensors"


def load(path: str | os.PathLike[str], weights: Any = None) -> CompiledProgram:
    """Read a compiled program.

    A file holds machine code: load one only if you trust who made it, as you would a shared library.

    Args:
        path: a file that ``save`` wrote.
        weights: a module, a mapping of names to tensors such as a ``state_dict``, or the path of a safetensors file;
            they go before those of the file, are used where they lie, and are required where the file has only names.

    Raises:
        ArtifactError: the file is damaged, foreign or of a later release, or the weights do not belong to it.
    """
    outside = None if weights is None else weights_module.given(weights)
    try:
        with archive.reading(path) as reader:
            return _load(reader, outside)
    except ArtifactError:
        raise
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        raise ArtifactError(
            f"{os.fspath(path)} is damaged: its manifest is not as a program's is ({type(error).__name__}: {error})",
            when="load",
        ) from error


def _load(reader: archive.Reader, outside: Mapping[str, torch.Tensor] | None) -> CompiledProgram:
    manifest = reader.manifest
    described = manifest["weights"]
    kept = {name: value for name, value in manifest["options"].items() if name in options_module.KNOWN}
    options = replace(options_module.from_environment(), **kept)
    held = _held(reader, described)
    chosen = weights_module.chosen(described, held, outside)
    name, signature = manifest["name"], Signature.from_json(manifest["signature"])
    infos = {weight: _info(found) for weight, found in described.items()}
    program = CompiledProgram(name, signature, infos, options, None, manifest["why_not_exported"], chosen)
    if manifest["exported"] is not None:
        program.source = Reexported(reader.read(manifest["exported"]), program)
    why = machine.why_other(manifest["versions"], manifest["machine"])
    if not why and (missing := set(manifest["host_calls"]) - interop.host_calls()):
        why = (
            f"made where programs may call {', '.join(sorted(missing))} of the host's library, which here is not there"
        )
    for found in manifest["bindings"]:
        members = [(reader.read(s["program"]), reader.read(s["executable"])) for s in found["segments"]]
        program.loaded[tuple(found["key"])] = partial(_built, name, found, members, options, why)
    if why:
        _say(name, f"its machine code was {why}; it is compiled again from its text")
    elif left_out := manifest["left_out"]:
        _say(name, f"{left_out}, which has no form in a file; it is compiled again from the exported program")
    if not signature.reads:
        program.prepare()
    return program


def _say(name: str, why: str) -> None:
    LEDGER.record(Entry("recompile", name, why))
    log.warning("%s: %s", name, why)


def _held(reader: archive.Reader, described: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The weights in the file."""
    if TENSORS not in reader.manifest["members"]:
        return {}

    tensors = tensor_file.parsed(reader.read(TENSORS), f"{TENSORS} of {reader.path}")
    return weights_module.restored(described, tensors)


def _info(found: Mapping[str, Any]) -> WeightInfo:
    dtype, device = values.dtype(found["dtype"]), values.device(found["device"])
    return WeightInfo(found["kind"], found["persistent"], dtype, tuple(found["size"]), tuple(found["stride"]), device)


def _built(
    name: str, found: Mapping[str, Any], members: Sequence[tuple[bytes, bytes]], options: Options, why: str
) -> Built:
    """A binding of the file, made ready to run."""
    executables, segments = [], []
    for segment, (text, code) in zip(found["segments"], members, strict=True):
        program = text.decode()
        if why:
            executable = _compiled_again(segment, program, options)
            segments.append(Segment(program, partial(_serialize, executable)))
        else:
            executable = _from_code(segment, code, name)
            segments.append(Segment(program, lambda code=code: code))  # type: ignore[misc]
        executables.append(executable)
    return Built(steps.from_json(found, executables), tuple(segments))


def _serialize(executable: Executable) -> bytes:
    return interop.serialize(executable.loaded)


def _from_code(segment: Mapping[str, Any], code: bytes, name: str) -> Executable:
    if b"lapack_" in code:
        # Lowering such a call loads LAPACK; where nothing was lowered, the call would jump to address zero.
        from neuron_compiler.lowering import lapack

        lapack.load()
    try:
        loaded = interop.deserialize(code)
    except Exception as error:
        raise ArtifactError(f"XLA cannot read the machine code of {name}: {error}", when="load") from error
    inputs, outputs = steps.layouts(segment, "inputs"), steps.layouts(segment, "outputs")
    return Executable(segment["name"], loaded, inputs, outputs, steps.faults(segment))


def _compiled_again(segment: Mapping[str, Any], program: str, options: Options) -> Executable:
    # Not imported where the machine code fits: all rules of the lowering come with it.
    from neuron_compiler.compile import compile_program
    from neuron_compiler.ir import text
    from neuron_compiler.observers import observers_for

    inputs, outputs = steps.layouts(segment, "inputs"), steps.layouts(segment, "outputs")
    observer = observers_for(options, segment["name"])
    return compile_program(text.parse(program), inputs, outputs, options, observer).executable


class Reexported:
    """Builds bindings that a file does not hold from the exported program in it, which is read when it is needed."""

    def __init__(self, data: bytes, owner: CompiledProgram) -> None:
        self.data, self.owner = data, owner
        self._source: Exports | None = None
        self._lock = threading.Lock()

    def build(self, key: Key, flat: Sequence[Any]) -> Built:
        with self._lock:
            self._source = self._source or self._read()
        return self._source.build(key, flat)

    def exported(self) -> bytes:
        return self.data

    def _read(self) -> Exports:
        from neuron_compiler.capture import exported
        from neuron_compiler.saved import exported_text
        from neuron_compiler.saved.exporting import Exports, signature_of

        program = exported_text.loads(self.data, self.owner.weights, self.owner.infos)
        found = exported.capture(program)
        if signature_of(found).arguments != self.owner.signature.arguments:
            raise ArtifactError(
                f"this PyTorch reads {self.owner.name} with other arguments than it was compiled with",
                when="the first call with a new size",
                hint="export and compile the program again",
            )
        return Exports(program, found, self.owner.name, self.owner.options)
