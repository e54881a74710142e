"""The Dynamo backend: AOTAutograd with our decompositions, and one compiled graph per binding of symbols."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from typing import Any

from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import _disable_current_modes

from neuron_compiler import options as options_module
from neuron_compiler.capture import effects, expanded_writes, origins, replaced, symbols
from neuron_compiler.capture.build import Builder, Segment, refusal
from neuron_compiler.capture.location import location
from neuron_compiler.capture.symbols import Binding
from neuron_compiler.compile import compile_graph
from neuron_compiler.ledger import LEDGER, Entry
from neuron_compiler.lowering import decompositions
from neuron_compiler.observers import Capture, observers_for
from neuron_compiler.options import Options
from neuron_compiler.runtime import Executable
from neuron_compiler.sequence import Sequence

_numbers = itertools.count()


class CompiledGraph:
    """One captured graph: a Sequence per binding of its symbols, least recently used dropped first.

    Called with the list of arguments, which it empties (PyTorch's boxed convention).
    """

    def __init__(
        self,
        module: GraphModule,
        examples: SequenceOf[Any],
        name: str,
        options: Options,
        capture: Capture,
        argument_origins: Mapping[int, str],
    ) -> None:
        effects.compile_checks(module)
        self.module = module
        self.name = name
        self.options = options
        self.capture = capture
        self.argument_origins = argument_origins
        self.sources = symbols.sources(examples)
        self._sequences: OrderedDict[tuple[int | float, ...], Sequence] = OrderedDict()
        self._lock = threading.Lock()
        if not self.sources:
            self._sequences[()] = self._build(())

    def __call__(self, arguments: list[Any]) -> list[Any]:
        return self._sequence(arguments)(arguments)

    def _sequence(self, arguments: list[Any]) -> Sequence:
        if not self.sources:
            return self._sequences[()]
        key = tuple(source.read(arguments) for source in self.sources)
        with self._lock:
            if (found := self._sequences.get(key)) is not None:
                self._sequences.move_to_end(key)
                return found
            built = self._sequences[key] = self._build(key)
            if len(self._sequences) > self.options.program_cache_size:
                self._sequences.popitem(last=False)
                LEDGER.record(Entry("evicted", self.name, "program_cache_size"))
            return built

    def _build(self, key: tuple[int | float, ...]) -> Sequence:
        binding = Binding({source.symbol: number for source, number in zip(self.sources, key, strict=True)})
        name = self.name + "".join(f"_{number}" for number in key)
        observer = observers_for(self.options, name, self.capture)
        observer.traced(self.capture.dynamo, lambda: _readable(self.module))

        def compile_segment(segment: Segment) -> Executable:
            return compile_graph(segment.graph, segment.inputs, segment.outputs, self.options, observer).executable

        # Tracing may be under way around us: what is built here is real, not traced.
        with _disable_current_modes():
            builder = Builder(self.module, binding, name, compile_segment, self.options.strict, self.argument_origins)
            observer.placed(builder.partition.entries())
            return builder.build()


def _readable(module: GraphModule) -> str:
    """An FX graph as Python, with the user's lines."""
    return module.print_readable(print_output=False, include_stride=True, include_device=True, expanded_def=True)


def _compiler(
    kind: str, label: str, options: Options, capture: Capture, argument_origins: Mapping[int, str]
) -> Callable[[GraphModule, SequenceOf[Any]], Any]:
    def compile_fx(module: GraphModule, examples: SequenceOf[Any]) -> Any:
        compiled = CompiledGraph(module, examples, f"{label}_{kind}", options, capture, argument_origins)

        # A plain function: Dynamo wraps the backward's callable, and keeps the mark only of functions.
        def run(arguments: list[Any]) -> list[Any]:
            return compiled(arguments)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    return compile_fx


def _left_to_eager(module: GraphModule, node: Node, cause: str) -> Callable[..., Any]:
    """The graph as it is, counted as a fallback of the node."""
    entry = Entry("fallback", str(node.target), cause, location(node))

    def run(*arguments: Any) -> Any:
        LEDGER.record(entry)
        return module(*arguments)

    return run


def neuron(
    module: GraphModule,
    examples: SequenceOf[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Dynamo backend ``neuron``.

    Args:
        module: Dynamo's graph.
        examples: its fake or real example arguments.
        mode: any of PyTorch's modes; all mean the same here.
        options: see ``neuron_compiler.Options``; an unknown key raises OptionsError.
    """
    chosen = options_module.from_call(mode, options)
    if (node := expanded_writes.find(module)) is not None:
        if chosen.strict:
            raise refusal(node, expanded_writes.CAUSE, expanded_writes.INSTEAD)
        return _left_to_eager(module, node, expanded_writes.CAUSE)
    replaced.replace(module)
    label = f"graph{next(_numbers)}"
    capture = Capture.now(chosen, lambda: _readable(module))
    names = origins.of_dynamo(module)
    backend = aot_autograd(
        fw_compiler=_compiler("forward", label, chosen, capture, names),
        bw_compiler=_compiler("backward", label, chosen, capture, names),
        inference_compiler=_compiler("inference", label, chosen, capture, names),
        decompositions=decompositions.table(),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    return backend(module, examples)  # type: ignore[no-any-return]
