"""Program → StableHLO: one function per fused group, one module per program.

In: a verified Program and the physical layout of its inputs and outputs. Out: a ``Module`` (StableHLO and what the
runtime needs to know of it). Every group is its own named function and every op a named scope, so a line of HLO
leads back to group, op and, by the op's ``loc``, to the user's source. Called by ``neuron_compiler.compile``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import config
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import jaxpr_as_fun

import neuron_compiler.lowering.ops  # noqa: F401  (fills the registry)
from neuron_compiler import dtypes
from neuron_compiler.errors import LoweringError, NeuronCompilerError
from neuron_compiler.ir import text
from neuron_compiler.ir.graph import GETITEM, Constant, Graph, Op, Operand, TensorType, TupleType, Type, Value
from neuron_compiler.ir.plan import Group, Program, group_boundary
from neuron_compiler.lowering import checks
from neuron_compiler.lowering.recomputation import groups_apart
from neuron_compiler.lowering.subgraph import Subgraph
from neuron_compiler.opdef import REGISTRY, Registry

Env = dict[str, Any]
GroupFunction = Callable[[Mapping[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True)
class Module:
    """A lowered program.

    Attributes:
        name: the graph's name, also the module's.
        bytecode: StableHLO as MLIR bytecode, what XLA compiles.
        lowered: jax's lowering, for its text (``Module.text``).
        faults: (message, error type) of each run-time check; where there are any, the executable's last result is an
            int32 scalar, 0 or one more than the index of the first check that failed.
    """

    name: str
    bytecode: bytes
    lowered: Any
    faults: tuple[tuple[str, type[Exception]], ...]

    def text(self) -> str:
        """The StableHLO as text, with locations that name group and op."""
        return str(self.lowered.as_text(debug_info=True))


@contextlib.contextmanager
def tracing_scope(device: Any = None) -> Iterator[None]:
    """The jax settings that rules are written for, in this thread only, whatever the user's are.

    ``device`` is one of our own client's: lowering would otherwise start jax's default backend in the user's process.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(jax.enable_x64(True))
        stack.enter_context(jax.numpy_dtype_promotion("standard"))
        stack.enter_context(jax.numpy_rank_promotion("allow"))
        stack.enter_context(jax.debug_nans(False))
        stack.enter_context(jax.disable_jit(False))
        stack.enter_context(jax.check_tracer_leaks(False))
        # The user's Python stack is no part of a program: without it the same program has the same bytes and text.
        stack.enter_context(config.traceback_in_locations_limit(0))
        if device is not None:
            stack.enter_context(jax.default_device(device))
        yield


def resolve(operand: Operand, env: Mapping[str, Any], registry: Registry = REGISTRY) -> Any:
    """What a rule is given for an operand: arrays for values, functions for subgraphs, all else as it stands."""
    if isinstance(operand, Value):
        return env[operand.name]
    if isinstance(operand, tuple):
        return tuple(resolve(item, env, registry) for item in operand)
    if isinstance(operand, Graph):
        return Subgraph(operand, partial(_values, operand, registry))
    return operand


def _values(graph: Graph, registry: Registry, *arrays: jax.Array) -> tuple[jax.Array, ...]:
    """A subgraph traced op by op, on arrays in the order of its inputs."""
    env: Env = {c.name: constant_array(c) for c in graph.constants}
    env.update((i.name, array) for i, array in zip(graph.inputs, arrays, strict=True))
    for op in graph.ops:
        env[op.result] = apply(op, env, registry)
    return tuple(env[name] for name in graph.outputs)


def apply(op: Op, env: Mapping[str, Any], registry: Registry = REGISTRY) -> Any:
    """Trace one op by its rule, and hold the result to the type that PyTorch recorded."""
    if op.kind == GETITEM:
        source, index = op.operands
        return resolve(source, env)[index]
    record = registry.get(op.kind)
    if record is None:
        raise LoweringError(f"{op.kind} has no lowering rule", op=text.format_op(op), loc=op.loc, when="emit")
    arguments = [resolve(operand, env, registry) for operand in op.operands]
    keywords = {name: resolve(value, env, registry) for name, value in op.attrs}
    if record.wants_out:
        keywords["out"] = op.type
    try:
        with jax.named_scope(op.result):
            result = record.lower(*arguments, **keywords)
    except NeuronCompilerError:
        raise
    except Exception as error:
        raise LoweringError(
            f"the rule of {op.kind} raised {type(error).__name__}: {error}",
            op=text.format_op(op),
            loc=op.loc,
            when="emit",
            hint=f"the rule is at {record.source}",
        ) from error
    _check_type(op, result, record.source)
    return result


def _check_type(op: Op, result: Any, source: str) -> None:
    if (found := _type_of(result, op.type)) != op.type:
        raise LoweringError(
            f"{op.kind}: the rule gives {found}, PyTorch recorded {op.type}",
            op=text.format_op(op),
            loc=op.loc,
            when="emit",
            hint=f"the rule is at {source}",
        )


def _type_of(result: Any, like: Type) -> Any:
    if isinstance(like, TupleType):
        if not isinstance(result, tuple | list):
            return f"{type(result).__name__}, not a tuple"
        # A result that PyTorch does not return at all may be computed: nobody can read it.
        wanted = [*like.elements, *(None,) * (len(result) - len(like.elements))]
        return TupleType(tuple(None if w is None else _type_of(r, w) for r, w in zip(result, wanted, strict=True)))
    if not isinstance(result, jax.Array):
        return f"{type(result).__name__}, not an array"
    return TensorType(tuple(result.shape), dtypes.from_numpy(result.dtype))


def constant_array(constant: Constant) -> jax.Array:
    """A constant's elements. XLA does not see them: what it computes beforehand takes subnormal numbers for zero."""
    data = np.frombuffer(constant.data, dtype=dtypes.to_numpy(constant.type.dtype))
    array = jnp.asarray(data.reshape(constant.type.shape))
    return array if constant.type.dtype.is_integer else jax.lax.optimization_barrier(array)


def _group_callable(
    graph: Graph, group: Group, gives: Sequence[str], found: dict[str, list[checks.Check]], registry: Registry
) -> Callable[[Env], tuple[Env, list[jax.Array]]]:
    """The group as a function to be jitted; leaves its checks' texts in ``found`` while it is traced."""

    def function(env: Env) -> tuple[Env, list[jax.Array]]:
        env = dict(env)
        with checks.collecting() as required:
            for name in group.ops:
                env[name] = apply(graph.defs[name], env, registry)
        found[group.name] = required
        return {name: env[name] for name in gives}, [check.ok for check in required]

    function.__name__ = function.__qualname__ = group.name
    return function


def _called_apart(function: Callable[[Env], Any], given: Env) -> Any:
    """The function's results by a call that XLA does not inline."""
    leaves, structure = jax.tree.flatten(given)
    closed, shapes = jax.make_jaxpr(lambda *arrays: function(jax.tree.unflatten(structure, arrays)), return_shape=True)(
        *leaves
    )
    # Traced before the attribute is set: calls inside of the group are inlined as ever.
    called = jaxpr_as_fun(closed)
    called.__name__ = called.__qualname__ = function.__name__
    with set_xla_metadata(inlineable="false"):
        return jax.tree.unflatten(jax.tree.structure(shapes), jax.jit(called)(*leaves))


def _groups(program: Program) -> tuple[Group, ...]:
    """The plan's groups; a program that was not fused is one group an op."""
    if program.plan.groups or not program.graph.ops:
        return program.plan.groups
    from neuron_compiler.ir.plan import GroupKind

    return tuple(Group(f"g{i}", GroupKind.OTHER, (op.result,)) for i, op in enumerate(program.graph.ops))


def trace(
    program: Program,
    input_layouts: Sequence[tuple[int, ...] | None],
    output_layouts: Sequence[tuple[int, ...] | None],
    group_functions: Mapping[str, GroupFunction],
    first_call: str = "",
    registry: Registry = REGISTRY,
) -> tuple[Callable[..., Any], list[tuple[str, type[Exception]]]]:
    """The whole program as one jax function of physical arrays; fills the returned list of faults when traced.

    A layout is the order in which an array's logical dimensions lie in memory, slowest first; None is row-major.
    """
    graph = program.graph
    faults: list[tuple[str, type[Exception]]] = []

    def function(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        if first_call:
            jax.ffi.ffi_call(first_call, jax.ShapeDtypeStruct((), np.uint32), has_side_effect=True)()
        env: Env = {c.name: constant_array(c) for c in graph.constants}
        for value, array, layout in zip(graph.inputs, arrays, input_layouts, strict=True):
            env[value.name] = array if layout is None else jnp.transpose(array, _inverse(layout))
        flags: list[jax.Array] = []
        faults.clear()
        groups = _groups(program)
        apart = groups_apart(program, groups, registry)
        for group in groups:
            reads, gives = group_boundary(graph, group)
            given = {name: env[name] for name in reads}
            if (special := group_functions.get(group.name)) is not None:
                special.__name__ = special.__qualname__ = group.name
                env.update(jax.jit(special)(given))
                continue
            found: dict[str, list[checks.Check]] = {}
            traced = _group_callable(graph, group, gives, found, registry)
            results, oks = _called_apart(traced, given) if group.name in apart else jax.jit(traced)(given)
            env.update(results)
            flags.extend(oks)
            faults.extend((check.message, check.error) for check in found[group.name])
        outputs = [
            env[name] if layout is None else jnp.transpose(env[name], layout)
            for name, layout in zip(graph.outputs, output_layouts, strict=True)
        ]
        if flags:
            failed = jnp.logical_not(jnp.stack(flags))
            outputs.append(jnp.where(jnp.any(failed), jnp.argmax(failed) + 1, 0).astype(jnp.int32))
        return tuple(outputs)

    function.__name__ = function.__qualname__ = _identifier(graph.name)
    return function, faults


def _inverse(layout: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(layout.index(d) for d in range(len(layout)))


def _identifier(name: str) -> str:
    return "".join(c if c.isalnum() or c == "_" else "_" for c in name) or "graph"


def physical_shape(type_: TensorType, layout: tuple[int, ...] | None) -> tuple[int, ...]:
    return type_.shape if layout is None else tuple(type_.shape[d] for d in layout)


def lower(
    program: Program,
    *,
    device: Any,
    input_layouts: Sequence[tuple[int, ...] | None] | None = None,
    output_layouts: Sequence[tuple[int, ...] | None] | None = None,
    group_functions: Mapping[str, GroupFunction] | None = None,
    first_call: str = "",
    registry: Registry = REGISTRY,
) -> Module:
    """Lower a program to StableHLO.

    Args:
        program: with or without a plan; without one, each op is its own group.
        device: a device of the client that will compile the module.
        input_layouts: per input, the order of its dimensions in memory; None is row-major.
        output_layouts: per output, the same.
        group_functions: other implementations of groups, by group name: values read to values given.
        first_call: a custom call without arguments, known to the client, that runs before anything else.

    Raises:
        LoweringError: a rule raised or gave another type than recorded.
    """
    from jax._src.interpreters import mlir

    graph = program.graph
    layouts_in = input_layouts or (None,) * len(graph.inputs)
    layouts_out = output_layouts or (None,) * len(graph.outputs)
    function, faults = trace(program, layouts_in, layouts_out, group_functions or {}, first_call, registry)
    with tracing_scope(device):
        shapes = [
            jax.ShapeDtypeStruct(physical_shape(i.type, layout), dtypes.to_numpy(i.type.dtype))
            for i, layout in zip(graph.inputs, layouts_in, strict=True)
        ]
        lowered = jax.jit(function, keep_unused=True).trace(*shapes).lower(lowering_platforms=("cpu",))
        bytecode = mlir.module_to_bytecode(lowered.compiler_ir("stablehlo"))
    return Module(graph.name, bytecode, lowered, tuple(faults))
