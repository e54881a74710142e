"""Decompositions of ops whose meaning or result depends on strides, which are known while PyTorch traces only.

``as_strided`` itself stays: the capture hands its rule the strides of what it looks at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions
from torch._prims_common import suggest_memory_format

aten = torch.ops.aten


def as_strided_copy(x: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Tensor:
    return aten.as_strided(x, size, stride, storage_offset).clone(memory_format=torch.contiguous_format)


def as_strided_scatter(
    x: Tensor, src: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """A copy of ``x``, memory and all, with ``src`` written where the strides say."""
    start = x.storage_offset() if storage_offset is None else storage_offset
    extent = x.storage_offset() + 1 + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))
    if x.numel() == 0 or src.numel() == 0:
        return x.clone()
    memory = aten.as_strided(x, (extent,), (1,), 0)
    places = torch.full((), start, dtype=torch.int64, device=x.device)
    for n, step in zip(size, stride, strict=True):
        places = places.unsqueeze(-1) + torch.arange(n, device=x.device) * step
    written = aten.index_put(memory, [places.reshape(-1)], src.reshape(-1))
    return aten.as_strided(written, x.shape, x.stride(), x.storage_offset())


def _in_format_of_first(overload: Any) -> Callable[..., Any]:
    """PyTorch's decomposition, with the result in the memory format of the first argument, as the kernel leaves it."""
    decompose = core_aten_decompositions()[overload]

    def decomposition(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return decompose(x, *args, **kwargs).contiguous(memory_format=suggest_memory_format(x))

    return decomposition


DECOMPOSITIONS: Mapping[Any, Callable[..., Any]] = {
    aten.as_strided_copy.default: as_strided_copy,
    aten.as_strided_scatter.default: as_strided_scatter,
    aten.max_unpool2d.default: _in_format_of_first(aten.max_unpool2d.default),
}
