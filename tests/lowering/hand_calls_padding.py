"""Calls of paddings, which the op database makes through PyTorch's decompositions, and of losses over images."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

Call = tuple[tuple[Any, ...], dict[str, Any]]


def _noise(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(0)).to(dtype)


def _paddings(spatial: int) -> tuple[tuple[int, ...], ...]:
    """Wider on one side than on the other, none, and (where the op takes it) cropping."""
    return ((2, 1) * spatial, (0, 2, 1, 0, 1, 1)[: 2 * spatial], (0, 0) * spatial, (1, -1) * spatial)


def _padded(mode: str, spatial: int) -> tuple[list[Call], list[Call]]:
    packet = getattr(torch.ops.aten, f"{mode}_pad{spatial}d")
    forward: list[Call] = []
    backward: list[Call] = []
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.complex64):
        for batch in ((2,), ()):
            x = _noise(*batch, 3, *(4, 5, 3)[:spatial], dtype=dtype)
            for padding in _paddings(spatial):
                forward.append(((x, padding), {}))
                backward.append(((_noise(*packet(x, padding).shape, dtype=dtype), x, padding), {}))
    return forward, backward


def _losses() -> Iterator[tuple[Call, Call]]:
    x = _noise(2, 3, 4, 2)
    target = torch.arange(16).reshape(2, 4, 2) % 3
    for weight in (None, torch.tensor([0.5, 1.0, 2.0])):
        for reduction in (0, 1, 2):
            rest = (target, weight, reduction, 1)
            output, total = torch.ops.aten.nll_loss2d_forward(x, *rest)
            yield ((x, *rest), {}), ((torch.ones_like(output), x, *rest, total), {})


def _calls() -> dict[str, tuple[Call, ...]]:
    forward, backward = zip(*_losses(), strict=True)
    found = {"aten.nll_loss2d_forward.default": forward, "aten.nll_loss2d_backward.default": backward}
    for mode in ("reflection", "replication"):
        for spatial in (1, 2, 3):
            there, back = _padded(mode, spatial)
            found[f"aten.{mode}_pad{spatial}d.default"] = tuple(there)
            found[f"aten.{mode}_pad{spatial}d_backward.default"] = tuple(back)
    return found


CALLS: dict[str, tuple[Call, ...]] = _calls()
