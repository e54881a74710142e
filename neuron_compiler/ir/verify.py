"""The invariants of a Program, one named function each; every planner and every pass is judged by the same judge.

A check takes the program and raises VerifyError, or returns. ``program`` runs them all, those of the graph before those
of the plan, each of which may rely on the ones before it. An error shows the op at fault among its neighbours, and the
line of the user's source that it came from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, TypeGuard

from neuron_compiler.errors import VerifyError
from neuron_compiler.ir import excerpt, printer, shapes
from neuron_compiler.ir.graph import GETITEM, DType, Graph, Operand, TupleType, Type, Value
from neuron_compiler.ir.plan import Group, GroupKind, Program


def program(p: Program, *, when: str = "") -> None:
    """Check every invariant; raises VerifyError for the first that does not hold.

    Args:
        p: the program.
        when: the pass or stage that made it, for the message.
    """
    try:
        for check in GRAPH_CHECKS:
            check(p.graph)
        for plan_check in PLAN_CHECKS:
            plan_check(p)
    except VerifyError as error:
        if not when:
            raise
        raise _at_stage(error, when) from None


def kinds_are_known(graph: Graph, known: Callable[[str], bool]) -> None:
    """Every op has a rule by the registry that ``known`` asks; not part of ``program``, which knows of no registry."""
    for index, op in enumerate(graph.ops):
        if op.kind != GETITEM and not known(op.kind):
            _fail(graph, index, f"{op.kind} is no known op")
        for subgraph in op.subgraphs:
            kinds_are_known(subgraph, known)


# Graph


def results_are_unique(graph: Graph) -> None:
    """No two inputs, constants or results share a name."""
    seen: dict[str, str] = {}
    for what, names in (("input", (i.name for i in graph.inputs)), ("constant", (c.name for c in graph.constants))):
        for name in names:
            if name in seen:
                _fail(graph, None, f"%{name} is defined twice, as {_article(seen[name])} and as {_article(what)}")
            seen[name] = what
    for index, op in enumerate(graph.ops):
        if op.result in seen:
            _fail(graph, index, f"%{op.result} is defined twice; it is already {_article(seen[op.result])}")
        seen[op.result] = "result"


def types_are_concrete(graph: Graph) -> None:
    """Every type is a DType and extents from 0."""
    for place, type_ in ((f"input %{i.name}", i.type) for i in graph.inputs):
        if (why := _why_not_concrete(type_)) is not None:
            _fail(graph, None, f"the type of {place} {why}")
    for index, op in enumerate(graph.ops):
        if (why := _why_not_concrete(op.type)) is not None:
            _fail(graph, index, f"the type of %{op.result} {why}")


def operands_are_data(graph: Graph) -> None:
    """Operands are of the kinds that the text form knows, attributes sorted by name and given once."""
    for index, op in enumerate(graph.ops):
        for operand in (*op.operands, *(v for _, v in op.attrs)):
            if (found := _foreign(operand)) is not None:
                name = type(found).__name__
                _fail(graph, index, f"%{op.result} has an operand of type {name}")
        names = [name for name, _ in op.attrs]
        if names != sorted(set(names)):
            _fail(graph, index, f"%{op.result} has attributes {names}, which are not sorted or not distinct")


def subgraphs_hold(graph: Graph) -> None:
    """Branches and bodies of loops are graphs that hold every invariant by themselves."""
    for index, op in enumerate(graph.ops):
        for subgraph in op.subgraphs:
            for check in GRAPH_CHECKS:
                try:
                    check(subgraph)
                except VerifyError as error:
                    _fail(graph, index, f"in {subgraph.name} of %{op.result}: {error.what}", error.hint)


def every_use_is_defined_before(graph: Graph) -> None:
    """A value is an input, a constant or the result of an op further up."""
    defined = {i.name for i in graph.inputs} | {c.name for c in graph.constants}
    for index, op in enumerate(graph.ops):
        for name in op.uses:
            if name not in defined:
                later = any(other.result == name for other in graph.ops[index:])
                what = "is used before it is defined" if later else "is used and never defined"
                _fail(graph, index, f"%{name} {what}", "a pass that moves or removes ops must keep their users in step")
        defined.add(op.result)


def getitem_is_in_range(graph: Graph) -> None:
    """Tuples are read by ``getitem`` only, at an element that exists, and with that element's type."""
    for index, op in enumerate(graph.ops):
        if op.kind != GETITEM:
            for name in op.uses:
                if isinstance(graph.types[name], TupleType):
                    _fail(graph, index, f"%{name} is a tuple {graph.types[name]}", "take it apart with getitem")
            continue
        source, element = (*op.operands, None, None)[:2]
        if len(op.operands) != 2 or not isinstance(source, Value) or not _is_index(element):
            _fail(graph, index, "getitem takes a tuple and a whole number from 0")
        found = graph.types[source.name]
        if not isinstance(found, TupleType):
            _fail(graph, index, f"getitem reads {source}, which is one tensor {found}")
        if element >= len(found.elements):
            _fail(graph, index, f"getitem reads element {element} of {source}, which has {len(found.elements)}")
        if found.elements[element] is None:
            _fail(graph, index, f"getitem reads element {element} of {source}, where the op returns no tensor")
        if op.type != found.elements[element]:
            _fail(graph, index, f"element {element} of {source} is {found.elements[element]}, not {op.type}")


def outputs_are_defined(graph: Graph) -> None:
    """Returned values exist and are tensors."""
    for name in graph.outputs:
        if name not in graph.types:
            _fail(graph, len(graph.ops), f"%{name} is returned and never defined")
        if isinstance(graph.types[name], TupleType):
            hint = "return what getitem takes from it"
            _fail(graph, len(graph.ops), f"%{name} is returned and is a tuple {graph.types[name]}", hint)


def constants_have_their_bytes(graph: Graph) -> None:
    """A constant holds as many bytes as its type has."""
    for c in graph.constants:
        if (why := _why_not_concrete(c.type)) is not None:
            _fail(graph, None, f"the type of constant %{c.name} {why}")
        if len(c.data) != c.type.nbytes:
            _fail(graph, None, f"constant %{c.name} of type {c.type} holds {len(c.data)} bytes, not {c.type.nbytes}")


def shapes_agree(graph: Graph) -> None:
    """What passes write themselves (reshapes, permute, expand, full, linear) has the shape of its operands."""
    for index, op in enumerate(graph.ops):
        if (why := shapes.why_wrong(op, graph.types)) is not None:
            _fail(graph, index, f"%{op.result} {why}")


# Plan


def groups_partition_the_ops(p: Program) -> None:
    """Every op is in exactly one group, and stands in it in program order; a plan without groups is not made yet."""
    if not p.plan.groups:
        return
    _distinct_group_names(p)
    place = {op.result: index for index, op in enumerate(p.graph.ops)}
    home: dict[str, str] = {}
    for group in p.plan.groups:
        if not group.ops:
            _fail_plan(p, group, f"group {group.name} has no op")
        last = -1
        for name in group.ops:
            if name not in place:
                _fail_plan(p, group, f"group {group.name} holds %{name}, which is the result of no op")
            if name in home:
                where = f"groups {home[name]} and {group.name}" if home[name] != group.name else f"{group.name} twice"
                _fail(p.graph, place[name], f"%{name} is in {where}")
            if place[name] < last:
                _fail_plan(p, group, f"group {group.name} does not hold %{name} in program order")
            home[name], last = group.name, place[name]
    for name, index in place.items():
        if name not in home:
            _fail(p.graph, index, f"%{name} is in no group", "program.with_graph drops a plan that is out of date")


def groups_are_acyclic(p: Program) -> None:
    """No two groups wait for each other, directly or through others."""
    needs = _group_needs(p)
    state: dict[str, bool] = {}  # absent: not seen; True: on the path; False: done
    for root in needs:
        if root in state:
            continue
        path = [root]
        pending = [iter(needs[root])]
        state[root] = True
        while path:
            following = next(pending[-1], None)
            if following is None:
                state[path.pop()] = False
                pending.pop()
            elif following not in state:
                state[following] = True
                path.append(following)
                pending.append(iter(needs[following]))
            elif state[following]:
                cycle = [*path[path.index(following) :], following]
                group = next(g for g in p.plan.groups if g.name == following)
                _fail_plan(p, group, f"groups wait for each other: {' needs '.join(cycle)}")


def groups_follow_data_flow(p: Program) -> None:
    """Groups stand in an order in which what one reads has been computed by one before it."""
    done: set[str] = set()
    for group, needs in zip(p.plan.groups, _group_needs(p).values(), strict=True):
        for needed in needs:
            if needed not in done:
                _fail_plan(p, group, f"group {group.name} stands before group {needed}, which it reads")
        done.add(group.name)


def barriers_name_their_edge(p: Program) -> None:
    """A barrier stands on a value that its producer computes and its consumer reads, and gives a reason."""
    groups = {group.name: group for group in p.plan.groups}
    for barrier in p.plan.barriers:
        edge = f"barrier {barrier.producer} -> {barrier.consumer}"
        for name in (barrier.producer, barrier.consumer):
            if name not in groups:
                _fail_plan(p, None, f"{edge} names {name}, which is no group")
        if barrier.value not in groups[barrier.producer].ops:
            _fail_plan(p, groups[barrier.producer], f"{edge}: its producer does not compute %{barrier.value}")
        if not any(barrier.value in p.graph.defs[name].uses for name in groups[barrier.consumer].ops):
            _fail_plan(p, groups[barrier.consumer], f"{edge}: its consumer does not read %{barrier.value}")
        if not barrier.reason:
            _fail_plan(p, groups[barrier.consumer], f"{edge} gives no reason")


def tiles_cover_their_space(p: Program) -> None:
    """A tile belongs to a group, is no larger than what it cuts, and its group's results fit into what is cut."""
    groups = {group.name: group for group in p.plan.groups}
    for name, tile in p.plan.tiles.items():
        if name not in groups:
            _fail_plan(p, None, f"a tile is given for {name}, which is no group")
        extents = (tile.partition, tile.free, tile.contraction)
        for axis, extent, whole in zip(("partition", "free", "contraction"), extents, tile.space, strict=True):
            least = 0 if axis == "contraction" and whole == 0 else 1
            if not least <= extent <= whole:
                _fail_plan(p, groups[name], f"tile of {name}: {axis} {extent} does not cut an extent of {whole}")
        if tile.batch < 1:
            _fail_plan(p, groups[name], f"tile of {name}: batch is {tile.batch}, not 1 or more")


def tiles_fit_the_target(p: Program) -> None:
    """A tile spans no more partitions and takes no more on-chip memory than the target has."""
    if not p.plan.tiles:
        return
    from neuron_compiler.trainium import target  # the only step up from ir: a limit belongs to a machine

    limits = target.by_name(p.target)
    groups = {group.name: group for group in p.plan.groups}
    for name, tile in p.plan.tiles.items():
        bounds: list[tuple[str, int, int]] = [
            ("partition", tile.partition, limits.num_partitions),
            ("contraction", tile.contraction, limits.num_partitions),
            ("sbuf_bytes", tile.sbuf_bytes, limits.sbuf_bytes),
            ("psum_bytes", tile.psum_bytes, limits.psum_bytes),
        ]
        if groups[name].kind is GroupKind.MATMUL:
            bounds.append(("partition", tile.partition, limits.stationary_free_max))
            bounds.append(("free", tile.free, limits.moving_free_max))
        for what, given, most in bounds:
            if given > most:
                _fail_plan(p, groups[name], f"tile of {name}: {what} is {given}, {p.target} has {most}")


GRAPH_CHECKS: tuple[Callable[[Graph], None], ...] = (
    results_are_unique,
    types_are_concrete,
    operands_are_data,
    subgraphs_hold,
    every_use_is_defined_before,
    getitem_is_in_range,
    outputs_are_defined,
    constants_have_their_bytes,
    shapes_agree,
)
PLAN_CHECKS: tuple[Callable[[Program], None], ...] = (
    groups_partition_the_ops,
    groups_are_acyclic,
    groups_follow_data_flow,
    barriers_name_their_edge,
    tiles_cover_their_space,
    tiles_fit_the_target,
)


# Helpers


def _article(word: str) -> str:
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"


def _why_not_concrete(type_: Type) -> str | None:
    elements = type_.elements if isinstance(type_, TupleType) else (type_,)
    for element in elements:
        if element is None:
            continue
        dtype: object = element.dtype
        if not isinstance(dtype, DType):
            return f"has the element type {dtype!r}, which is no DType"
        for extent in element.shape:
            if type(extent) is not int or extent < 0:
                return f"has the extent {extent!r}"
    return None


def _foreign(operand: Operand) -> object | None:
    """The first part of an operand that the IR has no form for."""
    if isinstance(operand, tuple):
        return next((found for item in operand if (found := _foreign(item)) is not None), None)
    known = (
        operand is None
        or isinstance(operand, Value | DType | Graph)
        or type(operand) in (bool, int, float, complex, str)
    )
    return None if known else operand


def _is_index(operand: Operand) -> TypeGuard[int]:
    return type(operand) is int and operand >= 0


def _distinct_group_names(p: Program) -> None:
    seen: set[str] = set()
    for group in p.plan.groups:
        if group.name in seen:
            _fail_plan(p, group, f"two groups are called {group.name}")
        seen.add(group.name)


def _group_needs(p: Program) -> dict[str, tuple[str, ...]]:
    """For each group, the other groups whose results it reads."""
    home = {name: group.name for group in p.plan.groups for name in group.ops}
    needs: dict[str, tuple[str, ...]] = {}
    for group in p.plan.groups:
        reads = (home[use] for name in group.ops for use in p.graph.defs[name].uses if use in home)
        needs[group.name] = tuple(dict.fromkeys(other for other in reads if other != group.name))
    return needs


def _fail(graph: Graph, index: int | None, what: str, hint: str = "") -> NoReturn:
    """Raise for the op at ``index``; None where the fault is in the inputs or constants."""
    if index is None:
        raise VerifyError(what, hint=hint)
    op = graph.ops[index] if index < len(graph.ops) else None
    try:
        line = "" if op is None else printer.format_op(op)
    except TypeError:
        line = repr(op)
    error = VerifyError(what, op=line, loc="" if op is None else op.loc, hint=hint)
    error.add_note(excerpt.around(graph, index))
    raise error


def _fail_plan(p: Program, group: Group | None, what: str) -> NoReturn:
    """Raise for a group, located at its first op."""
    first = None if group is None else next((p.graph.defs[n] for n in group.ops if n in p.graph.defs), None)
    error = VerifyError(what, loc="" if first is None else first.loc)
    error.add_note("\n".join(["the plan:", *printer.plan_lines(p.plan, mark=None if group is None else group.name)]))
    raise error


def _at_stage(error: VerifyError, when: str) -> VerifyError:
    placed = VerifyError(error.what, op=error.op, loc=error.loc, when=when, hint=error.hint)
    for note in getattr(error, "__notes__", ()):
        placed.add_note(note)
    return placed
