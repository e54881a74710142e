"""ConstantFold: what does not depend on the inputs is computed once, when compiling.

What it changes: ``zeros``, ``ones``, ``full_like``, ``scalar_tensor`` and their like become ``aten.full``; a full that
is reshaped, permuted, expanded, sliced, split or cast is a full of another shape or type; a choice by a known condition
is the chosen side; any other op on small constants becomes a constant, if the driver gives ``evaluate``.

Why it pays: masks, position tables and scales are rebuilt on every call otherwise, and an op that seems to read a
tensor only to learn its shape (``full_like``) holds that tensor alive and back from fusion.

Before and after::

    %0 = aten.full_like.default(%x, 0) : f32[4,8]
    %1 = aten.view.default(%0, [32]) : f32[32]

    %1 = aten.full.default([32], 0, dtype=f32) : f32[32]

It assumes that ``evaluate`` computes what the lowering would, to the bit, and keeps out of what may fail at run time. A
``full`` or ``arange`` alone stays an op: it is as cheap as a constant and reads better. Nothing larger than
``max_elements`` is computed or baked in, and no random number is ever drawn here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeAlias

from neuron_compiler.ir import elements
from neuron_compiler.ir.graph import GETITEM, Constant, DType, Op, Operand, TensorType, Value
from neuron_compiler.ir.plan import Program
from neuron_compiler.ir.shapes import EXPAND, FULL, PERMUTE, RESHAPES
from neuron_compiler.passes.canonicalize import CASTS, COPIES
from neuron_compiler.passes.random_ops import is_random
from neuron_compiler.passes.rewrite import Replacement, Rule, Scope, rewrite, rules_by_kind

Evaluate: TypeAlias = Callable[[Op, tuple[Constant, ...]], bytes | None]
"""Computes one op as the lowering would: (op, its operands in the order of ``op.uses``) to the row-major bytes of its
result; None for an op that it has no rule for, or that may fail at run time (integer division, an index)."""


@dataclass(frozen=True)
class ConstantFold:
    """Folding of constants; see the module.

    Attributes:
        max_elements: most elements of a tensor that is computed or read while folding.
        evaluate: computes an op; None folds only what needs no arithmetic.
    """

    max_elements: int = 1024
    evaluate: Evaluate | None = field(default=None, repr=False)
    name: ClassVar[str] = "constant_fold"

    def __call__(self, program: Program) -> Program:
        return rewrite(program, self._rules)

    def _rules(self, op: Op) -> Sequence[Rule]:
        structural = _RULES.get(op.kind, ())
        return structural if self.evaluate is None else (*structural, self._compute)

    def _compute(self, op: Op, scope: Scope) -> Replacement:
        """An op on known tensors as a constant; as a full where all its elements are the same."""
        if self.evaluate is None or not op.uses or not self._is_computable(op):
            return None
        operands: list[Constant] = []
        for name in op.uses:
            if (known := self._known(Value(name), scope)) is None:
                return None
            operands.append(known)
        found = self._evaluated(op, tuple(operands))
        return None if found is None else _shortest(op, found)

    def _known(self, value: Value, scope: Scope) -> Constant | None:
        """The elements of a value, if it is a constant or made from nothing, and small."""
        if (constant := scope.constant(value)) is not None:
            return constant if constant.type.numel <= self.max_elements else None
        op = scope.op(value)
        return self._evaluated(op, ()) if op is not None and not op.uses and self._is_computable(op) else None

    def _is_computable(self, op: Op) -> bool:
        return isinstance(op.type, TensorType) and op.type.numel <= self.max_elements and not is_random(op)

    def _evaluated(self, op: Op, operands: tuple[Constant, ...]) -> Constant | None:
        data = None if self.evaluate is None else self.evaluate(op, operands)
        if data is None or not isinstance(op.type, TensorType):
            return None
        if len(data) != op.type.nbytes:
            raise ValueError(f"{op} was evaluated to {len(data)} bytes, not {op.type.nbytes}")
        return Constant(op.result, op.type, data)


def _shortest(op: Op, constant: Constant) -> Op | Constant:
    """A full where every element is one number that a full takes; else the constant."""
    type_, size = constant.type, constant.type.dtype.itemsize
    first = constant.data[:size]
    if not type_.numel or constant.data != first * type_.numel:
        return constant
    number = elements.unpack(type_.dtype, first)
    if number is None or elements.pack(type_.dtype, number) != first:
        return constant
    if type_.dtype.is_integer and not -(2**63) <= int(number[0].real) < 2**63:
        return constant
    return _full(op, number[0]) or constant


def _full(op: Op, fill: Operand) -> Op | None:
    """``op`` as a full of its own type; None for an op that gives several tensors."""
    if not isinstance(op.type, TensorType):
        return None
    full = replace(op, kind=FULL, operands=(op.type.shape, fill), attrs=(("dtype", op.type.dtype),))
    return None if full == op else full


def _source(op: Op, scope: Scope) -> Op | None:
    """The full that an op reads first, else None."""
    source = scope.op(op.operand(0))
    return source if source is not None and source.kind == FULL else None


def creation_to_full(op: Op, scope: Scope) -> Replacement:
    """``zeros``, ``ones``, ``full_like`` and their like with shape, number and type written out."""
    base = op.kind.split(".")[1]
    if base in ("full", "full_like"):
        return _full(op, op.operand(1))
    if base == "new_full":
        return _full(op, op.operand(2))
    if base == "scalar_tensor":
        return _full(op, op.operand(0))
    one = "ones" in base
    dtype = op.type.dtype if isinstance(op.type, TensorType) else DType.F32
    return _full(op, one if dtype is DType.BOOL else int(one) if dtype.is_integer else float(one))


def moved_full(op: Op, scope: Scope) -> Replacement:
    """An op that gives some of its operand's elements in some order, of a full."""
    source = _source(op, scope)
    return None if source is None else _full(op, source.operand(1))


def cast_full(op: Op, scope: Scope) -> Replacement:
    """A cast of a full, for the numbers that are the same in every type."""
    source = _source(op, scope)
    if source is None or not isinstance(op.type, TensorType) or not isinstance(source.type, TensorType):
        return None
    if op.type.dtype is source.type.dtype:
        return _full(op, source.operand(1))
    return _full(op, fill) if (fill := _recast(source.operand(1), op.type.dtype)) is not None else None


def _recast(fill: Operand, dtype: DType) -> bool | int | float | None:
    """A small whole number in another type; None where a cast might round, wrap or lose a sign."""
    if not isinstance(fill, int | float) or not 0 <= fill <= 15 or fill != int(fill) or repr(fill) == "-0.0":
        return None
    if dtype is DType.BOOL:
        return fill != 0
    if dtype.is_integer:
        return int(fill)
    return float(fill) if dtype.is_floating and dtype.itemsize >= 2 else None


def split_full(op: Op, scope: Scope) -> Replacement:
    """A part of a full."""
    split = scope.op(op.operand(0))
    if split is None or split.kind not in _SPLITS or (source := _source(split, scope)) is None:
        return None
    return _full(op, source.operand(1))


def known_choice(op: Op, scope: Scope) -> Replacement:
    """``where`` by a condition that is the same everywhere."""
    condition = _source(op, scope)
    if condition is None or not isinstance(condition.operand(1), bool | int):
        return None
    chosen = op.operand(1 if condition.operand(1) else 2)
    return chosen if isinstance(chosen, Value) and scope.type(chosen) == op.type else None


def reshaped_constant(op: Op, scope: Scope) -> Replacement:
    """A constant in another shape has the same bytes."""
    constant = scope.constant(op.operand(0))
    if constant is None or not isinstance(op.type, TensorType):
        return None
    return Constant(op.result, op.type, constant.data) if op.type.dtype is constant.type.dtype else None


def _overloads(*names: str) -> Sequence[str]:
    return [f"aten.{name}" for name in names]


_CREATIONS = (
    *_overloads("full.default", "full_like.default", "new_full.default", "scalar_tensor.default"),
    *_overloads("zeros.default", "zeros_like.default", "new_zeros.default"),
    *_overloads("ones.default", "ones_like.default", "new_ones.default"),
)
_MOVES = (
    *(*RESHAPES, *COPIES, PERMUTE, EXPAND),
    *_overloads("t.default", "transpose.int", "slice.Tensor", "select.int", "repeat.default", "flip.default"),
    *_overloads("diagonal.default", "unfold.default", "roll.default"),
)
_SPLITS = frozenset(_overloads("split.Tensor", "split_with_sizes.default", "unbind.int", "chunk.default"))

_PAIRS: Sequence[tuple[Sequence[str], Rule]] = (
    (_CREATIONS, creation_to_full),
    (_MOVES, moved_full),
    ((*RESHAPES, *COPIES), reshaped_constant),
    (CASTS, cast_full),
    ((GETITEM,), split_full),
    (_overloads("where.self"), known_choice),
)
_RULES = rules_by_kind(*_PAIRS)
