"""Which operators wait in a queue, and which run as a program by themselves.

In: an operator's name. Out: the queues that take it. Invariants: none that draws random numbers, whose result's size
depends on values, or that gives a view; every one can be compiled. Products of matrices, convolutions and attention do
not wait: their kernels are as fast as XLA's, and what lies between them is what fusing gains by.
"""

from __future__ import annotations

from functools import cache

import torch

from neuron_compiler.eager_fallback.queued_program import overload_of
from neuron_compiler.errors import DeviceError
from neuron_compiler.lowering import decompositions
from neuron_compiler.opdef import REGISTRY, Kind

NONE, ALONE, ALL = 0, 1, 2
NUMBERS = 4

KINDS = frozenset({Kind.ELEMENTWISE, Kind.REDUCTION, Kind.NORMALISATION})

MOVES = frozenset({"aten::copy_", "aten::fill_.Scalar", "aten::zero_", "aten::cat"})
"""Operators of other kinds that stand between those and would have them run."""

NOTHING_TO_COMPILE = MOVES | {"aten::_local_scalar_dense", "aten::set_data", "aten::equal", "aten::is_nonzero"}
"""Operators that move or ask for values: no program is missed where they run by their kernel."""

OTHER_STRIDES = frozenset({"aten::linalg_eig", "aten::max_unpool2d", "aten::max_unpool3d"})
"""Operators whose meta kernel gives other strides than their kernel."""

KEEPING_OUT = (
    torch.Tag.nondeterministic_seeded,
    torch.Tag.dynamic_output_shape,
    torch.Tag.data_dependent_output,
)


def queues(name: str) -> int:
    """The queues that take an operator, by its name with overload: NONE, those of one operator ALONE, or ALL."""
    if not name.startswith("aten::") or name in OTHER_STRIDES:
        return NONE
    if name in MOVES:
        return ALL
    try:
        overload = overload_of(name)
    except DeviceError:
        return NONE
    if any(tag in overload.tags for tag in KEEPING_OUT) or name.startswith("aten::_foreach"):
        return NONE
    if any(argument.is_out for argument in overload._schema.arguments):
        return NONE
    functional = _functional(name)
    record = REGISTRY.get(functional)
    if record is not None:
        return ALL if record.kind in KINDS else NONE if record.kind is Kind.VIEW else ALONE
    if functional in _decomposed():
        return ALL if torch.Tag.pointwise in overload.tags else ALONE
    return NONE


def numbers(name: str) -> int:
    """NUMBERS where the operator can be called with a number in place of a tensor, else 0."""
    operator = name.removeprefix("aten::").partition(".")[0]
    return NUMBERS if torch._C._should_allow_numbers_as_tensors(operator) else 0


@cache
def _decomposed() -> frozenset[str]:
    return frozenset(str(overload) for overload in decompositions.table())


def _functional(name: str) -> str:
    """The overload, as PyTorch writes it in Python, that gives as new memory what this one may write in place."""
    qualified, _, overload = name.removeprefix("aten::").partition(".")
    if qualified.endswith("_") and not qualified.endswith("__"):
        qualified = qualified[:-1]
    return f"aten.{qualified}.{overload or 'default'}"
