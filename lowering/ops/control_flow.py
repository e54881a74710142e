"""Higher-order ops: branches, loops and calls of a subgraph. Rules are given subgraphs as functions of arrays."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import torch

from neuron_compiler.ir.graph import TensorType, values_of
from neuron_compiler.lowering.subgraph import Subgraph, arrays_of, require_all
from neuron_compiler.opdef import Call, Kind, Work, op, work_of_graph

higher_order = torch.ops.higher_order

Arrays = tuple[jax.Array, ...]

SCAN = "higher_order.scan"


def _of_longest_branch(call: Call) -> Work:
    """A branch runs, nobody knows which: the one with the most to do."""
    return max(
        (work_of_graph(graph) for graph in call.op.subgraphs), key=lambda work: work.flops + work.transcendentals
    )


def _once(call: Call) -> Work:
    """One pass through the subgraphs; of a loop whose number of passes only the data tell, one."""
    return sum(map(work_of_graph, call.op.subgraphs), Work())


def _per_slice(call: Call) -> Work:
    """One pass for each slice along the first dimension of what is scanned."""
    once = _once(call)
    length = _length(call)
    return Work(once.flops * length, once.transcendentals * length, once.bytes * length)


def _length(call: Call) -> int:
    """Slices of the first scanned tensor: the operand after the subgraph, or after the initial values of a scan."""
    names = values_of(call.op.operand(2 if call.op.kind == SCAN else 1))
    found = (call.types[name] for name in names)
    return next((one.shape[0] for one in found if isinstance(one, TensorType)), 0)


def _scans_something(call: Call) -> str | None:
    """PyTorch does not say what a loop over nothing gives: it runs the body to learn shapes, and raises."""
    return None if _length(call) else "no slice to scan"


@op(higher_order.cond, kind=Kind.OTHER, work=_of_longest_branch)
def cond(pred: Any, true_fn: Subgraph, false_fn: Subgraph, operands: tuple[Any, ...] = ()) -> Arrays:
    """The branch that ``pred`` chooses, and no other, is run."""
    if not isinstance(pred, jax.Array):
        return (true_fn if pred else false_fn)(*operands)
    given = arrays_of(operands)
    branches = (false_fn, true_fn)
    faults = [branch.faults(*given) for branch in branches]

    def taking(index: int) -> Any:
        def branch(*arrays: jax.Array) -> tuple[Arrays, jax.Array]:
            results, met = branches[index].checked(*arrays)
            others = jnp.ones((len(faults[1 - index]),), bool)
            return results, jnp.concatenate([others, met] if index else [met, others])

        return branch

    results, met = jax.lax.cond(jnp.reshape(pred, ()), taking(1), taking(0), *given)
    require_all(met, (*faults[0], *faults[1]))
    return tuple(results)


@op(higher_order.while_loop, kind=Kind.OTHER, work=_once)
def while_loop(
    cond_fn: Subgraph, body_fn: Subgraph, carried: tuple[Any, ...], additional: tuple[Any, ...] = ()
) -> Arrays:
    """The body over and over while the condition holds; a failed check inside ends the loop."""
    start, constant = arrays_of(carried), arrays_of(additional)
    in_condition, in_body = cond_fn.faults(*start, *constant), body_fn.faults(*start, *constant)

    def condition(values: Arrays) -> tuple[jax.Array, jax.Array]:
        (found,), met = cond_fn.checked(*values, *constant)
        return jnp.logical_and(jnp.reshape(found, ()), jnp.all(met)), met

    def step(state: tuple[Any, ...]) -> tuple[Any, ...]:
        values, _, in_bodies, _ = state
        results, met = body_fn.checked(*values, *constant)
        going, in_conditions = condition(results)
        met = jnp.logical_and(in_bodies, met)
        return results, jnp.logical_and(going, jnp.all(met)), met, in_conditions

    going, met = condition(start)
    state = (start, going, jnp.ones((len(in_body),), bool), met)
    results, _, in_bodies, in_conditions = jax.lax.while_loop(lambda state: state[1], step, state)
    require_all(in_bodies, in_body)
    require_all(in_conditions, in_condition)
    return tuple(results)


def _scan(body: Subgraph, start: Arrays, scanned: Arrays, constant: Arrays) -> Arrays:
    """``body(*carry, *slices, *constant)`` for each slice: the last carry, then what it gives beside, stacked."""
    faults = body.faults(*start, *(x[0] for x in scanned), *constant)

    def step(carry: Arrays, slices: Arrays) -> tuple[Arrays, tuple[Arrays, jax.Array]]:
        results, met = body.checked(*carry, *slices, *constant)
        return results[: len(start)], (results[len(start) :], met)

    last, (stacked, met) = jax.lax.scan(step, start, scanned)
    require_all(jnp.all(met, axis=0), faults)
    return (*last, *stacked)


@op(higher_order.scan, kind=Kind.OTHER, work=_per_slice, when=_scans_something)
def scan(combine_fn: Subgraph, init: tuple[Any, ...], xs: tuple[Any, ...], additional: tuple[Any, ...] = ()) -> Arrays:
    return _scan(combine_fn, arrays_of(init), arrays_of(xs), arrays_of(additional))


@op(higher_order.map_impl, kind=Kind.OTHER, work=_per_slice, when=_scans_something)
def map_impl(body: Subgraph, xs: tuple[Any, ...], constant: tuple[Any, ...] = ()) -> Arrays:
    return _scan(body, (), arrays_of(xs), arrays_of(constant))


@op(higher_order.invoke_subgraph, kind=Kind.OTHER, work=_once)
def invoke_subgraph(subgraph: Subgraph, identifier: str | None, *operands: Any) -> Arrays:
    """A call of a region that the user marked as one that repeats."""
    return subgraph(*operands)
