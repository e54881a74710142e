"""What the engines compute: operations of two operands, reductions and the functions of ScalarE, on fp32 arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch

from neuron_compiler.trainium.isa import BITWISE

Array = np.ndarray
Binary = Callable[[Array, Array], Array]
Unary = Callable[[Array], Array]

FLOAT = np.float32


def _truth(f: Callable[[Array, Array], Array]) -> Binary:
    return lambda a, b: f(a, b).astype(FLOAT)


def _logical(f: Callable[[Array, Array], Array]) -> Binary:
    return lambda a, b: f(a != 0, b != 0).astype(FLOAT)


BINARY: Mapping[str, Binary] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "power": np.power,
    "mod": np.mod,
    "logical_and": _logical(np.logical_and),
    "logical_or": _logical(np.logical_or),
    "logical_xor": _logical(np.logical_xor),
    "equal": _truth(np.equal),
    "not_equal": _truth(np.not_equal),
    "greater": _truth(np.greater),
    "greater_equal": _truth(np.greater_equal),
    "less": _truth(np.less),
    "less_equal": _truth(np.less_equal),
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "left_shift": np.left_shift,
    "right_shift": np.right_shift,
}
INTEGER = ("add", "subtract", "multiply", *BITWISE)
"""Operations that have an exact way for whole numbers: arithmetic on GpSimd, bits everywhere."""

REDUCE: Mapping[str, Callable[..., Array]] = {
    "add": np.add.reduce,
    "multiply": np.multiply.reduce,
    "max": np.maximum.reduce,
    "min": np.minimum.reduce,
}


def _of_torch(f: Callable[[torch.Tensor], torch.Tensor]) -> Unary:
    """A function that numpy lacks."""
    return lambda x: f(torch.from_numpy(np.ascontiguousarray(x))).numpy()


erf = _of_torch(torch.erf)
_INV_SQRT_2, _INV_SQRT_2PI, _2_BY_SQRT_PI = 1 / math.sqrt(2), 1 / math.sqrt(2 * math.pi), 2 / math.sqrt(math.pi)


def _sigmoid(x: Array) -> Array:
    return FLOAT(1) / (FLOAT(1) + np.exp(-x))


def _softplus(x: Array) -> Array:
    return np.logaddexp(x, FLOAT(0))


def _gelu(x: Array) -> Array:
    return FLOAT(0.5) * x * (FLOAT(1) + erf(x * FLOAT(_INV_SQRT_2)))


def _gelu_dx(x: Array) -> Array:
    density = FLOAT(_INV_SQRT_2PI) * np.exp(FLOAT(-0.5) * x * x)
    return FLOAT(0.5) * (FLOAT(1) + erf(x * FLOAT(_INV_SQRT_2))) + x * density


def _gelu_tanh(x: Array) -> Array:
    inner = FLOAT(math.sqrt(2 / math.pi)) * (x + FLOAT(0.044715) * x * x * x)
    return FLOAT(0.5) * x * (FLOAT(1) + np.tanh(inner))


def _silu_dx(x: Array) -> Array:
    s = _sigmoid(x)
    return s * (FLOAT(1) + x * (FLOAT(1) - s))


UNARY: Mapping[str, Unary] = {
    "copy": lambda x: x,
    "abs": np.abs,
    "sign": np.sign,
    "square": np.square,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: FLOAT(1) / np.sqrt(x),
    "reciprocal": lambda x: FLOAT(1) / x,
    "exp": np.exp,
    "log": np.log,
    "sin": np.sin,
    "arctan": np.arctan,
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "relu": lambda x: np.maximum(x, FLOAT(0)),
    "softplus": _softplus,
    "silu": lambda x: x * _sigmoid(x),
    "silu_dx": _silu_dx,
    "gelu": _gelu,
    "gelu_dx": _gelu_dx,
    "gelu_apprx_tanh": _gelu_tanh,
    "mish": lambda x: x * np.tanh(_softplus(x)),
    "erf": erf,
    "erf_dx": lambda x: FLOAT(_2_BY_SQRT_PI) * np.exp(-x * x),
}
