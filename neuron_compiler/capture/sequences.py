"""The Sequences of a graph that is there as a whole, such as an exported program: one for each binding asked for.

In: a captured graph, and numbers of its symbols. Out: a Sequence with what each of its segments was compiled to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.fx import GraphModule
from torch.utils._python_dispatch import _disable_current_modes

from neuron_compiler.capture import effects
from neuron_compiler.capture.build import Builder, Segment
from neuron_compiler.capture.symbols import Binding
from neuron_compiler.compile import Compilation, compile_graph
from neuron_compiler.observers import Capture, observers_for
from neuron_compiler.options import Options
from neuron_compiler.runtime import Executable
from neuron_compiler.sequence import Sequence


class SequenceBuilder:
    """Builds the Sequence of one captured graph under a binding.

    Args:
        module: functional ATen graph with fake values in ``meta["val"]``; its effects are compiled in place.
        name: of the graph.
        options: of the compile; sizes are not padded to buckets.
        capture: what was known when the graph was captured.
        origins: what the user calls the graph's arguments, by position.
    """

    def __init__(
        self, module: GraphModule, name: str, options: Options, capture: Capture, origins: Mapping[int, str]
    ) -> None:
        effects.compile_checks(module)
        self.module, self.name, self.options, self.capture, self.origins = module, name, options, capture, origins

    def build(self, numbers: Mapping[Any, int | float]) -> tuple[Sequence, list[Compilation]]:
        """The Sequence for the numbers of the graph's symbols, and its segments in the order in which they run."""
        name = self.name + "".join(f"_{number}" for number in numbers.values())
        observer = observers_for(self.options, name, self.capture)
        observer.traced(self.capture.dynamo, self._readable)
        made: list[Compilation] = []

        def compile_segment(segment: Segment, stage: int) -> Executable:
            made.append(compile_graph(segment.graph, segment.inputs, segment.outputs, self.options, observer))
            return made[-1].executable

        # Tracing may be under way around us: what is built here is real, not traced.
        with _disable_current_modes():
            builder = Builder(self.module, Binding(numbers), name, self.options.strict, self.origins)
            observer.placed(builder.partition.entries())
            return builder.build(compile_segment), made

    def _readable(self) -> str:
        return self.module.print_readable(
            print_output=False, include_stride=True, include_device=True, expanded_def=True
        )
