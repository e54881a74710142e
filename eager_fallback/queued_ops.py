"""Which operators may wait in a queue: those whose programs XLA runs at least as fast as their kernels run by themselves.

In: the operators that the library has kernels for. Out: those that may wait. Invariants: no operator that draws random
numbers, whose result depends on values in its shape, or that gives a view; every one can be compiled.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from neuron_compiler.eager_fallback.queued_program import overload_of
from neuron_compiler.errors import DeviceError
from neuron_compiler.lowering import decompositions
from neuron_compiler.opdef import REGISTRY, Kind

KINDS = frozenset({Kind.ELEMENTWISE, Kind.REDUCTION, Kind.NORMALISATION, Kind.CONTRACTION})

MOVES = ("aten::copy_", "aten::fill_.Scalar", "aten::zero_", "aten::cat", "aten::embedding", "aten::index_select")
"""Operators of other kinds that stand between those and would have them run."""


def names(known: Iterable[str]) -> list[str]:
    """Names with overloads, as the dispatcher has them."""
    return [name for name in known if name.startswith("aten::") and (name in MOVES or _may_wait(name))]


def _may_wait(name: str) -> bool:
    try:
        overload = overload_of(name)
    except DeviceError:
        return False
    tags = overload.tags
    if torch.Tag.nondeterministic_seeded in tags or torch.Tag.dynamic_output_shape in tags:
        return False
    if torch.Tag.data_dependent_output in tags or name.startswith("aten::_foreach"):
        return False
    functional = _functional(name)
    record = REGISTRY.get(functional)
    if record is not None:
        return record.kind in KINDS
    return torch.Tag.pointwise in tags and any(str(known) == functional for known in decompositions.table())


def _functional(name: str) -> str:
    """The overload, as PyTorch writes it in Python, that gives as new memory what this one may write in place."""
    qualified, _, overload = name.removeprefix("aten::").partition(".")
    if qualified.endswith("_") and not qualified.endswith("__"):
        qualified = qualified[:-1]
    return f"aten.{qualified}.{overload or 'default'}"
