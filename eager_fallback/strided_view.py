"""A strided view of memory, in terms of permuting, narrowing and expanding.

In: a tensor that covers its memory, one element in each place, and the sizes and strides of a view of that memory. Out:
the view. ``as_strided`` says the same of any view, but a compiler can do no better with it than gather by address.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def view(base: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int) -> torch.Tensor:
    """The view of ``base``'s memory of these sizes and strides, in elements, from an offset."""
    size, stride = tuple(size), tuple(stride)
    if tuple(base.shape) == size and tuple(base.stride()) == stride and offset == 0:
        return base
    wide = sorted((d for d in range(len(size)) if size[d] != 1 and stride[d] != 0), key=lambda d: -stride[d])
    boxes = _boxes(base.numel(), [size[d] for d in wide], [stride[d] for d in wide], offset)
    if boxes is None:
        return torch.as_strided(base, size, stride, offset)
    extents, starts, rest = boxes
    found = _in_memory_order(base, extents)
    if rest is not None:
        found = found.select(-1, rest)
    for place, (d, start) in enumerate(zip(wide, starts, strict=True)):
        if size[d] != extents[place]:
            found = found.narrow(place, start, size[d])
    found = _permuted(found, [wide.index(d) for d in sorted(wide)])
    for d in range(len(size)):
        if d not in wide:
            found = found.unsqueeze(d)
    return found if tuple(found.shape) == size else found.expand(size)


def _boxes(
    total: int, sizes: Sequence[int], strides: Sequence[int], offset: int
) -> tuple[list[int], list[int], int | None] | None:
    """Memory as an array whose dimensions have the strides, the largest first: its extents, where the view starts in
    each, and in a last dimension of single elements, None where that has one. None where there is no such array.
    """
    extents, starts, before = [], [], total
    for stride in strides:
        if before % stride:
            return None
        extents.append(before // stride)
        starts.append(offset // stride)
        offset, before = offset % stride, stride
    if any(start + size > extent for start, size, extent in zip(starts, sizes, extents, strict=True)):
        return None
    if before == 1:
        return extents, starts, None
    return [*extents, before], starts, offset


def _in_memory_order(base: torch.Tensor, extents: Sequence[int]) -> torch.Tensor:
    strides = base.stride()
    laid = _permuted(base, sorted(range(base.dim()), key=lambda d: (-strides[d], d)))
    return laid if list(laid.shape) == list(extents) else laid.view(list(extents))


def _permuted(tensor: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    return tensor if list(order) == sorted(order) else tensor.permute(*order)
