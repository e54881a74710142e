"""Shapes of the ops that passes read and write themselves, told from ATen's documentation of each.

``why_wrong(op, types)`` says in half a sentence why an op's recorded type cannot be, or None. Ops without a rule here
are PyTorch's word alone: the emitter compares them with their lowering.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from neuron_compiler.ir.graph import Op, Operand, TensorType, Type, Value

RESHAPES = frozenset(
    f"aten.{name}"
    for name in (
        "view.default",
        "_unsafe_view.default",
        "reshape.default",
        "unsqueeze.default",
        "squeeze.default",
        "squeeze.dim",
        "squeeze.dims",
        "flatten.using_ints",
    )
)
"""Ops that give their operand's elements another shape, in row-major order."""

LINEAR = "aten.linear.default"
PERMUTE = "aten.permute.default"
EXPAND = "aten.expand.default"
FULL = "aten.full.default"


def why_wrong(op: Op, types: Mapping[str, Type]) -> str | None:
    """Why an op's operands and type do not go together; None where they do or no rule is known."""
    rule = _RULES.get(op.kind)
    return None if rule is None else rule(op, types)


def integers(operand: Operand) -> tuple[int, ...] | None:
    """A list of whole numbers, or None where the operand is something else."""
    if isinstance(operand, tuple) and all(type(item) is int for item in operand):
        return tuple(item for item in operand if isinstance(item, int))
    return None


def permutation(op: Op, rank: int) -> tuple[int, ...] | None:
    """The dimensions that a permute names, counted from the front; None where they are no order of ``rank``."""
    given = integers(op.operand(1))
    if given is None or len(given) != rank:
        return None
    dims = tuple(d + rank if d < 0 else d for d in given)
    return dims if sorted(dims) == list(range(rank)) else None


def _tensor(op: Op, types: Mapping[str, Type], index: int) -> TensorType | None:
    operand = op.operand(index)
    found = types.get(operand.name) if isinstance(operand, Value) else None
    return found if isinstance(found, TensorType) else None


def _both(op: Op, types: Mapping[str, Type]) -> tuple[TensorType, TensorType] | None:
    source = _tensor(op, types, 0)
    return (source, op.type) if source is not None and isinstance(op.type, TensorType) else None


_NO_TENSOR = "does not read one tensor and give one"


def _reshape(op: Op, types: Mapping[str, Type]) -> str | None:
    if (both := _both(op, types)) is None:
        return _NO_TENSOR
    source, result = both
    if source.numel != result.numel or source.dtype is not result.dtype:
        return f"reshapes {source} into {result}"
    return None


def _permute(op: Op, types: Mapping[str, Type]) -> str | None:
    if (both := _both(op, types)) is None:
        return _NO_TENSOR
    source, result = both
    dims = permutation(op, source.rank)
    if dims is None:
        return f"permutes {source} by what is no order of its dimensions"
    wanted = TensorType(tuple(source.shape[d] for d in dims), source.dtype)
    return None if result == wanted else f"permutes {source} into {result}, not {wanted}"


def _expand(op: Op, types: Mapping[str, Type]) -> str | None:
    if (both := _both(op, types)) is None:
        return _NO_TENSOR
    source, result = both
    tail = result.shape[result.rank - source.rank :]
    fits = result.rank >= source.rank and all(a in (b, 1) for a, b in zip(source.shape, tail, strict=True))
    return None if fits and source.dtype is result.dtype else f"expands {source} into {result}"


def _full(op: Op, types: Mapping[str, Type]) -> str | None:
    shape = integers(op.operand(0))
    if not isinstance(op.type, TensorType) or shape != op.type.shape:
        return f"fills a shape that is not that of {op.type}"
    dtype = op.attr("dtype")
    return None if dtype in (None, op.type.dtype) else f"has an element type that is not that of {op.type}"


def _linear(op: Op, types: Mapping[str, Type]) -> str | None:
    x, weight, bias = (_tensor(op, types, i) for i in range(3))
    if x is None or weight is None or not isinstance(op.type, TensorType):
        return _NO_TENSOR
    if weight.rank not in (1, 2) or not x.rank or x.shape[-1] != weight.shape[-1]:
        return f"multiplies {x} by a weight {weight}"
    wanted = TensorType((*x.shape[:-1], *weight.shape[:-1]), x.dtype)
    if op.type != wanted:
        return f"multiplies {x} by a weight {weight} into {op.type}, not {wanted}"
    if bias is not None and (bias.rank > op.type.rank or prod(bias.shape) not in (1, prod(weight.shape[:-1]))):
        return f"adds a bias {bias} to {op.type}"
    return None


_RULES: Mapping[str, Callable[[Op, Mapping[str, Type]], str | None]] = {
    **dict.fromkeys(RESHAPES, _reshape),
    PERMUTE: _permute,
    EXPAND: _expand,
    FULL: _full,
    LINEAR: _linear,
}
