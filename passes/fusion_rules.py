"""What may share a group: the role of each op, the iteration space of each region, and the reasons why not.

Pure rules for ``passes/fuse``. A region grows op by op; it knows its space (a number of elements, and how they are
folded where it holds a reduction) and, for each of its values, how the value lies in that space. Two regions may become
one when the value between them lies in both spaces the same way.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from neuron_compiler.ir import space
from neuron_compiler.ir.graph import GETITEM, Op, TensorType, Type, Value
from neuron_compiler.ir.space import Runs, base_name
from neuron_compiler.opdef import Kind


class Role(enum.Enum):
    """What an op does for the group that it is in."""

    VECTOR = "vector"
    """One result element per element of the space."""
    REDUCE = "reduce"
    """Folds some dimensions of its first operand."""
    MATRIX = "matrix"
    """A product on TensorE: at most one per group."""
    ATTENTION = "attention"
    VIEW = "view"
    """Addresses elements differently; joins whoever reads or writes it."""
    CREATION = "creation"
    ALONE = "alone"
    """Not fused with computation: indexing, sorting, scanning, pooling, and ops of no known family."""


class Place(enum.Enum):
    """How a value lies in the space of its region."""

    FULL = "full"
    """One element per element of the space, in its order."""
    PERMUTED = "permuted"
    """One element per element of the space, its dimensions in another order."""
    ROW = "row"
    """One element per element that the region's reduction keeps."""
    APART = "apart"
    """Anything else: sliced, folded further, a smaller operand computed on the side."""


IN_SPACE = (Place.FULL, Place.PERMUTED)


@dataclass(frozen=True)
class Facts:
    """One op as fusion sees it.

    Attributes:
        role: what it does for a group.
        kind: its family, for the words of a reason.
        numel: elements of its own iteration space; 0 for views and creations, which have none.
        runs: how a reduction folds that space; empty where that is not known; None for other roles.
        movement: it computes nothing but a conversion of elements: view, cast, creation.
    """

    role: Role
    kind: Kind
    numel: int
    runs: Runs | None
    movement: bool


CASTS = frozenset({"_to_copy", "convert_element_type", "to"})
CONCATENATIONS = frozenset({"cat", "stack"})
_COPIES = frozenset({"clone", "contiguous", "alias", "detach", "lift_fresh_copy", "lift_fresh"})
_INFERENCE_NORMS = frozenset({"_native_batch_norm_legit_no_training"})
_TRAINING_FLAG = {"native_batch_norm": 5, "cudnn_batch_norm": 5, "batch_norm": 5, "_native_batch_norm_legit": 5}
_PICKS = frozenset({"nll_loss_forward", "nll_loss2d_forward", "nll_loss", "nll_loss_nd"})

_ROLES: Mapping[Kind, Role] = {
    Kind.ELEMENTWISE: Role.VECTOR,
    Kind.REDUCTION: Role.REDUCE,
    Kind.NORMALISATION: Role.REDUCE,
    Kind.VIEW: Role.VIEW,
    Kind.CONTRACTION: Role.MATRIX,
    Kind.CONVOLUTION: Role.MATRIX,
    Kind.ATTENTION: Role.ATTENTION,
    Kind.CREATION: Role.CREATION,
}


def facts_of(op: Op, kind: Kind, types: Mapping[str, Type]) -> Facts:
    """The facts of one op, from its family, its arguments and the types around it."""
    role, name = _role_of(op, kind, types), base_name(op.kind)
    result, data = space.result_type(op), space.operand_type(op, 0, types)
    if role is Role.REDUCE:
        numel = data.numel if data is not None else 0
        return Facts(role, kind, numel, space.reduction_runs(op, types) or (), False)
    if role in (Role.VIEW, Role.CREATION):
        return Facts(role, kind, 0, None, True)
    return Facts(role, kind, result.numel if result is not None else 0, None, name in CASTS)


def _role_of(op: Op, kind: Kind, types: Mapping[str, Type]) -> Role:
    name = base_name(op.kind)
    if op.kind == GETITEM or name in _COPIES:
        return Role.VIEW
    # Parts of a tile are written by several instructions: to its consumers a concatenation is one elementwise value.
    if name in CONCATENATIONS:
        return Role.VECTOR
    # With given statistics a batch norm scales and shifts each element; nothing is folded.
    if name in _INFERENCE_NORMS or (name in _TRAINING_FLAG and op.operand(_TRAINING_FLAG[name]) is False):
        return Role.VECTOR
    if name in _PICKS or (name == "gather" and _picks_one(op, types)):
        return Role.REDUCE
    return _ROLES.get(kind, Role.ALONE)


def _picks_one(op: Op, types: Mapping[str, Type]) -> bool:
    """Whether a gather takes one element of each row: a comparison with an iota and a sum, on the chip."""
    data, dimension, index = space.operand_type(op, 0, types), op.operand(1), space.operand_type(op, 2, types)
    if data is None or index is None or not isinstance(dimension, int) or not data.rank:
        return False
    axis = dimension % data.rank
    return index.shape == (*data.shape[:axis], 1, *data.shape[axis + 1 :])


@dataclass(slots=True)
class Region:
    """A group in the making. ``ops`` are indices of the graph's ops, ``mask`` the same as bits.

    Attributes:
        before: bits of all ops that the region waits for, closed under "waits for".
        role: that of its anchor; VECTOR where it has none.
        anchor: result of the op that the group is built around, where there is one: a matrix product, attention, an
            op that stays alone.
        anchor_op: that op's ATen name.
        anchor_kind: that op's family.
        numel: elements of its space; 0 while it only moves data.
        runs: how its reductions fold the space; None without one.
        places: how each of its values lies in the space.
        orders: of values in another order, the view that put them so: values of one view lie alike.
    """

    ops: list[int]
    mask: int
    before: int
    role: Role
    anchor: str
    anchor_op: str
    anchor_kind: Kind
    numel: int
    runs: Runs | None
    movement: bool
    places: dict[str, Place] = field(default_factory=dict)
    orders: dict[str, str] = field(default_factory=dict)

    @property
    def is_matrix(self) -> bool:
        return self.role in (Role.MATRIX, Role.ATTENTION)

    @property
    def only_views(self) -> bool:
        """Views and creations, without a space of its own."""
        return self.movement and self.numel == 0


@dataclass(frozen=True)
class Fit:
    """How two regions become one: the space they then have, and where in it the consumer's full values lie.

    ``place`` None leaves them full. A region of views alone takes it for all its values. ``order`` is that of permuted
    ones.
    """

    numel: int
    runs: Runs | None
    place: Place | None = None
    order: str = ""


def place_of(numel: int, region_numel: int, of: Runs | None) -> Place:
    """Place of a value of ``numel`` elements that was computed in the order of the region's space."""
    if numel == region_numel:
        return Place.FULL
    return Place.ROW if of is not None and numel == space.kept(of) else Place.APART


def first_place(op: Op, facts: Facts) -> Place:
    """Place of an op's result in the space of that op alone; a tuple is where its elements are."""
    if facts.role in (Role.VIEW, Role.CREATION, Role.ALONE):
        return Place.APART
    if isinstance(op.type, TensorType):
        return place_of(op.type.numel, facts.numel, facts.runs)
    return Place.FULL


def fit(producer: Region, consumer: Region, op: Op, value: str, facts: Facts, types: Mapping[str, Type]) -> Fit | str:
    """Whether ``op`` of the consumer may read ``value`` inside one group with the producer; else the reason."""
    if (reason := _why_roles_differ(producer, consumer, op)) is not None:
        return reason
    place = producer.places.get(value, Place.APART)
    if facts.role is Role.VIEW and consumer.only_views:  # a view alone: it takes on the space of what it views
        put = view_place(op, place, producer, types)
        return Fit(producer.numel, producer.runs, put, producer.orders.get(value, op.result))
    value_type, result = types[value], space.result_type(op)
    if not isinstance(value_type, TensorType) or result is None:
        return "a tuple is taken apart by views only"
    if place is Place.PERMUTED and _may_follow_order(producer, consumer, op, value, facts):
        return Fit(producer.numel, producer.runs, Place.PERMUTED, producer.orders[value])
    if (odd := _odd_operand(producer, op, types)) is not None:
        return f"different iteration space ({odd})"
    if consumer.places.get(op.result) is Place.PERMUTED:
        return f"different iteration space ({result} is permuted)"
    if place is Place.FULL and producer.numel == consumer.numel:
        if producer.runs is None or consumer.runs is None or _same(producer.runs, consumer.runs):
            return Fit(consumer.numel, producer.runs if consumer.runs is None else consumer.runs)
        return "reductions over different dimensions"
    if place is Place.ROW and (found := _fit_row(producer, consumer, value_type, result, facts)) is not None:
        return found
    # What is left of a full reduction is one element: arithmetic on it ends the group.
    if value_type.numel == 1 == consumer.numel and consumer.runs is None and not producer.is_matrix:
        return Fit(producer.numel, producer.runs, Place.APART)
    return f"different iteration space ({value_type} feeds {result})"


def _may_follow_order(producer: Region, consumer: Region, op: Op, value: str, facts: Facts) -> bool:
    """Whether an op reads nothing of the region but values in that one order: the others are loaded in its inverse."""
    if facts.role is not Role.VECTOR or len(consumer.ops) > 1 or facts.numel != producer.numel:
        return False
    order = producer.orders[value]
    return all(producer.orders.get(use) == order for use in op.uses if use in producer.places)


def _odd_operand(producer: Region, op: Op, types: Mapping[str, Type]) -> str | None:
    """A value of the region that an op reads and that does not lie in the order of its space, in words."""
    for use in op.uses:
        type_ = types[use]
        if isinstance(type_, TensorType) and type_.numel > 1:
            if producer.places.get(use) is Place.PERMUTED:
                return f"{type_} is permuted"
            if producer.places.get(use) is Place.APART:
                return f"{type_} feeds {space.result_type(op)}"
    return None


def _fit_row(
    producer: Region, consumer: Region, value_type: TensorType, result: TensorType, facts: Facts
) -> Fit | None:
    """A statistic per row, used beside the rows, in arithmetic among statistics, or folded to one number."""
    rows = producer.runs
    if rows is None:
        return None
    if consumer.numel == producer.numel and (consumer.runs is None or _same(rows, consumer.runs)):
        read_as = space.broadcast_runs(value_type.shape, result.shape)
        if facts.role is Role.REDUCE or read_as == rows or value_type.numel == 1:
            return Fit(producer.numel, rows)
    if consumer.numel == space.kept(rows) and (consumer.runs is None or space.kept(consumer.runs) == 1):
        return Fit(producer.numel, rows, Place.ROW if consumer.runs is None else Place.APART)
    return None


def _same(a: Runs, b: Runs) -> bool:
    return a == b and a != ()


def view_place(op: Op, place: Place, region: Region, types: Mapping[str, Type]) -> Place:
    """Place of a view's result in the region of what it views."""
    if op.kind == GETITEM:
        result = space.result_type(op)
        if place is Place.APART or result is None:
            return Place.APART
        return place_of(result.numel, region.numel, region.runs)
    if space.keeps_order(op, types):
        return place
    if space.is_permutation(op):
        return Place.PERMUTED if place is Place.FULL else Place.APART
    source = op.operand(0)
    if base_name(op.kind) == "expand" and place is Place.ROW and isinstance(source, Value):
        before, after = types[source.name], op.type
        if isinstance(before, TensorType) and isinstance(after, TensorType) and after.numel == region.numel:
            return Place.FULL if space.broadcast_runs(before.shape, after.shape) == region.runs else Place.APART
    return Place.APART


_MATRIX_WORDS = {Kind.CONTRACTION: "matmul", Kind.CONVOLUTION: "convolution", Kind.ATTENTION: "attention"}
_ALONE_WORDS = {
    Kind.INDEXING: "indexing op",
    Kind.SORT: "sorting op",
    Kind.SCAN: "scan",
    Kind.POOLING: "pooling op",
}


def _why_roles_differ(producer: Region, consumer: Region, op: Op) -> str | None:
    """Why groups built around such anchors are not one, whatever their spaces."""
    for region, other in ((producer, consumer), (consumer, producer)):
        if region.role is Role.ALONE and not (region is producer and other.only_views):
            word = _ALONE_WORDS.get(region.anchor_kind, "op of no fusible family")
            return f"{word} ({region.anchor_op})"
    if producer.is_matrix and consumer.is_matrix:
        a, b = _MATRIX_WORDS[producer.anchor_kind], _MATRIX_WORDS[consumer.anchor_kind]
        return f"two {a}s" if a == b else f"{_with_article(a)} and {_with_article(b)}"
    if consumer.is_matrix and (op.result == consumer.anchor or consumer.places.get(op.result) not in IN_SPACE):
        word = _MATRIX_WORDS[consumer.anchor_kind]
        return f"only casts and views are computed while {_with_article(word)} loads its operands"
    if producer.is_matrix and consumer.runs is not None:
        return f"a reduction over the output of {_with_article(_MATRIX_WORDS[producer.anchor_kind])}"
    if consumer.is_matrix and producer.runs is not None:
        return f"a reduction and {_with_article(_MATRIX_WORDS[consumer.anchor_kind])}"
    return None


def _with_article(word: str) -> str:
    return word if word == "attention" else f"a {word}"
