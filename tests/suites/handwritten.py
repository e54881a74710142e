"""The base of the handwritten networks: a subclass says what it is, what it is called with, and what it computes."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

LENGTH, WIDTH, BATCH = 10, 16, 3


class Network(nn.Module):
    """A small module; every subclass is compiled and compared.

    Attributes:
        limit: largest relative RMS error of a result.
        trains: whether gradients reach anything.
    """

    limit: ClassVar[float] = 1e-4
    trains: ClassVar[bool] = True

    def inputs(self) -> tuple[Any, ...]:
        """The arguments of one call; here a batch of sequences of vectors."""
        return (normal(BATCH, LENGTH, WIDTH),)


def normal(*shape: int) -> torch.Tensor:
    """Standard normal float32 numbers of PyTorch's generator, which the test seeds."""
    return torch.randn(*shape)


def integers(end: int, *shape: int) -> torch.Tensor:
    """int64 numbers from 0 to ``end``, without it."""
    return torch.randint(0, end, shape)


def images(channels: int = 3, pixels: int = 16) -> torch.Tensor:
    """Two images, float32 of shape (2, channels, pixels, pixels)."""
    return normal(2, channels, pixels, pixels)
