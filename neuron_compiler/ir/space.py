"""Iteration spaces: the extents that one op runs over, read off its operands and types.

Used by ``passes/fuse`` (which ops share a space), ``passes/tile`` (what is cut) and ``trainium/execute`` (what is run
tile by tile). Pure functions of an op and the types around it; an op that is not known gives None, never a guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from neuron_compiler.ir.graph import Op, Operand, TensorType, TupleType, Type, Value

Types: TypeAlias = Mapping[str, Type]

Runs: TypeAlias = tuple[tuple[int, bool], ...]
"""A tensor's elements in row-major order as runs of (extent, is reduced); neighbours differ, no extent is 1."""


@dataclass(frozen=True)
class Gemm:
    """``batch`` products of a [rows, contracted] matrix by a [contracted, columns] matrix."""

    batch: int
    rows: int
    columns: int
    contracted: int


def base_name(kind: str) -> str:
    """``aten.mm.default`` → ``mm``; ``getitem`` stays."""
    parts = kind.split(".")
    return parts[1] if len(parts) > 1 else kind


def operand_type(op: Op, index: int, types: Types) -> TensorType | None:
    """Type of the tensor at a positional operand, None where there is no tensor."""
    operand = op.operand(index)
    if not isinstance(operand, Value):
        return None
    found = types[operand.name]
    return found if isinstance(found, TensorType) else None


def result_type(op: Op) -> TensorType | None:
    """Type of the op's first tensor."""
    if isinstance(op.type, TensorType):
        return op.type
    return next((t for t in op.type.elements if t is not None), None)


# Positions of the two matrices among the operands.
_MATRICES = {
    "mm": (0, 1),
    "bmm": (0, 1),
    "addmm": (1, 2),
    "baddbmm": (1, 2),
    "linear": (0, 1),
    "mv": (0, 1),
    "addmv": (1, 2),
    "dot": (0, 1),
    "vdot": (0, 1),
}


def matrix_operands(op: Op) -> tuple[int, int] | None:
    """Positions of the left and right matrix of a product, None for another op."""
    return _MATRICES.get(base_name(op.kind))


def gemm_of(op: Op, types: Types) -> Gemm | None:
    """The matrix product that a contraction or convolution is, None where that is not known.

    A convolution counts as the product of its patches [pixels, channels x window] and its filters; one product per
    channel group.
    """
    name = base_name(op.kind)
    if (positions := _MATRICES.get(name)) is not None:
        left, right = (operand_type(op, i, types) for i in positions)
        return None if left is None or right is None else _product(name, left.shape, right.shape)
    if name == "convolution":
        return _convolution(op, types)
    if name == "convolution_backward":
        return _convolution_backward(op, types)
    return None


def _product(name: str, left: tuple[int, ...], right: tuple[int, ...]) -> Gemm:
    if name in ("bmm", "baddbmm"):
        return Gemm(left[0], left[1], right[2], left[2])
    if name == "linear":  # the right matrix is stored [columns, contracted]; a vector has one column
        return Gemm(1, prod(left[:-1]), right[0] if len(right) == 2 else 1, left[-1])
    if name in ("dot", "vdot"):
        return Gemm(1, 1, 1, left[0])
    return Gemm(1, left[0], right[1] if len(right) == 2 else 1, left[1])


def _convolution(op: Op, types: Types) -> Gemm | None:
    weight, result = operand_type(op, 1, types), result_type(op)
    groups = op.operand(8)
    if weight is None or result is None or not isinstance(groups, int) or result.rank != weight.rank:
        return None
    batch, channels, *pixels = result.shape
    transposed = op.operand(6) is True
    # Filters are [out, in / groups, window], those of a transposed convolution [in, out / groups, window].
    incoming = weight.shape[0] // groups if transposed else weight.shape[1]
    return Gemm(groups, batch * prod(pixels), channels // groups, incoming * prod(weight.shape[2:]))


def _convolution_backward(op: Op, types: Types) -> Gemm | None:
    """The product for the gradient of the input where that is asked for, else that of the weight."""
    gradient, data, weight = (operand_type(op, i, types) for i in range(3))
    groups = op.operand(9)
    if gradient is None or data is None or weight is None or not isinstance(groups, int):
        return None
    window = prod(weight.shape[2:])
    if not isinstance(op.type, TupleType):
        return None
    if op.type.elements[0] is not None:
        pixels = data.shape[0] * prod(data.shape[2:])
        return Gemm(groups, pixels, data.shape[1] // groups, gradient.shape[1] // groups * window)
    pixels = gradient.shape[0] * prod(gradient.shape[2:])
    return Gemm(groups, gradient.shape[1] // groups, data.shape[1] // groups * window, pixels)


def attention_of(op: Op, types: Types) -> Gemm | None:
    """The score matrix of a fused attention op: [queries, keys] for each batch and head, contracted over its width."""
    first = 1 if base_name(op.kind).endswith("_backward") else 0  # after the gradient of the result
    query, key = operand_type(op, first, types), operand_type(op, first + 1, types)
    if query is None or key is None or query.rank < 3 or key.rank < 3:
        return None
    return Gemm(prod(query.shape[:-2]), query.shape[-2], key.shape[-2], query.shape[-1])


def runs(shape: tuple[int, ...], reduced: frozenset[int]) -> Runs:
    """The shape as runs, with the axes in ``reduced`` (counted from 0) reduced."""
    found: list[tuple[int, bool]] = []
    for axis, extent in enumerate(shape):
        if extent == 1:
            continue
        if found and found[-1][1] == (axis in reduced):
            found[-1] = (found[-1][0] * extent, found[-1][1])
        else:
            found.append((extent, axis in reduced))
    return tuple(found)


def kept(of: Runs) -> int:
    """Elements that stay after the reduction."""
    return prod(extent for extent, is_reduced in of if not is_reduced)


def folded(of: Runs) -> int:
    """Elements that are folded into each one that stays."""
    return prod(extent for extent, is_reduced in of if is_reduced)


# Position of the dimension(s) among the operands of reductions and normalisations.
# fmt: off
_DIMENSION = {
    **dict.fromkeys((
        "sum", "nansum", "mean", "prod", "any", "all", "count_nonzero", "amax", "amin", "aminmax", "max", "min",
        "argmax", "argmin", "var", "std", "var_mean", "std_mean", "logsumexp",
        "_softmax", "softmax", "_safe_softmax", "_log_softmax", "log_softmax",
    ), 1),
    **dict.fromkeys(("linalg_vector_norm", "norm", "_softmax_backward_data", "_log_softmax_backward_data"), 2),
}
# fmt: on

# Position of ``normalized_shape``: the trailing dimensions that are normalised over.
_NORMALISED_SHAPE = {
    "layer_norm": 1,
    "native_layer_norm": 1,
    "rms_norm": 1,
    "_fused_rms_norm": 1,
    "native_layer_norm_backward": 2,
    "_fused_rms_norm_backward": 2,
}

# Positions of the batch and of the number of groups.
_GROUPED = {"native_group_norm": (3, 6), "native_group_norm_backward": (5, 8)}

_PER_CHANNEL = (
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional",
    "native_batch_norm_backward",
)
_PER_ROW_PICK = ("nll_loss_forward", "nll_loss2d_forward", "nll_loss_nd", "nll_loss", "cross_entropy_loss")


def reduction_runs(op: Op, types: Types) -> Runs | None:
    """What a reduction or normalisation folds of its first operand, None where that is not known."""
    name = base_name(op.kind)
    data = operand_type(op, 0, types)
    if data is None:
        return None
    if (position := _NORMALISED_SHAPE.get(name)) is not None:
        shape = op.operand(position)
        return None if not isinstance(shape, tuple) else _axes(data, range(data.rank - len(shape), data.rank))
    if name in _PER_CHANNEL:
        return _axes(data, (axis for axis in range(data.rank) if axis != 1))
    if name in _PER_ROW_PICK:  # one class is picked per row; the mean over rows follows
        return _axes(data, [min(1, data.rank - 1)])
    if name == "gather":
        dimension = op.operand(1)
        return _axes(data, [dimension % data.rank]) if isinstance(dimension, int) and data.rank else None
    if name in _GROUPED:
        batch, groups = (op.operand(i) for i in _GROUPED[name])
        if not isinstance(batch, int) or not isinstance(groups, int):
            return None
        return runs((batch * groups, data.numel // max(1, batch * groups)), frozenset({1}))
    if (position := _DIMENSION.get(name)) is not None:
        return _axes(data, dimensions(op, position, data.rank))
    result = result_type(op)
    return _axes(data, range(data.rank)) if result is not None and result.numel == 1 else None


def _axes(data: TensorType, axes: Iterable[int]) -> Runs:
    return runs(data.shape, frozenset(axes))


def dimensions(op: Op, position: int, rank: int) -> tuple[int, ...]:
    """The axes that a reduction folds, by the operand at a position or by ``dim``; all where none is named."""
    # The keyword form is that of overloads whose dimensions are keyword-only or were canonicalised so.
    given: Operand = op.operand(position, op.attr("dim"))
    if given is None or given == () or isinstance(given, Value | bool) or rank == 0:
        return tuple(range(rank))
    listed = given if isinstance(given, tuple) else (given,)
    return tuple(d % rank for d in listed if isinstance(d, int))


# fmt: off
RESHAPES = frozenset((
    "view", "_unsafe_view", "reshape", "_reshape_alias", "unsqueeze", "squeeze", "flatten", "unflatten", "view_as",
    "alias", "detach", "clone", "contiguous", "lift_fresh", "lift_fresh_copy",
))
# fmt: on
"""Views that keep every element's place in row-major order."""

_PERMUTES = frozenset(("permute", "transpose", "t"))


def keeps_order(op: Op, types: Types) -> bool:
    """Whether a view leaves the elements in row-major order: a reshape, or a permutation that only moves ones."""
    name = base_name(op.kind)
    source, result = operand_type(op, 0, types), op.type
    if source is None or not isinstance(result, TensorType) or source.numel != result.numel:
        return False
    if name in RESHAPES or name == "expand":
        return True
    if name not in _PERMUTES:
        return False
    moved = [axis for axis in permutation(op, source.rank) if source.shape[axis] > 1]
    return moved == sorted(moved)


def is_permutation(op: Op) -> bool:
    """Whether a view only changes the order of the dimensions."""
    return base_name(op.kind) in _PERMUTES


def permutation(op: Op, rank: int) -> tuple[int, ...]:
    """The source axis at each place of the result of ``permute``, ``transpose`` or ``t``."""
    name, order = base_name(op.kind), list(range(rank))
    first, second = op.operand(1), op.operand(2)
    if name == "permute" and isinstance(first, tuple):
        return tuple(d % rank for d in first if isinstance(d, int))
    if name == "transpose" and isinstance(first, int) and isinstance(second, int) and rank:
        order[first % rank], order[second % rank] = order[second % rank], order[first % rank]
        return tuple(order)
    return tuple(reversed(order))


def broadcast_runs(source: tuple[int, ...], result: tuple[int, ...]) -> Runs:
    """The result's shape with the axes that ``source`` is broadcast along marked as reduced."""
    padded = (1,) * (len(result) - len(source)) + source
    return runs(result, frozenset(axis for axis, extent in enumerate(padded) if extent == 1))
