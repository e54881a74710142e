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
from neuron_compiler.buckets.padded import PaddedExecutable
from neuron_compiler.capture import effects, expanded_writes, origins, replaced, symbols
from neuron_compiler.capture.buckets import Buckets, symbols_of_sizes
from neuron_compiler.capture.build import Builder, Segment, refusal
from neuron_compiler.capture.location import location
from neuron_compiler.capture.symbols import Binding
from neuron_compiler.capture.watch import Caller, Watch
from neuron_compiler.compile import Observer
from neuron_compiler.ledger import LEDGER, Entry
from neuron_compiler.lowering import decompositions
from neuron_compiler.observers import Capture, observers_for
from neuron_compiler.options import Options
from neuron_compiler.report import recompiles
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
        caller: Caller,
    ) -> None:
        effects.compile_checks(module)
        self.module = module
        self.name = name
        self.options = options
        self.capture = capture
        self.argument_origins = argument_origins
        self.caller = caller
        self.sources = symbols.sources(examples)
        self.buckets = Buckets(examples, options)
        self._of_tensors = frozenset(map(str, symbols_of_sizes(examples)))
        self._sequences: OrderedDict[tuple[int | float, ...], Sequence] = OrderedDict()
        self._last: tuple[int | float, ...] = ()
        self._lock = threading.Lock()
        if not self.sources:
            self._sequences[()] = self._build((), self._watch(()))

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
            watch = self._watch(key)
            built = self._sequences[key] = self._build(key, watch)
            self._last = key
            if len(self._sequences) > self.options.program_cache_size:
                dropped, _ = self._sequences.popitem(last=False)
                LEDGER.record(Entry("evicted", self.name, "program_cache_size"))
                watch.dropped(self._numbers(dropped))
        self.caller.function.warn_after(self.options.recompile_warning)
        return built

    def _numbers(self, key: tuple[int | float, ...]) -> dict[str, int | float]:
        return {str(source.symbol): number for source, number in zip(self.sources, key, strict=False)}

    def _watch(self, key: tuple[int | float, ...]) -> Watch:
        return Watch(self.options, self.caller, self._numbers(key), self._numbers(self._last), self._of_tensors)

    def _build(self, key: tuple[int | float, ...], watch: Watch) -> Sequence:
        binding = Binding({source.symbol: number for source, number in zip(self.sources, key, strict=True)})
        # Tracing may be under way around us: what is built here is real, not traced.
        with _disable_current_modes():
            if not self.buckets.symbols:
                observer = watch.observe(lambda: self._observer(self._name(binding)))
            builder = self._builder(binding)
            plan, left_out = self.buckets.plan(builder, self._builder)
            watch.planned(plan, left_out)
            if self.buckets.symbols:
                name = self._name(binding) if plan is None else plan.name
                observer = watch.observe(lambda: self._observer(name))
            observer.placed(builder.partition.entries())

            def executable(segment: Segment, stage: int) -> Executable | PaddedExecutable:
                if plan is None:
                    return watch.compile(segment)
                return self.buckets.executable(plan, segment, stage, watch.compile)

            built = builder.build(executable)
            watch.end()
            return built

    def _name(self, binding: Binding) -> str:
        return self.name + "".join(f"_{binding.numbers[source.symbol]}" for source in self.sources)

    def _builder(self, binding: Binding) -> Builder:
        """A builder of the graph, at any numbers of its symbols."""
        return Builder(self.module, binding, self._name(binding), self.options.strict, self.argument_origins)

    def _observer(self, name: str) -> Observer:
        observer = observers_for(self.options, name, self.capture)
        observer.traced(self.capture.dynamo, lambda: _readable(self.module))
        return observer


def _readable(module: GraphModule) -> str:
    """An FX graph as Python, with the user's lines."""
    return module.print_readable(print_output=False, include_stride=True, include_device=True, expanded_def=True)


def _compiler(
    kind: str, label: str, options: Options, capture: Capture, argument_origins: Mapping[int, str], caller: Caller
) -> Callable[[GraphModule, SequenceOf[Any]], Any]:
    def compile_fx(module: GraphModule, examples: SequenceOf[Any]) -> Any:
        compiled = CompiledGraph(module, examples, f"{label}_{kind}", options, capture, argument_origins, caller)

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
    caller, row = Caller.now(module, label)
    backend = aot_autograd(
        fw_compiler=_compiler("forward", label, chosen, capture, names, caller),
        bw_compiler=_compiler("backward", label, chosen, capture, names, caller),
        inference_compiler=_compiler("inference", label, chosen, capture, names, caller),
        decompositions=decompositions.table(),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    with recompiles.timed(row):
        compiled = backend(module, examples)
    caller.function.warn_after(chosen.recompile_warning)
    return compiled  # type: ignore[no-any-return]
