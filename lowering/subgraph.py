"""A branch or the body of a loop, as rules of higher-order ops are given it: a function of jax arrays.

In: arrays in the order of the subgraph's inputs; what PyTorch passes as a number is no input and is left out. Out: the
subgraph's results. What its rules require (``checks.require``) cannot leave a branch or loop by itself, since it is
traced inside of it: ``checked`` returns the conditions beside the results, and the rule carries them out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from neuron_compiler.ir.graph import Graph
from neuron_compiler.lowering import checks

Fault = tuple[str, type[Exception]]


@dataclass(frozen=True)
class Subgraph:
    """A graph and the function that traces it.

    Attributes:
        graph: inputs, ops, results.
        values: traces the ops; arrays in, a tuple of arrays out.
    """

    graph: Graph
    values: Callable[..., tuple[jax.Array, ...]]

    def __call__(self, *given: Any) -> tuple[jax.Array, ...]:
        """The results; checks go to the collector around, so not for use inside of a loop or branch of jax."""
        return tuple(map(_strong, self.values(*arrays_of(given))))

    def checked(self, *given: Any) -> tuple[tuple[jax.Array, ...], jax.Array]:
        """The results, and one bool for each of ``faults``: whether it is met."""
        with checks.collecting() as required:
            results = self(*given)
        return results, _stacked([check.ok for check in required])

    def faults(self, *given: Any) -> tuple[Fault, ...]:
        """Message and error of each check that the subgraph makes, found by tracing it once for nothing else."""
        found: list[Fault] = []

        def traced(*arrays: jax.Array) -> tuple[jax.Array, ...]:
            with checks.collecting() as required:
                results = self(*arrays)
            found.extend((check.message, check.error) for check in required)
            return results

        jax.eval_shape(traced, *arrays_of(given))
        return tuple(found)


def arrays_of(given: Sequence[Any]) -> tuple[jax.Array, ...]:
    """The tensors among arguments; numbers are part of the subgraph."""
    return tuple(a for a in given if isinstance(a, jax.Array))


def require_all(met: jax.Array, faults: Sequence[Fault]) -> None:
    """Require, outside of the branch or loop, what was checked inside of it: one bool for each fault."""
    for index, (message, error) in enumerate(faults):
        checks.require(met[index], message, error)


def _stacked(conditions: Sequence[jax.Array]) -> jax.Array:
    return jnp.stack(list(conditions)) if conditions else jnp.ones((0,), bool)


def _strong(array: jax.Array) -> jax.Array:
    """Without jax's mark of a type that gives way: what a loop carries keeps its type."""
    return jax.lax.convert_element_type(array, array.dtype)
