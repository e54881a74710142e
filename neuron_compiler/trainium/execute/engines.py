"""What the engines compute on one tile: VectorE's and ScalarE's elementwise instructions, TensorE's product.

One table from ATen's op to the function of its instruction. Operands come in the type that the engine computes in
(``numerics.compute_type``) and the result is rounded to the op's own: the callers in ``loops`` do both. Scalars are
values that XLA cannot see, so that it keeps the order of operations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import pi, sqrt
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuron_compiler import dtypes
from neuron_compiler.ir.graph import DType, Graph, Op, Operand, TensorType, Value
from neuron_compiler.trainium import numerics

Array = jax.Array


@dataclass(frozen=True)
class Engine:
    """One instruction.

    Attributes:
        function: of the operands, in order, and of the op's keyword arguments.
        compares: its operands are brought to their common type, not to that of the result.
        selector: position of an operand that is a condition and keeps its type; -1 without one.
        immediate: scalars are handed over as Python's numbers, since they choose the instruction.
    """

    function: Callable[..., Array]
    compares: bool = False
    selector: int = -1
    immediate: bool = False


def apply(op: Op, graph: Graph, arrays: Mapping[str, Array]) -> Array:
    """Run one op on tiles (or whole small arrays): convert, compute, round, store."""
    engine = ENGINES[op.kind]
    result = graph.tensor_type(op.result)
    if engine is _CAST:
        return stored(cast(_array(op.operands[0], arrays), result.dtype))
    common = _common_type(op, graph) if engine.compares else numerics.compute_type(result.dtype)
    operands: list[Any] = []
    for i, operand in enumerate(op.operands):
        if i == engine.selector:
            operands.append(_array(operand, arrays))
        elif engine.immediate and isinstance(operand, bool | int | float):
            operands.append(_rounded(operand, result.dtype))
        else:
            operands.append(_prepared(operand, arrays, common))
    attributes = {
        name: value if isinstance(value, str) else _prepared(value, arrays, common)
        for name, value in op.attrs
        if name != "dtype"
    }
    return stored(numerics.round_to(engine.function(*operands, **attributes), result.dtype))


def stored(x: Array) -> Array:
    """A result as it lies in memory: XLA neither skips its rounding nor joins its instruction with the next."""
    return lax.optimization_barrier(x)  # type: ignore[no-any-return,no-untyped-call]


def nc_matmul(stationary: Array, moving: Array, accumulate: DType) -> Array:
    """TensorE: [contraction, rows] and [contraction, columns] to their product [rows, columns] in PSUM's type."""
    wide = dtypes.to_numpy(accumulate)
    return lax.dot_general(
        stationary.astype(wide),
        moving.astype(wide),
        (((0,), (0,)), ((), ())),
        precision=lax.Precision.HIGHEST,
        preferred_element_type=wide,
    )


def cast(x: Array, dtype: DType) -> Array:
    """``tensor_copy`` to another type; floats outside an integer's range and NaN become its lowest value."""
    source = dtypes.from_numpy(x.dtype)
    if source is dtype:
        return x
    if dtype is DType.BOOL:
        return x != 0
    if source.is_floating and dtype.is_integer:
        through = numerics.lowest_integer_bits(dtype)
        low, high = numerics.integer_range(through)
        fits = (x >= low) & (x < high)
        whole = jnp.where(fits, x, 0).astype(dtypes.to_numpy(through))
        lowest = -(2 ** (8 * through.itemsize - 1))
        return jnp.where(fits, whole, lowest).astype(dtypes.to_numpy(dtype))
    if source is DType.F64 and dtype.itemsize < DType.F32.itemsize:
        x = stored(x.astype(dtypes.to_numpy(DType.F32)))  # as on the host's side: double reaches half through float
    return x.astype(dtypes.to_numpy(dtype))


def scalar(value: bool | int | float, dtype: DType) -> Array:
    """An immediate of an instruction."""
    return stored(cast(jnp.asarray(value), dtype))


def _array(operand: Operand, arrays: Mapping[str, Array]) -> Any:
    return arrays[operand.name] if isinstance(operand, Value) else operand


def _prepared(operand: Operand, arrays: Mapping[str, Array], dtype: DType) -> Any:
    if isinstance(operand, Value):
        return cast(arrays[operand.name], dtype)
    return scalar(operand, dtype) if isinstance(operand, bool | int | float) else operand


def _rounded(value: bool | int | float, dtype: DType) -> bool | int | float:
    """A Python number as a tensor of ``dtype`` would hold it."""
    return float(np.asarray(value, dtypes.to_numpy(dtype))) if dtype.is_floating else value


def _common_type(op: Op, graph: Graph) -> DType:
    """The type that the operands are compared in: of tensors, unless a 0-dim one or a scalar is of a higher kind."""
    ranks: list[DType | None] = [None, None, None]
    for operand in op.operands:
        if isinstance(operand, Value):
            found = graph.tensor_type(operand.name)
            level, dtype = (0 if found.rank else 1), found.dtype
        elif isinstance(operand, bool | int | float):
            level, dtype = 2, {bool: DType.BOOL, int: DType.I64, float: DType.F32}[type(operand)]
        else:
            continue
        before = ranks[level]
        ranks[level] = dtype if before is None else numerics.promoted(before, dtype)
    common: DType | None = None
    for dtype_ in ranks:
        if dtype_ is not None:
            common = dtype_ if common is None or _higher(dtype_, common) else common
    if common is None:
        raise TypeError(f"{op.kind} compares nothing")
    return common


def _higher(a: DType, b: DType) -> bool:
    order = (DType.BOOL, DType.I64, DType.F32)
    return order.index(_class(a)) > order.index(_class(b))


def _class(dtype: DType) -> DType:
    return DType.BOOL if dtype is DType.BOOL else DType.I64 if dtype.is_integer else DType.F32


# Functions of instructions


def _add(x: Array, y: Array, alpha: Array | None = None) -> Array:
    return x + (y if alpha is None else y * alpha)


def _sub(x: Array, y: Array, alpha: Array | None = None) -> Array:
    return x - (y if alpha is None else y * alpha)


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + jnp.exp(-x))


def _gelu(x: Array, approximate: str = "none") -> Array:
    if approximate == "tanh":
        return 0.5 * x * (1 + jnp.tanh(sqrt(2 / pi) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1 + lax.erf(x * sqrt(0.5)))


def _silu_backward(g: Array, x: Array) -> Array:
    gate = _sigmoid(x)
    return g * gate * (1 + x * (1 - gate))


def _gelu_backward(g: Array, x: Array, approximate: str = "none") -> Array:
    if approximate == "tanh":
        inner = sqrt(2 / pi) * (x + 0.044715 * x * x * x)
        bent, slope = jnp.tanh(inner), sqrt(2 / pi) * (1 + 3 * 0.044715 * x * x)
        return g * (0.5 * (1 + bent) + 0.5 * x * (1 - bent * bent) * slope)
    return g * (0.5 * (1 + lax.erf(x * sqrt(0.5))) + x * jnp.exp(-0.5 * x * x) / sqrt(2 * pi))


def _clamp(x: Array, low: Array | None = None, high: Array | None = None, **bounds: Array | None) -> Array:
    low, high = bounds.get("min", low), bounds.get("max", high)
    raised = x if low is None else jnp.maximum(x, low)
    return raised if high is None else jnp.minimum(raised, high)


def _power(x: Array, y: Array | float) -> Array:
    """Powers that are products, roots or reciprocals are computed as such, the others by log and exp."""
    if isinstance(y, bool | int | float) and jnp.issubdtype(x.dtype, jnp.floating):
        known = _POWERS.get(float(y))
        return known(x) if known is not None else x ** stored(jnp.asarray(y, x.dtype))
    return x**y


_POWERS: Mapping[float, Callable[[Array], Array]] = {
    0.5: jnp.sqrt,
    2.0: lambda x: x * x,
    3.0: lambda x: x * x * x,
    -0.5: lambda x: 1 / jnp.sqrt(x),
    -1.0: lambda x: 1 / x,
    -2.0: lambda x: 1 / (x * x),
}


def _is_true(x: Array) -> Array:
    return x != 0


_CAST = Engine(lambda x: x)

# tensor_tensor and tensor_scalar on VectorE
_ARITHMETIC: Mapping[str, Callable[..., Array]] = {
    "aten.add.Tensor": _add,
    "aten.add.Scalar": _add,
    "aten.sub.Tensor": _sub,
    "aten.sub.Scalar": _sub,
    "aten.rsub.Scalar": lambda x, y, alpha=None: _sub(y, x, alpha),
    "aten.rsub.Tensor": lambda x, y, alpha=None: _sub(y, x, alpha),
    "aten.mul.Tensor": lambda x, y: x * y,
    "aten.mul.Scalar": lambda x, y: x * y,
    "aten.div.Tensor": lambda x, y: x / y,
    "aten.div.Scalar": lambda x, y: x / y,
    "aten.maximum.default": jnp.maximum,
    "aten.minimum.default": jnp.minimum,
    "aten.clamp.default": _clamp,
    "aten.clamp_min.default": jnp.maximum,
    "aten.clamp_max.default": jnp.minimum,
    "aten.neg.default": lambda x: -x,
    "aten.abs.default": jnp.abs,
    "aten.relu.default": lambda x: jnp.maximum(x, 0),
    "aten.threshold_backward.default": lambda g, x, threshold: jnp.where(x <= threshold, 0, g),
    "aten.tanh_backward.default": lambda g, y: g * (1 - y * y),
    "aten.sigmoid_backward.default": lambda g, y: g * (1 - y) * y,
    "aten.silu_backward.default": _silu_backward,
    "aten.gelu_backward.default": _gelu_backward,
    "aten.square.default": lambda x: x * x,
    "aten.addcmul.default": lambda x, a, b, value=None: _add(x, a * b, value),
    "aten.addcdiv.default": lambda x, a, b, value=None: _add(x, a / b, value),
    "aten.floor.default": jnp.floor,
    "aten.ceil.default": jnp.ceil,
    "aten.trunc.default": jnp.trunc,
    "aten.bitwise_and.Tensor": lambda x, y: x & y,
    "aten.bitwise_or.Tensor": lambda x, y: x | y,
    "aten.bitwise_xor.Tensor": lambda x, y: x ^ y,
    "aten.bitwise_not.default": lambda x: ~x,
}

# activation on ScalarE
_ACTIVATIONS: Mapping[str, Callable[..., Array]] = {
    "aten.exp.default": jnp.exp,
    "aten.log.default": jnp.log,
    "aten.sqrt.default": jnp.sqrt,
    "aten.rsqrt.default": lambda x: 1 / jnp.sqrt(x),
    "aten.reciprocal.default": lambda x: 1 / x,
    "aten.expm1.default": jnp.expm1,
    "aten.log1p.default": jnp.log1p,
    "aten.tanh.default": jnp.tanh,
    "aten.erf.default": lax.erf,
    "aten.sin.default": jnp.sin,
    "aten.cos.default": jnp.cos,
    "aten.sigmoid.default": _sigmoid,
    "aten.silu.default": lambda x: x * _sigmoid(x),
    "aten.gelu.default": _gelu,
    "aten.pow.Tensor_Tensor": lambda x, y: x**y,
    "aten.pow.Scalar": lambda x, y: x**y,
}

_COMPARISONS: Mapping[str, Callable[..., Array]] = {
    f"aten.{name}.{overload}": function
    for name, function in {
        "eq": lambda x, y: x == y,
        "ne": lambda x, y: x != y,
        "lt": lambda x, y: x < y,
        "le": lambda x, y: x <= y,
        "gt": lambda x, y: x > y,
        "ge": lambda x, y: x >= y,
    }.items()
    for overload in ("Tensor", "Scalar")
}

_LOGIC: Mapping[str, Callable[..., Array]] = {
    "aten.logical_and.default": lambda x, y: _is_true(x) & _is_true(y),
    "aten.logical_or.default": lambda x, y: _is_true(x) | _is_true(y),
    "aten.logical_xor.default": lambda x, y: _is_true(x) ^ _is_true(y),
    "aten.logical_not.default": lambda x: x == 0,
}

ENGINES: Mapping[str, Engine] = {
    **{kind: Engine(function) for kind, function in {**_ARITHMETIC, **_ACTIVATIONS}.items()},
    **{kind: Engine(function, compares=True) for kind, function in {**_COMPARISONS, **_LOGIC}.items()},
    "aten.pow.Tensor_Scalar": Engine(_power, immediate=True),
    **dict.fromkeys(
        ("aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.Scalar"),
        Engine(jnp.where, selector=0),
    ),
    "aten.masked_fill.Scalar": Engine(lambda x, mask, y: jnp.where(mask, y, x), selector=1),
    "aten.masked_fill.Tensor": Engine(lambda x, mask, y: jnp.where(mask, y, x), selector=1),
    "aten._to_copy.default": _CAST,
    "prims.convert_element_type.default": _CAST,
}
"""The instruction of each elementwise op that tiles can hold."""


def result_of(op: Op) -> TensorType:
    """The op's type, which is one tensor."""
    if not isinstance(op.type, TensorType):
        raise TypeError(f"{op.kind} gives a tuple")
    return op.type
