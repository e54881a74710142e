"""``torch.export`` programs: what was exported → a graph for the Builder, and its calling convention as plain data.

In: an ``ExportedProgram``, which stays as it is. Out: ``Exported``: the functional ATen graph with our decompositions,
its weights as arguments and its in-place changes as ``copy_``; what may be called with, in sizes and expressions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, InputSpec, OutputKind
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree
from torch.utils._sympy.printers import PythonPrinter

from neuron_compiler.capture import expanded_writes, symbols
from neuron_compiler.capture.build import refusal
from neuron_compiler.capture.convert import meta_value
from neuron_compiler.capture.symbols import Source
from neuron_compiler.errors import CaptureError
from neuron_compiler.lowering import decompositions

aten = torch.ops.aten

WEIGHT_KINDS = {
    InputKind.PARAMETER: "parameter",
    InputKind.BUFFER: "buffer",
    InputKind.CONSTANT_TENSOR: "constant",
}
MUTATIONS = frozenset({OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION, OutputKind.PARAMETER_MUTATION})


@dataclass(frozen=True)
class Weight:
    """A tensor that belongs to the program: ``kind`` is parameter, buffer or constant, ``persistent`` whether a
    ``state_dict`` of the module has it.
    """

    name: str
    kind: str
    persistent: bool


@dataclass(frozen=True)
class Exported:
    """An exported program, ready for the Builder.

    Attributes:
        module: arguments are tokens, weights and the user's, in the order of ``arguments``; results are tokens, then
            the user's.
        arguments: per argument of the graph, None for a token, a Weight, or the index of a user's argument.
        tokens: number of results in front that are not the user's.
        weights: tensors by name, those of the program itself.
        user: fake or plain value of each of the user's arguments, flat.
        sources: where the numbers of the symbols are read, among the user's arguments.
        ranges: limits of expressions of symbols, as text: lowest and highest, None without limit.
        guards: conditions that hold for the user's arguments, in Python, with ``size_0_1`` and ``stride_0_1`` for a
            size and a stride of dimension 1 of argument 0 and ``argument_0`` for argument 0.
        in_spec, out_spec: PyTorch's trees of arguments and results.
    """

    module: GraphModule
    arguments: tuple[Weight | int | None, ...]
    tokens: int
    weights: Mapping[str, torch.Tensor]
    user: tuple[Any, ...]
    sources: tuple[Source, ...]
    ranges: Mapping[str, tuple[int | None, int | None]]
    guards: tuple[str, ...]
    in_spec: Any
    out_spec: Any

    @property
    def origins(self) -> dict[int, str]:
        """What the user calls the graph's arguments, by position; PyTorch's own description names the others."""
        return {i: a.name for i, a in enumerate(self.arguments) if isinstance(a, Weight)}


def capture(program: ExportedProgram) -> Exported:
    """Decompose and describe a program; raises CaptureError where it cannot be compiled."""
    if (node := expanded_writes.find(program.graph_module)) is not None:
        raise refusal(node, expanded_writes.CAUSE, expanded_writes.INSTEAD)
    _refuse_objects(program.graph_signature.input_specs)
    decomposed = program.run_decompositions(decompositions.table_for_export())
    module = decomposed.graph_module
    _drop_known_metadata(module)
    signature = decomposed.graph_signature
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    tokens = _write_in_place(module, signature, placeholders)
    users: list[Node] = []
    arguments: list[Weight | int | None] = []
    for node, spec in zip(placeholders, signature.input_specs, strict=True):
        if (kind := WEIGHT_KINDS.get(spec.kind)) is not None:
            arguments.append(Weight(str(spec.target), kind, kind != "constant" and bool(spec.persistent is not False)))
        elif spec.kind is InputKind.TOKEN:
            arguments.append(None)
        else:
            if isinstance(spec.arg, ConstantArgument):
                node.meta.setdefault("val", spec.arg.value)
            arguments.append(len(users))
            users.append(node)
    values = tuple(meta_value(node) for node in users)
    tensors = {**decomposed.state_dict, **decomposed.constants}
    in_spec, out_spec = program.call_spec.in_spec, program.call_spec.out_spec
    return Exported(
        module,
        tuple(arguments),
        tokens,
        {a.name: tensors[a.name] for a in arguments if isinstance(a, Weight)},
        values,
        symbols.sources(values),
        _ranges(decomposed.range_constraints),
        tuple(_guards(program, in_spec)),
        in_spec,
        out_spec,
    )


def _drop_known_metadata(module: GraphModule) -> None:
    """Take out assertions on types and devices, which export puts before each cast: the graph's own types say so."""
    for node in module.graph.find_nodes(op="call_function", target=aten._assert_tensor_metadata.default):
        if not any(node.args[1:3]) and not node.users:  # sizes and strides
            module.graph.erase_node(node)


def _refuse_objects(specs: list[InputSpec]) -> None:
    for spec in specs:
        if spec.kind is InputKind.CUSTOM_OBJ:
            raise CaptureError(
                f"the program holds the script object {spec.target!r}, which cannot be compiled",
                when="capture of an exported program",
                hint="hand what the object computes to the program as tensors",
            )


def _write_in_place(module: GraphModule, signature: Any, placeholders: list[Node]) -> int:
    """Turn results that are changes of arguments into ``copy_``; returns the number of tokens left among the results.

    A result that is also what an argument was changed to becomes that argument, as in ``ExportedProgram.module()``.
    """
    by_target = {
        spec.target if spec.kind is not InputKind.USER_INPUT else node.name: node
        for node, spec in zip(placeholders, signature.input_specs, strict=True)
    }
    graph = module.graph
    output = graph.output_node()
    tokens, users, written = [], [], {}
    with graph.inserting_before(output):
        for value, spec in zip(output.args[0], signature.output_specs, strict=True):
            if spec.kind in MUTATIONS:
                target = by_target[spec.target]
                copied = graph.call_function(aten.copy_.default, (target, value))
                copied.meta = {"val": meta_value(target), "stack_trace": value.meta.get("stack_trace")}
                written[value] = copied
            elif spec.kind is OutputKind.TOKEN:
                tokens.append(value)
            else:
                users.append(value)
    output.args = ((*tokens, *(written.get(value, value) for value in users)),)
    module.recompile()
    return len(tokens)


def expression(value: Any) -> int | str:
    """A size: a number, or an expression of symbols in Python."""
    if isinstance(value, torch.SymInt):
        expr = value.node.expr
        return int(expr) if expr.is_Integer else str(PythonPrinter().doprint(expr))
    return int(value)


def _ranges(constraints: Mapping[Any, Any]) -> dict[str, tuple[int | None, int | None]]:
    return {
        str(PythonPrinter().doprint(expr)): (_limit(limits.lower), _limit(limits.upper))
        for expr, limits in constraints.items()
    }


def _limit(value: Any) -> int | None:
    try:
        number = float(value)
    except (TypeError, OverflowError):  # PyTorch's own infinity of whole numbers
        return None
    return int(value) if math.isfinite(number) else None


_SIZE = re.compile(r"argument_(\d+)\.(size|stride)\(\)\[(\d+)\]")


def _guards(program: ExportedProgram, in_spec: Any) -> list[str]:
    """The conditions that tracing met, said of the flat arguments."""
    names = _argument_names(program, in_spec)
    found = []
    for guard in program._guards_code:
        text = guard
        for name in sorted(names, key=len, reverse=True):
            text = text.replace(name, f"argument_{names[name]}")
        text = _SIZE.sub(r"\2_\1_\3", text)
        if "L[" in text:
            raise CaptureError(
                f"the program holds under a condition on what is not an argument: {guard}",
                when="capture of an exported program",
                hint="export it with the sizes that it is called with",
            )
        found.append(text)
    return found


def _argument_names(program: ExportedProgram, in_spec: Any) -> dict[str, int]:
    """How guards may call each flat argument, ``L['x'][0]``, and its index."""
    if not program._guards_code:
        return {}
    leaves = pytree.tree_unflatten(list(range(in_spec.num_leaves)), in_spec)
    args, kwargs = leaves
    roots = [*args, *kwargs.values()]
    called = list(getattr(program.module_call_graph[0].signature, "forward_arg_names", None) or ())
    called = called if len(called) == len(roots) else [*map(str, range(len(args))), *kwargs]
    names: dict[str, int] = {}
    for root, tree in zip(called, roots, strict=True):
        for path, index in pytree.tree_leaves_with_path(tree):
            rest = pytree.keystr(path)
            names[f"L['{root}']{rest}"] = index
            if (of_several := re.fullmatch(r"(.+)_(\d+)", root)) is not None:
                names.setdefault(f"L['{of_several[1]}'][{of_several[2]}]{rest}", index)
            names[f"L['flat_args'][{index}]"] = index
    return names
