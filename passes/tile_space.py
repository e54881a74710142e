"""What ``passes/tile`` cuts: the iteration space of a group, from its anchor."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from neuron_compiler.ir import space
from neuron_compiler.ir.graph import Graph, Op, TensorType
from neuron_compiler.ir.plan import Group, GroupKind, group_boundary
from neuron_compiler.ir.space import Gemm, result_type
from neuron_compiler.opdef import Registry, kind_of
from neuron_compiler.passes.fusion_rules import Role, facts_of
from neuron_compiler.trainium.target import Target


@dataclass(frozen=True)
class Space:
    """(partition, free, contraction) extents, ``batch`` times over."""

    extents: tuple[int, int, int]
    batch: int = 1
    on_tensor_engine: bool = False

    @property
    def elements(self) -> int:
        """Elements of the result."""
        return prod(self.extents[:2]) * self.batch


class GroupView:
    """A group with what is asked of it: its ops by role, what it reads and what it gives."""

    def __init__(self, graph: Graph, group: Group, registry: Registry, target: Target) -> None:
        self.graph, self.group, self.target = graph, group, target
        self.ops = [graph.defs[name] for name in group.ops]
        self.facts = {op.result: facts_of(op, kind_of(op, registry), graph.types) for op in self.ops}
        self.inside = frozenset(group.ops)

    def with_role(self, *roles: Role) -> list[Op]:
        return [op for op in self.ops if self.facts[op.result].role in roles]

    def reads(self) -> list[tuple[str, TensorType]]:
        """Tensors that come from outside, in order of first use."""
        names = dict.fromkeys(use for op in self.ops for use in op.uses if use not in self.inside)
        return [(name, t) for name in names if isinstance(t := self.graph.types[name], TensorType)]

    def gives(self) -> list[TensorType]:
        """Types of the tensors that are read outside."""
        types = (self.graph.types[name] for name in group_boundary(self.graph, self.group)[1])
        return [t for t in types if isinstance(t, TensorType)]

    def product(self) -> tuple[Op, Gemm] | None:
        """The first matrix product or convolution whose extents are known."""
        for op in self.with_role(Role.MATRIX):
            if (gemm := space.gemm_of(op, self.graph.types)) is not None:
                return op, gemm
        return None


def space_of(view: GroupView) -> Space | None:
    """The space of a group; None where it has none or its extents are not known."""
    kind = view.group.kind
    if kind is GroupKind.ATTENTION:  # the scores: of a fused op, or of the first of its two products
        for op in view.with_role(Role.ATTENTION):
            if (scores := space.attention_of(op, view.graph.types)) is not None:
                return _of_gemm(scores)
    if kind in (GroupKind.MATMUL, GroupKind.CONVOLUTION, GroupKind.ATTENTION):
        product = view.product()
        return _of_gemm(product[1]) if product is not None else None
    if kind is GroupKind.REDUCTION:
        return _of_reduction(view)
    if kind is GroupKind.ELEMENTWISE:
        return _of_elements(view)
    return None


def _of_gemm(gemm: Gemm) -> Space:
    return Space((gemm.rows, gemm.columns, gemm.contracted), gemm.batch, on_tensor_engine=True)


def _of_reduction(view: GroupView) -> Space | None:
    """What is kept, by what is folded; rows by last dimension where a reduction does not say what it folds."""
    widest = max(view.with_role(Role.REDUCE), key=lambda op: view.facts[op.result].numel, default=None)
    if widest is None:
        return None
    if runs := view.facts[widest.result].runs:
        return Space((space.kept(runs), space.folded(runs), 0))
    data = space.operand_type(widest, 0, view.graph.types)
    return None if data is None else _rows_by_last(data)


def _rows_by_last(of: TensorType) -> Space:
    last = of.shape[-1] if of.rank else 1
    return Space((of.numel // last if last else 0, last, 0))


def _of_elements(view: GroupView) -> Space | None:
    computed = [t for op in view.with_role(Role.VECTOR) if (t := result_type(op)) is not None]
    if not computed:
        return None
    widest = max(computed, key=lambda t: t.numel)
    found = _rows_by_last(widest)
    repeats = any(1 < t.numel < widest.numel for t in (*computed, *(t for _, t in view.reads())))
    partitions = view.target.num_partitions
    if found.extents[0] < partitions and not repeats and widest.numel:
        # Nothing repeats along rows, so elements may lie anywhere: spread them over the partitions.
        rows = next(p for p in range(min(partitions, widest.numel), 0, -1) if widest.numel % p == 0)
        return Space((rows, widest.numel // rows, 0))
    return found
