"""Calls of overloads that PyTorch's op database does not reach: overload → (args, kwargs) of each call.

A rule whose overload is in neither fails its generated test, which asks for a line here.
"""

from __future__ import annotations

from typing import Any

import hand_calls_reductions
import torch
import torch._inductor.inductor_prims  # declares prims.fma

Call = tuple[tuple[Any, ...], dict[str, Any]]


def _x(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    count = 1
    for size in shape:
        count *= size
    return (torch.arange(count).reshape(shape) % 7 - 3).to(dtype)


CALLS: dict[str, tuple[Call, ...]] = {
    **hand_calls_reductions.CALLS,
    "prims.fma.default": (((_x(3, 4), _x(3, 4) + 0.5, _x(4)), {}),),
}
