"""CompiledProgram: an exported program compiled, or loaded from a file; called as the module was.

In: a call's arguments, and the weights that it holds. Out: what the module returned, nested as it was. Invariants:
nothing of a graph is needed to call it; weights that the program changes are changed where they lie.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

import torch

from neuron_compiler.ir import text
from neuron_compiler.ir.plan import Program
from neuron_compiler.options import Options
from neuron_compiler.saved.bindings import Bindings, Key
from neuron_compiler.saved.signature import Signature
from neuron_compiler.sequence import Sequence as Steps


@dataclass(frozen=True)
class Segment:
    """A compiled part of a binding: its program after the passes, whose text a file keeps, and its executable."""

    program: Program | str
    serialized: Callable[[], bytes]

    @property
    def text(self) -> str:
        return self.program if isinstance(self.program, str) else text.format(self.program)


@dataclass(frozen=True)
class Built:
    """What one binding of the symbols became: its steps, and the segments that they run, in their order."""

    steps: Steps
    segments: tuple[Segment, ...] = ()


class Source(Protocol):
    """Where the programs of new bindings come from."""

    def build(self, key: Key, flat: Sequence[Any]) -> Built:
        """The steps for a call with these flat arguments; ``key`` has the numbers of the symbols."""

    def exported(self) -> bytes:
        """The exported program as a file keeps it, for bindings to come; raises Inexpressible where it has no form."""


@dataclass(frozen=True)
class WeightInfo:
    """What a weight is: its type, sizes and device, and whether a ``state_dict`` of the module has it."""

    kind: str
    persistent: bool
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    device: torch.device


@dataclass(eq=False, repr=False)
class CompiledProgram:
    """A compiled program, called with the arguments that it was exported for.

    Attributes:
        name: of its graph, in the ledger and in dumps.
        signature: its calling convention.
        infos: what each weight is, by name.
        options: it was compiled with.
        source: of new bindings; None where it has only those that it was saved with.
        why_no_source: the reason for that.
    """

    name: str
    signature: Signature
    infos: Mapping[str, WeightInfo]
    options: Options
    source: Source | None
    why_no_source: str = ""
    _weights: dict[str, torch.Tensor] = field(default_factory=dict)
    loaded: dict[Key, Callable[[], Built]] = field(default_factory=dict)
    """Bindings that a file holds and nothing has called yet."""

    def __post_init__(self) -> None:
        self.built: Bindings[Built] = Bindings(self.name, self.options.program_cache_size)
        self._only: Built | None = None

    def __repr__(self) -> str:
        takes = ", ".join(map(str, self.signature.inputs))
        return f"CompiledProgram({self.name}: ({takes}), {len(self._weights)} weights)"

    @property
    def weights(self) -> Mapping[str, torch.Tensor]:
        """Parameters, buffers and constants by name. Their values may be changed in place."""
        return MappingProxyType(self._weights)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run; raises RuntimeFault for arguments that the program was not compiled for.

        Results require no gradient: the program has no backward.
        """
        signature = self.signature
        flat = signature.flatten(args, kwargs)
        key = signature.key(flat)
        built = self._only or self._built(key, flat)
        weights = self._weights
        arguments = [
            flat[a] if type(a) is int else weights[a] if a is not None else None  # type: ignore[index]
            for a in signature.arguments
        ]
        with torch.no_grad():
            results = built.steps(arguments)
        from torch.utils._pytree import tree_unflatten

        return tree_unflatten(results[signature.tokens :], signature.out_spec)

    def _built(self, key: Key, flat: Sequence[Any]) -> Built:
        found = self.built.get(key, lambda: self._make(key, flat))
        if not self.signature.reads:
            self._only = found
        return found

    def _make(self, key: Key, flat: Sequence[Any]) -> Built:
        if (saved := self.loaded.get(key)) is not None:
            return saved()
        if self.source is None:
            raise self._unknown(key)
        return self.source.build(key, flat)

    def _unknown(self, key: Key) -> Exception:
        from neuron_compiler.errors import RuntimeFault

        def sizes(numbers: Key) -> str:
            reads = zip(self.signature.reads, numbers, strict=True)
            return "(" + ", ".join(f"{read.symbol} = {number}" for read, number in reads) + ")"

        return RuntimeFault(
            f"{self.name} holds no program for {sizes(key)}; it was saved with "
            f"{', '.join(map(sizes, self.loaded)) or 'none'}",
            when="the call of a loaded program",
            hint=f"call it with all sizes before saving it: it cannot make others, since {self.why_no_source}",
        )

    def prepare(self) -> None:
        """Make the one binding of a program without symbols ready, so that what is wrong with it is said now."""
        self._built((), ())

    def bindings(self) -> dict[Key, Built]:
        """All bindings that it has, those of the file included."""
        kept = dict(self.built.items())
        return {key: build() for key, build in self.loaded.items() if key not in kept} | kept

    def save(self, path: str | os.PathLike[str], weights: str = "safetensors") -> None:
        """Write it to a file that ``neuron_compiler.load`` reads; see ``neuron_compiler.save``."""
        from neuron_compiler.saved.saving import save

        save(self, path, weights)
