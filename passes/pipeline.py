"""The passes in the order in which they run, with the reason for each place, and the names they go by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from neuron_compiler.passes.base import Pass
from neuron_compiler.passes.canonicalize import Canonicalize
from neuron_compiler.passes.constant_fold import ConstantFold, Evaluate
from neuron_compiler.passes.cse import Cse
from neuron_compiler.passes.dce import Dce
from neuron_compiler.passes.fuse import Fuse
from neuron_compiler.passes.tile import Tile

DEFAULT: tuple[Pass, ...] = (
    Canonicalize(),  # first: what follows looks for one form only
    ConstantFold(),  # before cse: two ways to make one constant become equal
    Cse(),  # after both: equal ops are now written alike
    Dce(),  # last to touch the graph: what the others replaced is neither fused nor tiled
    Fuse(),  # on the final graph: a group names its ops
    Tile(),  # a tile is cut from a group
)

REGISTERED: Mapping[str, type[Pass]] = MappingProxyType(
    {cls.name: cls for cls in (Canonicalize, ConstantFold, Cse, Dce, Fuse, Tile)}
)
"""Every pass by its name, for pipelines given as text."""


def with_evaluation(evaluate: Evaluate, passes: tuple[Pass, ...] = DEFAULT) -> tuple[Pass, ...]:
    """The passes with constant folding able to compute: ``evaluate`` is the lowering's."""
    return tuple(replace(p, evaluate=evaluate) if isinstance(p, ConstantFold) else p for p in passes)
