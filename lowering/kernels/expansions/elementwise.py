"""Elementwise ops: on VectorE where they combine two operands, on ScalarE where they are functions of one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

from neuron_compiler.ir.graph import DType, Op, Value
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
