"""Random arguments for a Graph: the recorded sizes, strides and element types, and indices that are in range."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from neuron_compiler import dtypes
from neuron_compiler.ir.graph import DType, Graph, Op, TensorType, Value, values_of

INTEGERS = (1, 8)
"""Range of integers that index nothing: no zero, since a divisor may be among them."""

# Position of the indexed tensor, of the dimension (None: the first), and of the indices.
INDEXED_ALONG: Mapping[str, tuple[int, int | None, int]] = {
    "aten.embedding.default": (0, None, 1),
    "aten.index_select.default": (0, 1, 2),
    "aten.index_add.default": (0, 1, 2),
    "aten.index_copy.default": (0, 1, 2),
    "aten.index_fill.int_Scalar": (0, 1, 2),
    "aten.gather.default": (0, 1, 2),
    "aten.scatter.src": (0, 1, 2),
    "aten.scatter.value": (0, 1, 2),
    "aten.scatter.reduce": (0, 1, 2),
    "aten.scatter_add.default": (0, 1, 2),
    "aten.scatter_reduce.two": (0, 1, 2),
}
INDEXED_BY_LIST = frozenset(
    {
        "aten.index.Tensor",
        "aten.index_put.default",
        "aten._unsafe_index.Tensor",
        "aten._unsafe_index_put.default",
    }
)


def random_arguments(
    graph: Graph, strides: Mapping[str, tuple[int, ...]], seed: int = 0, *, positive: bool = False
) -> list[torch.Tensor]:
    """A tensor for each input of the graph.

    Args:
        graph: its inputs give names, sizes and element types; its ops say which integers are indices.
        strides: of each input by name; row-major where a name is missing.
        seed: the same seed gives the same values.
        positive: floats are normal deviates without their sign: for programs that take roots or logarithms.
    """
    generator = torch.Generator().manual_seed(seed)
    limits = index_limits(graph)
    found = []
    for i in graph.inputs:
        shape = i.type.shape
        stride = strides.get(i.name) or torch.empty(shape, device="meta").stride()
        # Drawn as a flat piece of memory, so that strides with gaps or repeats need no case of their own.
        cells = 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
        flat = _draw(i.type.dtype, cells, generator, limits.get(i.name), positive)
        found.append(flat.as_strided(shape, stride))
    return found


def _draw(dtype: DType, cells: int, generator: torch.Generator, limit: int | None, positive: bool) -> torch.Tensor:
    as_torch = dtypes.to_torch(dtype)
    if dtype is DType.BOOL:
        return torch.rand(cells, generator=generator) < 0.5
    if dtype.is_integer:
        low, high = INTEGERS if limit is None else (0, limit)
        return torch.randint(low, high, (cells,), generator=generator).to(as_torch)
    if dtype.is_complex:
        drawn = torch.randn(cells, generator=generator, dtype=torch.complex128)
        return (drawn.abs() if positive else drawn).to(as_torch)
    drawn = torch.randn(cells, generator=generator, dtype=torch.float64)
    if positive or dtype is DType.F8E8M0FNU:
        drawn = drawn.abs()
    return drawn.to(torch.float32).to(as_torch) if dtype.itemsize == 1 else drawn.to(as_torch)


def index_limits(graph: Graph) -> dict[str, int]:
    """For each integer input that reaches an index, a number that its values stay below.

    Half of the smallest extent that it indexes, at most 8: some room for programs that add an offset first.
    """
    limits: dict[str, int] = {}
    for op in graph.ops:
        for name, extent in _indices(op, graph):
            for source in _integer_sources(name, graph):
                limit = max(1, min(INTEGERS[1], extent // 2))
                limits[source] = min(limits.get(source, limit), limit)
    return limits


def _indices(op: Op, graph: Graph) -> list[tuple[str, int]]:
    """Values that an op takes as indices, each with the extent that it indexes."""
    if op.kind in INDEXED_ALONG:
        tensor, dimension, index = INDEXED_ALONG[op.kind]
        d = 0 if dimension is None else op.operand(dimension)
        return [(name, _extent(op, tensor, d, graph)) for name in values_of(op.operand(index))]
    if op.kind in INDEXED_BY_LIST and isinstance(listed := op.operand(1), tuple):
        return [(v.name, _extent(op, 0, d, graph)) for d, v in enumerate(listed) if isinstance(v, Value)]
    if op.kind == "aten.embedding_dense_backward.default" and isinstance(rows := op.operand(2), int):
        return [(name, rows) for name in values_of(op.operand(1))]
    if op.kind in ("aten.nll_loss_forward.default", "aten.nll_loss_backward.default"):
        scores, target = (0, 1) if "forward" in op.kind else (1, 2)
        return [(name, _extent(op, scores, -1, graph)) for name in values_of(op.operand(target))]
    return []


def _extent(op: Op, position: int, dimension: object, graph: Graph) -> int:
    tensor = op.operand(position)
    shape = graph.tensor_type(tensor.name).shape if isinstance(tensor, Value) else ()
    return shape[dimension] if isinstance(dimension, int) and -len(shape) <= dimension < len(shape) else 1


def _integer_sources(name: str, graph: Graph) -> set[str]:
    """Integer inputs that a value is computed from, by way of integers alone."""
    inputs = {i.name for i in graph.inputs}
    found: set[str] = set()
    pending, seen = [name], {name}
    while pending:
        current = pending.pop()
        type_ = graph.types[current]
        if not isinstance(type_, TensorType) or not type_.dtype.is_integer:
            continue
        if current in inputs:
            found.add(current)
        elif current in graph.defs:
            pending.extend(use for use in graph.defs[current].uses if use not in seen)
            seen.update(graph.defs[current].uses)
    return found
