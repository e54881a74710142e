"""Which groups XLA is kept from taking apart, so that it does not compute the same values over and over.

XLA makes a cheap value that several kernels read anew in each of them, together with the cheap values that it is made
of, and so on up to the next matrix product. Where every block of a network adds to a value that the next block reads
more than once (a depthwise convolution reads it once a tap), kernels grow with the depth of the network: MobileOne's
took 24 GB to compile. A group whose result would be that dear to make anew becomes a call of its own.

In: a program. Out: names of groups. Changes no value.
"""

from __future__ import annotations

from collections.abc import Mapping

from neuron_compiler.ir.graph import GETITEM, Op, TensorType, Type
from neuron_compiler.ir.plan import Group, Program
from neuron_compiler.opdef import REGISTRY, Kind, Registry, kind_of, work_of

MOST_RECOMPUTED = 128
"""Operations for each element of a value, beyond which it is made once. Compiling MobileOne-S0 (64 px) on 2 cores takes
over 20 GB without a limit and 1 GB with it; GPT-2, BERT and ViT have no value as dear."""

MOST_FUSED = 128
"""Operations for each element of a convolution's result, up to which XLA makes it a part of other kernels."""

FUSED = frozenset({Kind.ELEMENTWISE, Kind.VIEW, Kind.NORMALISATION})


def groups_apart(program: Program, groups: tuple[Group, ...], registry: Registry = REGISTRY) -> frozenset[str]:
    """Names of the groups that become calls of their own."""
    graph = program.graph
    home = {name: group.name for group in groups for name in group.ops}
    made_of: dict[str, dict[str, float]] = {}
    apart: set[str] = set()
    for group in groups:
        for name in group.ops:
            op = graph.defs[name]
            own = _operations(op, graph.types, registry)
            if own is None:
                continue
            parts = {name: own}
            for use in op.uses:
                if home.get(use) not in apart or home.get(use) == group.name:
                    parts.update(made_of.get(use, {}))
            made_of[name] = parts
            readers = {home[user.result] for user in graph.users.get(name, ())} - {group.name}
            if len(readers) > 1 and sum(parts.values()) > MOST_RECOMPUTED:
                apart.add(group.name)
    return frozenset(apart)


def _operations(op: Op, types: Mapping[str, Type], registry: Registry) -> float | None:
    """Operations for each element of a result that XLA would make anew; None for one that it keeps in memory."""
    if op.kind == GETITEM:
        return 0.0
    kind = kind_of(op, registry)
    first = op.type if isinstance(op.type, TensorType) else op.type.elements[0]
    if first is None or first.numel == 0 or (kind not in FUSED and kind is not Kind.CONVOLUTION):
        return None
    work = work_of(op, types, registry)
    each = (work.flops + work.transcendentals) / first.numel
    return each if kind in FUSED or each <= MOST_FUSED else None
