"""Canonicalize: one way to write what can be written in several, and no op that changes nothing.

What it changes: copies, views, expands, casts and permutes that leave their operand as it is go; chains of reshapes,
of expands and of permutes become one; ``t`` and ``transpose`` become ``permute``; ``x * 1``, ``x / 1``, ``x - 0`` and,
where no zero has a sign, ``x + 0`` become ``x``; a product with a transposed matrix becomes ``aten.linear``, which
contracts the matrix along its own axis, with the leading dimensions that were flattened for it put back.

Why it pays: later passes match fewer forms, fusion is not cut by ops that compute nothing, and XLA is never handed the
transpose of a weight, which costs it a copy of the weight on every call: tenfold on a decoder's step.

Before and after::

    %0 = aten.view.default(%x, [8, 16]) : f32[8,16]
    %1 = aten.permute.default(%w, [1, 0]) : f32[16,32]
    %2 = aten.addmm.default(%b, %0, %1) : f32[8,32]
    %3 = aten.view.default(%2, [2, 4, 32]) : f32[2,4,32]

    %3 = aten.linear.default(%x, %w, %b) : f32[2,4,32]

It assumes that a value is its elements alone: that two results do not share memory where PyTorch's would not is the
runtime's care. No rewrite changes a bit of any element: ``x + 0`` stays for floats, since it turns -0.0 into 0.0, and a
cast and its way back go only where the way there lost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import copysign, prod
from typing import ClassVar

from neuron_compiler.ir.graph import DType, Op, Operand, TensorType, Value
from neuron_compiler.ir.plan import Program
from neuron_compiler.ir.shapes import EXPAND, LINEAR, PERMUTE, RESHAPES, integers, permutation
from neuron_compiler.passes.rewrite import Replacement, Rule, Scope, rewrite, rules_by_kind

VIEW = "aten.view.default"
CASTS = ("aten._to_copy.default", "prims.convert_element_type.default")
COPIES = (
    "aten.alias.default",
    "aten.clone.default",
    "aten.contiguous.default",
    "aten.detach.default",
    "aten.lift_fresh.default",
    "aten.lift_fresh_copy.default",
)


@dataclass(frozen=True)
class Canonicalize:
    """Local rewrites to one form; see the module."""

    name: ClassVar[str] = "canonicalize"

    def __call__(self, program: Program) -> Program:
        return rewrite(program, lambda op: _RULES.get(op.kind, ()))


def drop_unchanged(op: Op, scope: Scope) -> Replacement:
    """An op that moves or converts nothing if its type is its operand's: ``clone(x)`` is x, and so is a whole slice."""
    source = op.operand(0)
    return source if isinstance(source, Value) and scope.type(source) == op.type else None


def drop_overwritten(op: Op, scope: Scope) -> Replacement:
    """``copy(x, y)`` has the elements of y."""
    source = op.operand(1)
    return source if isinstance(source, Value) and scope.type(source) == op.type else None


def drop_cat_of_one(op: Op, scope: Scope) -> Replacement:
    parts = op.operand(0)
    if not isinstance(parts, tuple) or len(parts) != 1 or not isinstance(part := parts[0], Value):
        return None
    return part if scope.type(part) == op.type else None


def merge_reshapes(op: Op, scope: Scope) -> Replacement:
    """A reshape of a reshape reads the first one's operand; any becomes a view with its extents written out."""
    source = op.operand(0)
    if (inner := scope.op(source)) is not None and inner.kind in RESHAPES:
        return _view(op, inner.operand(0), scope)
    if op.kind in (VIEW, "aten._unsafe_view.default", "aten.reshape.default"):
        return _view(op, source, scope)
    return None


def _view(op: Op, source: Operand, scope: Scope) -> Replacement:
    """``op`` as a view of another value with the same elements; that value itself if it has the shape."""
    if not isinstance(source, Value) or not isinstance(op.type, TensorType):
        return None
    if scope.type(source) == op.type:
        return source
    return _changed(op, replace(op, kind=VIEW, operands=(source, op.type.shape), attrs=()))


def merge_expands(op: Op, scope: Scope) -> Replacement:
    """An expand of an expand reads the first one's operand; its extents are written out."""
    if not isinstance(op.type, TensorType):
        return None
    source = op.operand(0)
    if (inner := scope.op(source)) is not None and inner.kind == EXPAND:
        source = inner.operand(0)
    return _changed(op, replace(op, operands=(source, op.type.shape), attrs=()))


def transpose_to_permute(op: Op, scope: Scope) -> Replacement:
    """``t`` and ``transpose`` as the permute that they are."""
    source = scope.type(op.operand(0))
    if source is None:
        return None
    dims = list(range(source.rank))
    if op.kind == "aten.transpose.int":
        swapped = integers(op.operands[1:3])
        if swapped is None or len(swapped) != 2:
            return None
        if source.rank:
            a, b = (d % source.rank for d in swapped)
            dims[a], dims[b] = b, a
    else:
        dims.reverse()
    return replace(op, kind=PERMUTE, operands=(op.operands[0], tuple(dims)), attrs=())


def merge_permutes(op: Op, scope: Scope) -> Replacement:
    """A permute of a permute is one permute of the first one's operand; one that keeps the order is no op."""
    source = op.operand(0)
    type_ = scope.type(source)
    if type_ is None or (dims := permutation(op, type_.rank)) is None:
        return None
    if (inner := scope.op(source)) is not None and inner.kind == PERMUTE:
        first = permutation(inner, type_.rank)
        if first is None:
            return None
        source, dims = inner.operand(0), tuple(first[d] for d in dims)
    if isinstance(source, Value) and dims == tuple(range(type_.rank)):
        return source
    return _changed(op, replace(op, operands=(source, dims), attrs=()))


def drop_cast_round_trip(op: Op, scope: Scope) -> Replacement:
    """A cast to a type that holds every value of the first, and back: ``bf16 -> f32 -> bf16``."""
    inner = scope.op(op.operand(0))
    if inner is None or inner.kind not in CASTS:
        return None
    source = inner.operand(0)
    type_ = scope.type(source)
    if not isinstance(source, Value) or type_ is None or type_ != op.type:
        return None
    wide = inner.type.dtype if isinstance(inner.type, TensorType) else type_.dtype
    return source if _holds_every_value(wide, type_.dtype) else None


_MANTISSA = {DType.F16: (11, 5), DType.BF16: (8, 8), DType.F32: (24, 8), DType.F64: (53, 11)}


def _holds_every_value(wide: DType, narrow: DType) -> bool:
    if narrow is DType.BOOL:
        return True
    if wide in _MANTISSA and narrow in _MANTISSA:
        return all(w >= n for w, n in zip(_MANTISSA[wide], _MANTISSA[narrow], strict=True))
    if wide.is_integer and narrow.is_integer:
        more_bits = wide.itemsize > narrow.itemsize
        return more_bits and (wide.value[0] == narrow.value[0] or narrow.value[0] == "u")
    return False


def drop_neutral(op: Op, scope: Scope) -> Replacement:
    """``x * 1``, ``1 * x``, ``x / 1``, ``x - 0``; ``x + 0`` and ``0 + x`` where that keeps every bit."""
    if op.attrs or len(op.operands) != 2:
        return None
    base = op.kind.split(".")[1]
    for source, number in (op.operands, op.operands[::-1]):
        if isinstance(source, Value) and _is_number(number) and scope.type(source) == op.type:
            commutes = base in ("mul", "add") or source is op.operands[0]
            return source if commutes and _is_neutral(base, number, op.type) else None
    return None


def _is_number(operand: Operand) -> bool:
    return isinstance(operand, int | float) and not isinstance(operand, bool)


def _is_neutral(base: str, number: Operand, type_: object) -> bool:
    # Complex products mix real and imaginary parts: infinity times the scalar's zero is NaN.
    if not isinstance(type_, TensorType) or not isinstance(number, int | float):
        return False
    if not (type_.dtype.is_integer or type_.dtype.is_floating):
        return False
    if base in ("mul", "div"):
        return number == 1
    if number != 0:
        return False
    negative = copysign(1.0, number) < 0
    return type_.dtype.is_integer or (base == "sub") != negative


def product_to_linear(op: Op, scope: Scope) -> Replacement:
    """``mm(x, permute(w))`` and ``addmm(b, x, permute(w))`` as ``linear(x, w, b)``, which transposes nothing."""
    if op.attrs or not isinstance(op.type, TensorType) or not op.type.dtype.is_floating:
        return None
    *bias, x, transposed = op.operands
    permute = scope.op(transposed)
    if permute is None or permute.kind != PERMUTE or permutation(permute, 2) != (1, 0):
        return None
    if bias and scope.type(bias[0]) != TensorType(op.type.shape[1:], op.type.dtype):
        return None
    return replace(op, kind=LINEAR, operands=(x, permute.operands[0], *bias))


def linear_over_leading(op: Op, scope: Scope) -> Replacement:
    """``view(linear(view(x), w, b))`` as ``linear(x, w, b)`` if the views only fold and unfold leading dimensions."""
    inner = scope.op(op.operand(0))
    if inner is None or inner.kind != LINEAR or not scope.is_read_once(inner.result):
        return None
    x, *parameters = inner.operands
    flat = scope.op(x)
    if flat is None or flat.kind not in RESHAPES or not isinstance(op.type, TensorType):
        return None
    whole, weight, flat_type = scope.type(flat.operand(0)), scope.type(parameters[0]), scope.type(x)
    if whole is None or flat_type is None or weight is None or weight.rank != 2:
        return None
    *leading, columns = op.type.shape or (0,)
    if columns != weight.shape[0] or flat_type.numel != prod(leading) * flat_type.shape[-1]:
        return None
    linear = Op(op.result, LINEAR, (flat.operands[0], *parameters), op.type, inner.attrs, inner.loc)
    type_ = TensorType((*leading, flat_type.shape[-1]), flat_type.dtype)
    if whole == type_:
        return linear
    view = Op(scope.new_name(op.result), VIEW, (flat.operands[0], type_.shape), type_, (), flat.loc)
    return view, replace(linear, operands=(Value(view.result), *parameters))


def _changed(op: Op, other: Op) -> Op | None:
    return None if other == op else other


def _overloads(*names: str) -> Sequence[str]:
    return [f"aten.{name}" for name in names]


_PAIRS: Sequence[tuple[Sequence[str], Rule]] = (
    ((*COPIES, *CASTS, *RESHAPES, EXPAND), drop_unchanged),
    (_overloads("slice.Tensor", "repeat.default", "narrow.int"), drop_unchanged),
    (_overloads("copy.default"), drop_overwritten),
    (_overloads("cat.default"), drop_cat_of_one),
    (CASTS, drop_cast_round_trip),
    (tuple(RESHAPES), linear_over_leading),
    (tuple(RESHAPES), merge_reshapes),
    ((EXPAND,), merge_expands),
    (_overloads("t.default", "transpose.int", "numpy_T.default"), transpose_to_permute),
    ((PERMUTE,), merge_permutes),
    (_overloads("mul.Tensor", "mul.Scalar", "div.Tensor", "div.Scalar"), drop_neutral),
    (_overloads("add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar"), drop_neutral),
    (_overloads("mm.default", "addmm.default"), product_to_linear),
)
_RULES = rules_by_kind(*_PAIRS)
