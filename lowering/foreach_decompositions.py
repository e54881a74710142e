"""Decompositions of ``_foreach_*``: optimizers' ops on lists of tensors, as one op a tensor.

The fusion pass and the rules then see ordinary ops; nothing is gained from lists on a machine that fuses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

_UNARY = (
    "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal round "
    "rsqrt sigmoid sign sin sinh sqrt tan tanh trunc"
)
_BINARY: dict[str, Callable[..., Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "pow": torch.pow,
    "clamp_min": lambda x, y: torch.clamp_min(x, y),
    "clamp_max": lambda x, y: torch.clamp_max(x, y),
    "maximum": lambda x, y: torch.maximum(x, y) if isinstance(y, Tensor) else torch.clamp_min(x, y),
    "minimum": lambda x, y: torch.minimum(x, y) if isinstance(y, Tensor) else torch.clamp_max(x, y),
}


def _norm(x: Tensor, order: float = 2, dtype: torch.dtype | None = None) -> Tensor:
    return torch.linalg.vector_norm(x, order, dtype=dtype)


_OTHER: dict[str, Callable[..., Tensor]] = {
    "clone": torch.clone,
    "zero": torch.zeros_like,
    "copy": lambda x, source: aten.copy.default(x, source),
    "norm": _norm,
    "max": lambda x: x.max(),
    "mm": torch.mm,
    "lerp": torch.lerp,
    "addcmul": lambda x, y, z, value=1: torch.addcmul(x, y, z, value=value),
    "addcdiv": lambda x, y, z, value=1: torch.addcdiv(x, y, z, value=value),
}
_SCALED: dict[str, Callable[..., Tensor]] = {
    "addcmul": lambda x, y, z, value: x + value.to(x.dtype) * y * z,
    "addcdiv": lambda x, y, z, value: x + value.to(x.dtype) * y / z,
}
"""With the scalars in one tensor, which a number cannot be read from while the program is traced."""


def _each(function: Callable[..., Tensor]) -> Callable[..., list[Tensor]]:
    """The function on every place of its list arguments; other arguments are the same for all."""

    def decomposition(*args: Any, **kwargs: Any) -> list[Tensor]:
        count = next(len(a) for a in args if isinstance(a, list | tuple))
        return [function(*(a[i] if isinstance(a, list | tuple) else a for a in args), **kwargs) for i in range(count)]

    return decomposition


def _with_scalars_unbound(function: Callable[..., Tensor]) -> Callable[..., list[Tensor]]:
    each = _each(function)

    def decomposition(x: list[Tensor], y: list[Tensor], z: list[Tensor], scalars: Tensor) -> list[Tensor]:
        return each(x, y, z, list(scalars.unbind()))

    return decomposition


def _decompositions() -> dict[Any, Callable[..., Any]]:
    functions = {name: getattr(torch, name) for name in _UNARY.split()} | _BINARY | _OTHER
    found: dict[Any, Callable[..., Any]] = {}
    for name, function in functions.items():
        packet = getattr(aten, f"_foreach_{name}")
        for overload in packet.overloads():
            if overload == "out" or overload.endswith("_out"):
                continue
            takes_tensor = overload == "Tensor" and name in _SCALED
            decompose = _with_scalars_unbound(_SCALED[name]) if takes_tensor else _each(function)
            found[getattr(packet, overload)] = decompose
    return found


DECOMPOSITIONS = _decompositions()
