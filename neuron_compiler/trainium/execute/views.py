"""Access patterns and creations: what DMA and GpSimd do with whole arrays before and after the tiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from neuron_compiler import dtypes
from neuron_compiler.ir.graph import GETITEM, DType, Op, Operand, TensorType, TupleType, Value
from neuron_compiler.trainium.execute.engines import cast, result_of

Array = jax.Array
Arrays = Mapping[str, Any]


def view(op: Op, arrays: Arrays) -> Any:
    """The result of a view, from the arrays by name; a tuple for one that gives several."""
    return VIEWS[op.kind](op, _resolved(op.operands[0], arrays))


def create(op: Op) -> Array:
    """The result of an op without tensor operands."""
    return CREATIONS[op.kind](op)


def _resolved(operand: Operand, arrays: Arrays) -> Any:
    if isinstance(operand, tuple):
        return tuple(_resolved(item, arrays) for item in operand)
    return arrays[operand.name] if isinstance(operand, Value) else operand


def _integer(op: Op, position: int, default: int) -> int:
    found = op.operand(position)
    return found if isinstance(found, int) else default


def _reshape(op: Op, x: Array) -> Array:
    return x.reshape(result_of(op).shape)


def _permute(op: Op, x: Array) -> Array:
    order = op.operand(1)
    return jnp.transpose(x, [d for d in order if isinstance(d, int)] if isinstance(order, tuple) else None)


def _transpose(op: Op, x: Array) -> Array:
    return jnp.swapaxes(x, _integer(op, 1, 0), _integer(op, 2, 0))


def _slice(op: Op, x: Array) -> Array:
    axis = _integer(op, 1, 0) % x.ndim
    start, stop = _integer(op, 2, 0), _integer(op, 3, x.shape[axis])
    picked = range(x.shape[axis])[start : stop : _integer(op, 4, 1)]
    return lax.slice_in_dim(x, picked.start, max(picked.start, picked.stop), picked.step, axis)


def _select(op: Op, x: Array) -> Array:
    axis = _integer(op, 1, 0) % x.ndim
    return lax.index_in_dim(x, _integer(op, 2, 0) % x.shape[axis], axis, keepdims=False)


def _split(op: Op, x: Array) -> tuple[Array, ...]:
    axis, parts, at = _integer(op, 2, 0) % x.ndim, [], 0
    for element in op.type.elements if isinstance(op.type, TupleType) else ():
        size = element.shape[axis] if element is not None else 0
        parts.append(lax.slice_in_dim(x, at, at + size, 1, axis))
        at += size
    return tuple(parts)


def _getitem(op: Op, parts: Any) -> Any:
    return parts[op.operand(1)]


def _cat(op: Op, parts: Any) -> Array:
    result = result_of(op)
    # ATen leaves out empty one-dimensional tensors, whatever the rank of the others.
    kept = [cast(part, result.dtype) for part in parts if part.shape != (0,)]
    return jnp.concatenate(kept, _integer(op, 1, 0)) if kept else jnp.zeros(result.shape, parts[0].dtype)


VIEWS: Mapping[str, Callable[[Op, Any], Any]] = {
    **dict.fromkeys(
        (
            "aten.view.default",
            "aten._unsafe_view.default",
            "aten.reshape.default",
            "aten.unsqueeze.default",
            "aten.squeeze.default",
            "aten.squeeze.dim",
            "aten.squeeze.dims",
            "aten.flatten.using_ints",
            "aten.alias.default",
            "aten.detach.default",
            "aten.clone.default",
        ),
        _reshape,
    ),
    "aten.expand.default": lambda op, x: jnp.broadcast_to(x, result_of(op).shape),
    "aten.permute.default": _permute,
    "aten.transpose.int": _transpose,
    "aten.t.default": lambda op, x: jnp.transpose(x),
    "aten.slice.Tensor": _slice,
    "aten.select.int": _select,
    "aten.split.Tensor": _split,
    "aten.split_with_sizes.default": _split,
    "aten.cat.default": _cat,
    GETITEM: _getitem,
}
"""What each view gives of the array (or arrays, or tuple) that it reads first."""


def _full(op: Op) -> Array:
    return _filled(op, op.operand(1))


def _filled(op: Op, value: Operand) -> Array:
    result = result_of(op)
    if not isinstance(value, bool | int | float):
        raise TypeError(f"{op.kind} fills with {value!r}")
    return jnp.broadcast_to(cast(jnp.asarray(value), result.dtype), result.shape)


def _arange(op: Op) -> Array:
    result: TensorType = result_of(op)
    numbers = [n for n in op.operands if isinstance(n, int | float) and not isinstance(n, bool)]
    start, step = (0 if len(numbers) == 1 else numbers[0]), (numbers[2] if len(numbers) > 2 else 1)
    # ATen counts floats in double precision, and rounds each element once.
    wide = DType.F64 if result.dtype.is_floating else DType.I64
    count = jnp.arange(result.numel, dtype=dtypes.to_numpy(wide))
    return cast(jnp.asarray(start, count.dtype) + count * jnp.asarray(step, count.dtype), result.dtype)


CREATIONS: Mapping[str, Callable[[Op], Array]] = {
    "aten.full.default": _full,
    "aten.scalar_tensor.default": lambda op: _filled(op, op.operand(0)),
    "aten.zeros.default": lambda op: _filled(op, 0),
    "aten.ones.default": lambda op: _filled(op, 1),
    **dict.fromkeys(("aten.arange.default", "aten.arange.start", "aten.arange.start_step"), _arange),
}
"""What each op without tensor operands gives."""
