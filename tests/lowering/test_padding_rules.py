"""Each op by itself: where its rule lets padding pass, true elements of the result are those of the call without it.

Calls are those of PyTorch's op database. Padding repeats elements, or it is NaN and numbers out of every range: a rule
may count on repeated elements only where it looks for them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from math import nan
from typing import Any

import op_samples
import pytest
import torch
from op_check import as_op, type_of

from neuron_compiler import dtypes
from neuron_compiler.buckets import prove as proving
from neuron_compiler.buckets.extent import Tensor, plain
from neuron_compiler.buckets.padded import argument_of, cut, pad
from neuron_compiler.buckets.prove import Proof, prove
from neuron_compiler.buckets.rules import RULES
from neuron_compiler.ir.graph import GETITEM, DType, Graph, Input, Op, Operand, TensorType, TupleType, Value
from neuron_compiler.ir.space import base_name
from neuron_compiler.opdef import REGISTRY, Kind
from neuron_compiler.runtime import Layout

MORE = 3
RULED = [
    name
    for name in REGISTRY.names()
    if (base_name(name) in RULES or REGISTRY[name].kind is Kind.ELEMENTWISE)
    and not base_name(name).startswith(("empty", "new_empty", "_efficientzero"))
    and "polynomial" not in name
]


def resolved(operand: Operand, known: dict[str, Any]) -> Any:
    if isinstance(operand, Value):
        return known[operand.name]
    if isinstance(operand, tuple):
        return [resolved(item, known) for item in operand]
    return dtypes.to_torch(operand) if isinstance(operand, DType) else operand


def by_aten(ops: Sequence[Op], known: dict[str, Any]) -> dict[str, Any]:
    """Every value of some ops, by PyTorch's kernels."""
    for op in ops:
        arguments = [resolved(o, known) for o in op.operands]
        keywords = {k: resolved(v, known) for k, v in op.attrs}
        if op.kind == GETITEM:
            known[op.result] = arguments[0][arguments[1]]
        elif base_name(op.kind) in ("view", "_unsafe_view") and isinstance(arguments[1], list):
            known[op.result] = arguments[0].reshape(arguments[1])
        else:
            known[op.result] = op_samples.resolve(op.kind)(*arguments, **keywords)
    return known


def grown(tensors: dict[str, torch.Tensor]) -> Iterator[dict[str, tuple[int, ...]]]:
    """Shapes with some dimensions longer: all that have one size, or one alone."""
    places = [(name, d) for name, t in tensors.items() for d in range(t.dim()) if t.shape[d] > 1]
    sizes = {tensors[name].shape[d] for name, d in places}
    chosen = [[p for p in places if tensors[p[0]].shape[p[1]] == size] for size in sorted(sizes)]
    for some in [*chosen, *([p] for p in places)]:
        shapes = {name: list(t.shape) for name, t in tensors.items()}
        for name, d in some:
            shapes[name][d] += MORE
        yield {name: tuple(shape) for name, shape in shapes.items()}


def longer(operand: Operand, sizes: set[int]) -> Operand:
    """An operand that is a size, at the grown size."""
    if isinstance(operand, tuple):
        return tuple(longer(item, sizes) for item in operand)
    return operand + MORE if type(operand) is int and operand in sizes else operand


def layout(shape: Sequence[int]) -> Layout:
    return Layout.of(shape, torch.empty(shape).stride())


def spoiled(tensor: torch.Tensor, of: Tensor) -> torch.Tensor:
    """The padded tensor with garbage for padding."""
    found = pad(tensor, of, layout(of.bucket))
    true = torch.zeros(found.shape, dtype=torch.bool)
    true[tuple(slice(0, size) for size in of.true)] = True
    garbage = nan if found.is_floating_point() or found.is_complex() else found.dtype is not torch.bool and 120
    return torch.where(true, found, torch.full_like(found, garbage))


def proofs(op: Op, tensors: dict[str, torch.Tensor]) -> Iterator[tuple[Proof, dict[str, torch.Tensor]]]:
    """The proofs of one call for different dimensions that are padded, with the arguments that made them."""
    sizes_at = RULES[base_name(op.kind)].sizes if base_name(op.kind) in RULES else frozenset()
    true = graph(op, inputs(tensors, {n: tuple(t.shape) for n, t in tensors.items()}))
    for shapes in grown(tensors):
        pairs = [p for n, t in tensors.items() for p in zip(t.shape, shapes[n], strict=True)]
        changed = {small for small, large in pairs if small != large}
        operands = tuple(longer(o, changed) if i in sizes_at else o for i, o in enumerate(op.operands))
        padded = {n: pad(t, whole(t, shapes[n]), layout(shapes[n])) for n, t in tensors.items()}
        try:
            result = by_aten([Op("result", op.kind, operands, op.type, op.attrs)], dict(padded))["result"]
        except (RuntimeError, IndexError, ValueError):
            continue
        at_bucket = Op("result", op.kind, operands, type_of(result), op.attrs)
        found = prove(true, graph(at_bucket, inputs(tensors, shapes)))
        if isinstance(found, Proof):
            yield found, tensors


def graph(op: Op, given: tuple[Input, ...]) -> Graph:
    """The op alone, with each tensor that it returns."""
    if not isinstance(op.type, TupleType):
        return Graph("one", given, (op,), (op.result,))
    parts = [Op(f"part{n}", GETITEM, (Value(op.result), n), t) for n, t in enumerate(op.type.elements) if t is not None]
    return Graph("one", given, (op, *parts), tuple(p.result for p in parts))


def whole(tensor: torch.Tensor, shape: Sequence[int]) -> Tensor:
    dims = tuple(plain(small, large, True) for small, large in zip(tensor.shape, shape, strict=True))
    return Tensor("", dtypes.from_torch(tensor.dtype), dims)


def inputs(tensors: dict[str, torch.Tensor], shapes: dict[str, tuple[int, ...]]) -> tuple[Input, ...]:
    return tuple(Input(n, TensorType(shapes[n], dtypes.from_torch(t.dtype))) for n, t in tensors.items())


def assert_right(op: Op, proof: Proof, tensors: dict[str, torch.Tensor], expected: Any, garbage: bool) -> None:
    given = {
        t.name: spoiled(x, t) if garbage and t.is_padded else pad(x, t, layout(t.bucket))
        for t, x in zip(proof.inputs, tensors.values(), strict=True)
    }
    given |= {i.name: argument_of(a) for i, a in zip(proof.graph.inputs[len(given) :], proof.added, strict=True)}
    found = by_aten(proof.graph.ops, given)
    results = [e for e in expected if e is not None] if isinstance(expected, list | tuple) else [expected]
    for name, of, other in zip(proof.graph.outputs, proof.outputs, results, strict=True):
        where = cut(found[name], of, layout(other.shape))
        loose = other.dtype in (torch.bfloat16, torch.float16)
        tolerance = {"rtol": 2e-2, "atol": 2e-2} if loose else {"rtol": 1e-4, "atol": 1e-4}
        torch.testing.assert_close(where, other, equal_nan=True, check_stride=False, **tolerance)


def repeating_nothing(name: str, true: TensorType, bucket: TensorType) -> Tensor:
    return Tensor(name, true.dtype, tuple(map(plain, true.shape, bucket.shape)))


def calls(overload: str, most: int) -> list[op_samples.Sample]:
    found = op_samples.samples(overload, op_samples.GLANCE, most)
    return random.Random(overload).sample(found, min(most, len(found)))


def check(overload: str, garbage: bool, monkeypatch: pytest.MonkeyPatch, most: int = 6) -> int:
    """How many proofs were held to their word."""
    if garbage:
        monkeypatch.setattr(proving, "_padded", repeating_nothing)
    held = 0
    for sample in calls(overload, most):
        op, tensors = as_op(sample)
        for proof, given in proofs(op, tensors):
            assert_right(op, proof, given, sample.result, garbage)
            held += 1
    return held


# One or two of each family; ``check`` takes any of RULED.
PICKED = [
    f"aten.{name}"
    for name in (
        "split_with_sizes_copy.default", "slice.Tensor", "max.dim", "bmm.default", "cat.default", "index.Tensor",
        "_softmax.default", "gather.default", "floor_divide.default", "constant_pad_nd.default",
        "nll_loss_forward.default",
    )
]  # fmt: skip


def test_every_op_picked_has_a_rule():
    assert set(PICKED) <= set(RULED)


@pytest.mark.parametrize("garbage", [False, True], ids=["repeated", "garbage"])
@pytest.mark.parametrize("overload", PICKED)
def test_padding_passes_only_where_it_does_no_harm(overload, garbage, monkeypatch):
    check(overload, garbage, monkeypatch)
