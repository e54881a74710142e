"""Buckets of a captured graph: which of its sizes are padded, and the programs that calls of one bucket share.

Input: the graph made at a call's sizes. Output: per stage a proof, or the refusal that has the graph compiled at its
exact sizes. A symbol that was refused once is not tried again: why does not depend on its number.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch

from neuron_compiler.buckets.padded import PaddedExecutable
from neuron_compiler.buckets.prove import Proof, Refusal, prove
from neuron_compiler.buckets.sizes import bucket_of
from neuron_compiler.capture.build import Builder, Segment
from neuron_compiler.capture.symbols import Binding
from neuron_compiler.options import Options
from neuron_compiler.runtime import CPU, Executable, Layout

MakeBuilder = Callable[[Binding], Builder]
Sizes = Mapping[sympy.Symbol, int]


@dataclass(frozen=True)
class Plan:
    """How one binding of a graph is padded.

    Attributes:
        sizes: the bucket of each padded symbol.
        proofs: per stage, of those that have a segment.
        segments: per stage, at the buckets' sizes.
        name: of the graph at those sizes.
    """

    sizes: Sizes
    proofs: Mapping[int, Proof]
    segments: Mapping[int, Segment]
    name: str


class Buckets:
    """What one captured graph knows of its buckets."""

    def __init__(self, examples: Sequence[Any], options: Options) -> None:
        self.options = options
        self.symbols = symbols_of_sizes(examples) if options.buckets is not None else frozenset()
        self.guards = _guards(examples) if self.symbols else ()
        self.refused: dict[sympy.Symbol, Refusal] = {}
        self._builders: OrderedDict[tuple[Any, ...], Builder] = OrderedDict()
        self._executables: OrderedDict[Any, Executable] = OrderedDict()

    def plan(self, true: Builder, make: MakeBuilder) -> tuple[Plan | None, dict[sympy.Symbol, Refusal]]:
        """How to pad a graph made at true sizes, and why symbols are not padded that could be; None pads none."""
        sizes, left_out = self._sizes(true.binding)
        if not sizes:
            return None, left_out
        found = self._try(sizes, true, make)
        if isinstance(found, Refusal) and len(sizes) > 1:
            alone = {s: self._try({s: bucket}, true, make) for s, bucket in sizes.items()}
            left_out |= {s: self._refuse(s, f) for s, f in alone.items() if isinstance(f, Refusal)}
            proven = {s: f for s, f in alone.items() if isinstance(f, Plan)}
            together = self._try({s: sizes[s] for s in proven}, true, make) if len(proven) > 1 else None
            if isinstance(together, Refusal):
                left_out |= {s: self._refuse(s, together) for s in list(proven)[1:]}
            found = together if isinstance(together, Plan) else next(iter(proven.values()), found)
        if isinstance(found, Refusal):
            left_out |= {s: self._refuse(s, found) for s in sizes if s not in left_out}
            return None, left_out
        return found, left_out

    def _sizes(self, binding: Binding) -> tuple[dict[sympy.Symbol, int], dict[sympy.Symbol, Refusal]]:
        sizes: dict[sympy.Symbol, int] = {}
        left_out: dict[sympy.Symbol, Refusal] = {}
        for symbol in sorted(self.symbols & binding.numbers.keys(), key=str):
            if symbol in self.refused:
                left_out[symbol] = self.refused[symbol]
            elif (bucket := bucket_of(int(binding.numbers[symbol]), self.options.buckets)) is None:
                left_out[symbol] = Refusal(str(symbol), f"no bucket holds {binding.numbers[symbol]}")
            elif (guard := self._broken_guard(binding, symbol, bucket)) is not None:
                left_out[symbol] = Refusal(str(symbol), f"the trace assumes {guard}, and the bucket is {bucket}")
            else:
                sizes[symbol] = bucket
        return sizes, left_out

    def _refuse(self, symbol: sympy.Symbol, refusal: Refusal) -> Refusal:
        return self.refused.setdefault(symbol, refusal)

    def _broken_guard(self, binding: Binding, symbol: sympy.Symbol, bucket: int) -> str | None:
        """An assumption of the trace that holds for the true size and not for the bucket."""
        numbers = {s: sympy.sympify(n) for s, n in {**binding.numbers, symbol: bucket}.items()}
        return next((str(g) for g in self.guards if g.xreplace(numbers) == sympy.false), None)

    def _try(self, sizes: Sizes, true: Builder, make: MakeBuilder) -> Plan | Refusal:
        bucket = self._builder(sizes, true.binding, make)
        proofs = _proofs(true, bucket)
        if isinstance(proofs, Refusal):
            return proofs
        if fitting := {s: size - 1 for s, size in sizes.items() if 2 < size == true.binding.numbers[s]}:
            # Shown for a smaller size, too, so that all sizes of the bucket have one program.
            shared = _proofs(self._builder(fitting, true.binding, make), bucket, true)
            proofs = proofs if isinstance(shared, Refusal) else shared
        segments = {stage: cut.segment for stage in proofs if (cut := bucket.cut(stage)) is not None}
        return Plan(sizes, proofs, segments, bucket.name)

    def _builder(self, sizes: Sizes, binding: Binding, make: MakeBuilder) -> Builder:
        numbers = {**binding.numbers, **sizes}
        key = tuple(numbers.values())
        if key not in self._builders:
            self._builders[key] = make(Binding(numbers))
            if len(self._builders) > self.options.program_cache_size:
                self._builders.popitem(last=False)
        self._builders.move_to_end(key)
        return self._builders[key]

    def executable(
        self, plan: Plan, segment: Segment, stage: int, compile_segment: Callable[[Segment], Executable]
    ) -> PaddedExecutable:
        """What runs a segment at its true sizes: the bucket's executable, compiled where no call has needed it."""
        proof = plan.proofs[stage]
        at_bucket = _segment_of(proof, plan.segments[stage])
        key = (at_bucket.graph, at_bucket.inputs, at_bucket.outputs)
        if (found := self._executables.get(key)) is None:
            found = self._executables[key] = compile_segment(at_bucket)
            if len(self._executables) > self.options.program_cache_size:
                self._executables.popitem(last=False)
        self._executables.move_to_end(key)
        return PaddedExecutable(found, proof, segment.outputs)


def _segment_of(proof: Proof, segment: Segment) -> Segment:
    """The bucket's segment with the arguments that its masks are."""
    extra = proof.graph.inputs[len(segment.inputs) :]
    layouts = [Layout.of(i.type.shape, _row_major(i.type.shape)) for i in extra]
    # Results that are cut are first had on the host, and laid out as recorded after that.
    padded = {t.name for t in proof.outputs if t.is_padded}
    outputs = [
        replace(o, device=CPU) if name in padded else o
        for name, o in zip(segment.graph.outputs, segment.outputs, strict=True)
    ]
    return Segment(proof.graph, (*segment.inputs, *layouts), tuple(outputs))


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(torch.empty(shape, device="meta").stride())


def _proofs(true: Builder, bucket: Builder, call: Builder | None = None) -> dict[int, Proof] | Refusal:
    """A proof for each segment of a graph, or the first refusal; ``call`` as in ``prove``."""
    builders = [true, bucket, *([call] if call is not None else [])]
    otherwise = Refusal(bucket.name, "is split otherwise at the bucket's size")
    if len({builder.partition.stage_count() for builder in builders}) > 1:
        return otherwise
    proofs: dict[int, Proof] = {}
    for stage in range(bucket.partition.stage_count()):
        cuts = [builder.cut(stage) for builder in builders]
        graphs = [cut.segment.graph for cut in cuts if cut is not None]
        if not graphs:
            continue
        if len(graphs) != len(cuts):
            return otherwise
        found = prove(*graphs)
        if isinstance(found, Refusal):
            return found
        proofs[stage] = found
    return proofs


def symbols_of_sizes(examples: Sequence[Any]) -> frozenset[sympy.Symbol]:
    """Symbols that are a size of some argument, by themselves or in an expression."""
    found: set[sympy.Symbol] = set()
    for example in examples:
        if isinstance(example, torch.Tensor):
            for size in example.shape:
                if isinstance(size, torch.SymInt):
                    found |= size.node.expr.free_symbols
    return frozenset(found)


def _guards(examples: Sequence[Any]) -> tuple[Any, ...]:
    """What tracing assumed of the symbols, as expressions."""
    for example in examples:
        for size in example.shape if isinstance(example, torch.Tensor) else (example,):
            if isinstance(size, torch.SymInt):
                environment = size.node.shape_env
                ranges = [
                    sympy.And(s >= r.lower, s <= r.upper)
                    for s, r in environment.var_to_range.items()
                    if getattr(r, "is_int", False)
                ]
                return (*(g.expr for g in environment.guards), *ranges)
    return ()
