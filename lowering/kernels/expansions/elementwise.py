"""Elementwise ops: on VectorE where they combine two operands, on ScalarE where they are functions of one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

from neuron_compiler.ir.graph import DType, Op, Value
from neuron_compiler.ir.space import base_name
from neuron_compiler.lowering.kernels.expansions.common import F32, Expansion, number_of
from neuron_compiler.lowering.kernels.index_maps import Index, NoKernel, broadcast
from neuron_compiler.lowering.kernels.nodes import NodeId
from neuron_compiler.lowering.kernels.pull import Pull


def _binary(function: str, p: Pull, op: Op, number: int, index: Index) -> NodeId:
    a, b = p.operand(op, 0, index), p.operand(op, 1, index)
    return p.dag.binary(function, a, b, p.dtype(op))


def _with_alpha(function: str, p: Pull, op: Op, number: int, index: Index) -> NodeId:
    a, b = p.operand(op, 0, index), p.operand(op, 1, index)
    alpha = op.attr("alpha", 1)
    if function == "rsub":
        a, b, function = b, a, "subtract"
        if alpha != 1:
            raise NoKernel("rsub with alpha")
    if alpha != 1 and isinstance(alpha, int | float):
        b = p.dag.binary("multiply", b, p.dag.number(alpha), F32 if p.dtype(op).is_floating else p.dtype(op))
    return p.dag.binary(function, a, b, p.dtype(op))


def _division(p: Pull, op: Op, number: int, index: Index) -> NodeId:
    if op.attr("rounding_mode") is not None or not p.dtype(op).is_floating:
        raise NoKernel("division of whole numbers")
    return _binary("divide", p, op, number, index)


def _comparison(function: str, p: Pull, op: Op, number: int, index: Index) -> NodeId:
    a, b = p.operand(op, 0, index), p.operand(op, 1, index)
    types = {p.dag[x].dtype for x in (a, b)}
    if all(t.is_integer for t in types) and p.dag.number_of(b) != 0:
        # Engines compare in fp32; the difference is exact on GpSimd, and so is its sign.
        a, b = p.dag.binary("subtract", a, b, DType.I32), p.dag.number(0)
    return p.dag.binary(function, a, b, DType.BOOL)


def _logical(function: str, p: Pull, op: Op, number: int, index: Index) -> NodeId:
    if p.dtype(op) is not DType.BOOL:
        return p.dag.binary(
            function.replace("logical", "bitwise"), *(p.operand(op, i, index) for i in (0, 1)), p.dtype(op)
        )
    return p.dag.binary(function, p.operand(op, 0, index), p.operand(op, 1, index), DType.BOOL)


def _not(p: Pull, op: Op, number: int, index: Index) -> NodeId:
    if p.dtype(op) is not DType.BOOL:
        raise NoKernel("bitwise_not of whole numbers")
    return p.dag.binary("equal", p.operand(op, 0, index), p.dag.number(0), DType.BOOL)


def _unary(function: str, p: Pull, op: Op, number: int, index: Index) -> NodeId:
    if not p.dtype(op).is_floating:
        raise NoKernel(f"{op.kind} of whole numbers")
    return p.dag.unary(function, p.operand(op, 0, index), p.dtype(op))


def _scaled(factor: float, p: Pull, op: Op, number: int, index: Index) -> NodeId:
    x = p.operand(op, 0, index)
    scale = factor if p.dtype(op).is_floating else int(factor)
    return p.dag.binary("multiply", x, p.dag.number(scale), p.dtype(op))


def _gelu(p: Pull, op: Op, number: int, index: Index) -> NodeId:
    function = "gelu_apprx_tanh" if op.attr("approximate", "none") == "tanh" else "gelu"
    return p.dag.unary(function, p.operand(op, 0, index), p.dtype(op))


def _power(p: Pull, op: Op, number: int, index: Index) -> NodeId:
    exponent = op.operand(1)
    x, dtype = p.operand(op, 0, index), p.dtype(op)
    if not dtype.is_floating:
        raise NoKernel("powers of whole numbers")
    if exponent == 2:
        return p.dag.unary("square", x, dtype)
    if exponent == 3:
        return p.dag.binary("multiply", p.dag.unary("square", x, F32), x, dtype)
    if exponent in (0.5, -0.5):
        return p.dag.unary("sqrt" if exponent == 0.5 else "rsqrt", x, dtype)
    return p.dag.binary("power", x, p.operand(op, 1, index), dtype)


def _turned(quarter: float, p: Pull, op: Op, number: int, index: Index) -> NodeId:
    """sin(2 pi t), t within half a turn of 0, which is as far as ScalarE's table reaches."""
    d = p.dag
    turns = d.binary("multiply", p.operand(op, 0, index), d.number(1 / (2 * math.pi)), F32)
    turns = d.binary("add", turns, d.number(quarter), F32)
    rest = d.binary("subtract", turns, d.cast(turns, DType.I32), F32)
    return d.unary("sin", rest, p.dtype(op), scale=2 * math.pi)


def _where(p: Pull, op: Op, number: int, index: Index) -> NodeId:
    condition, a, b = (p.operand(op, i, index) for i in range(3))
    return p.dag.select(condition, a, b, p.dtype(op))


def _clamp(p: Pull, op: Op, number: int, index: Index) -> NodeId:
    found = p.operand(op, 0, index)
    for position, name, function in ((1, "min", "maximum"), (2, "max", "minimum")):
        limit = op.operand(position, op.attr(name))
        if isinstance(limit, int | float):
            found = p.dag.binary(function, found, p.dag.number(limit), p.dtype(op))
        elif isinstance(limit, Value):
            found = p.dag.binary(
                function,
                found,
                p.value(limit.name, broadcast(index, p.graph.tensor_type(limit.name).shape)),
                p.dtype(op),
            )
    return found


def _softplus(p: Pull, op: Op, number: int, index: Index) -> NodeId:
    beta, threshold = number_of(op, 1, "beta", 1), number_of(op, 2, "threshold", 20)
    d, x = p.dag, p.operand(op, 0, index)
    soft = d.unary("softplus", x, F32, scale=float(beta))
    soft = d.binary("multiply", soft, d.number(1 / beta), F32) if beta != 1 else soft
    large = d.binary(
        "greater", d.binary("multiply", x, d.number(float(beta)), F32), d.number(float(threshold)), DType.BOOL
    )
    return d.select(large, x, soft, p.dtype(op))


def _scaled_function(function: str, inner: float, outer: float, p: Pull, op: Op, number: int, index: Index) -> NodeId:
    """outer * function(inner * x), for other bases of exponentials and logarithms."""
    found = p.dag.unary(function, p.operand(op, 0, index), F32 if outer != 1 else p.dtype(op), scale=inner)
    return p.dag.binary("multiply", found, p.dag.number(outer), p.dtype(op)) if outer != 1 else found


def _bounded(p: Pull, x: NodeId, low: float, high: float, dtype: DType) -> NodeId:
    return p.dag.binary("minimum", p.dag.binary("maximum", x, p.dag.number(low), dtype), p.dag.number(high), dtype)


def _hardtanh(p: Pull, op: Op, number: int, index: Index) -> NodeId:
    low, high = number_of(op, 1, "min_val", -1.0), number_of(op, 2, "max_val", 1.0)
    return _bounded(p, p.operand(op, 0, index), float(low), float(high), p.dtype(op))


def _hardsigmoid(p: Pull, op: Op, number: int, index: Index) -> NodeId:
    x = p.operand(op, 0, index)
    shifted = p.dag.binary("add", x, p.dag.number(3.0), F32)
    share = p.dag.binary("multiply", _bounded(p, shifted, 0.0, 6.0, F32), p.dag.number(1 / 6), F32)
    if base_name(op.kind) == "hardswish":
        return p.dag.binary("multiply", share, x, p.dtype(op))
    return p.dag.cast(share, p.dtype(op))


def _leaky_relu(p: Pull, op: Op, number: int, index: Index) -> NodeId:
    d, x = p.dag, p.operand(op, 0, index)
    slope = d.number(float(number_of(op, 1, "negative_slope", 0.01)))
    low = d.binary("multiply", x, slope, F32)
    return d.select(d.binary("greater", x, d.number(0.0), DType.BOOL), x, low, p.dtype(op))


def _elu(p: Pull, op: Op, number: int, index: Index) -> NodeId:
    alpha, scale, inner = (float(number_of(op, i + 1, n, 1.0)) for i, n in enumerate(("alpha", "scale", "input_scale")))
    d, x = p.dag, p.operand(op, 0, index)
    low = d.binary("subtract", d.unary("exp", x, F32, scale=inner), d.number(1.0), F32)
    low = d.binary("multiply", low, d.number(alpha * scale), F32)
    high = d.binary("multiply", x, d.number(scale), F32)
    return d.select(d.binary("greater", x, d.number(0.0), DType.BOOL), high, low, p.dtype(op))


def _added(function: str, p: Pull, op: Op, number: int, index: Index) -> NodeId:
    """addcmul and addcdiv: x + value * (a by b)."""
    x, a, b = (p.operand(op, i, index) for i in range(3))
    value = op.attr("value", 1)
    if not p.dtype(op).is_floating or not isinstance(value, int | float):
        raise NoKernel(f"{op.kind} of whole numbers")
    found = p.dag.binary(function, a, b, F32)
    if value != 1:
        found = p.dag.binary("multiply", found, p.dag.number(float(value)), F32)
    return p.dag.binary("add", x, found, p.dtype(op))


# Gradients


def _by_derivative(function: str, p: Pull, op: Op, number: int, index: Index) -> NodeId:
    """The gradient times a function of ScalarE's tables, of what the forward read."""
    if op.attr("approximate", "none") != "none":
        raise NoKernel("gradients of an approximated gelu")
    slope = p.dag.unary(function, p.operand(op, 1, index), F32)
    return p.dag.binary("multiply", p.operand(op, 0, index), slope, p.dtype(op))


def _tanh_backward(p: Pull, op: Op, number: int, index: Index) -> NodeId:
    d, result = p.dag, p.operand(op, 1, index)
    rest = d.binary("subtract", d.number(1.0), d.unary("square", result, F32), F32)
    return d.binary("multiply", p.operand(op, 0, index), rest, p.dtype(op))


def _sigmoid_backward(p: Pull, op: Op, number: int, index: Index) -> NodeId:
    d, result = p.dag, p.operand(op, 1, index)
    slope = d.binary("multiply", d.binary("subtract", d.number(1.0), result, F32), result, F32)
    return d.binary("multiply", p.operand(op, 0, index), slope, p.dtype(op))


def _threshold_backward(p: Pull, op: Op, number: int, index: Index) -> NodeId:
    d, limit = p.dag, p.dag.number(float(number_of(op, 2, "threshold")))
    stays = d.binary("greater", p.operand(op, 1, index), limit, DType.BOOL)
    return d.select(stays, p.operand(op, 0, index), d.number(0.0), p.dtype(op))


def _cast(p: Pull, op: Op, number: int, index: Index) -> NodeId:
    x, dtype = p.operand(op, 0, index), p.dtype(op)
    if p.dag[x].dtype.is_floating and dtype.is_integer:
        raise NoKernel("floats that become whole numbers are rounded by engines, and cut off by PyTorch")
    return p.dag.cast(x, dtype)


_FUNCTIONS = ("abs", "sign", "sqrt", "rsqrt", "exp", "log", "tanh", "sigmoid", "relu", "silu", "erf", "mish")
_COMPARISONS = {
    "eq": "equal",
    "ne": "not_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "lt": "less",
    "le": "less_equal",
}

EXPANSIONS: Mapping[str, Expansion] = {
    **{name: partial(_unary, name) for name in _FUNCTIONS},
    "reciprocal": partial(_unary, "reciprocal"),
    "square": partial(_unary, "square"),
    "atan": partial(_unary, "arctan"),
    "add": partial(_with_alpha, "add"),
    "sub": partial(_with_alpha, "subtract"),
    "rsub": partial(_with_alpha, "rsub"),
    "mul": partial(_binary, "multiply"),
    "div": _division,
    "maximum": partial(_binary, "maximum"),
    "minimum": partial(_binary, "minimum"),
    "neg": partial(_scaled, -1.0),
    "gelu": _gelu,
    "pow": _power,
    "sin": partial(_turned, 0.0),
    "cos": partial(_turned, 0.25),
    "where": _where,
    "clamp": _clamp,
    "clamp_min": _clamp,
    "softplus": _softplus,
    "exp2": partial(_scaled_function, "exp", math.log(2), 1.0),
    "log2": partial(_scaled_function, "log", 1.0, 1 / math.log(2)),
    "log10": partial(_scaled_function, "log", 1.0, 1 / math.log(10)),
    "hardtanh": _hardtanh,
    "hardsigmoid": _hardsigmoid,
    "hardswish": _hardsigmoid,
    "leaky_relu": _leaky_relu,
    "elu": _elu,
    "addcmul": partial(_added, "multiply"),
    "addcdiv": partial(_added, "divide"),
    "gelu_backward": partial(_by_derivative, "gelu_dx"),
    "silu_backward": partial(_by_derivative, "silu_dx"),
    "tanh_backward": _tanh_backward,
    "sigmoid_backward": _sigmoid_backward,
    "threshold_backward": _threshold_backward,
    "_to_copy": _cast,
    **{name: partial(_comparison, function) for name, function in _COMPARISONS.items()},
    **{
        f"{kind}_{w}": partial(_logical, f"logical_{w}")
        for kind in ("bitwise", "logical")
        for w in ("and", "or", "xor")
    },
    "logical_not": _not,
    "bitwise_not": _not,
}
