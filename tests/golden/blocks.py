"""Blocks of well-known models, written out in plain torch.nn: what the golden dumps are of."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GPT2Block(nn.Module):
    """Pre-norm attention and MLP of GPT-2 124M: 768 wide, 12 heads; attention fused or by hand."""

    def __init__(self, *, by_hand: bool = False, width: int = 768, heads: int = 12) -> None:
        super().__init__()
        self.by_hand, self.heads = by_hand, heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = (
            t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(x).split(width, dim=-1)
        )
        if self.by_hand:
            scores = query @ key.transpose(-1, -2) / (width // self.heads) ** 0.5
            masked = scores.masked_fill(~torch.ones(length, length, dtype=torch.bool).tril(), float("-inf"))
            found = masked.softmax(-1) @ value
        else:
            found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(found.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class RMSNorm(nn.Module):
    """Root-mean-square norm as Llama writes it: in float32, op by op."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding, halves rotated."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class LlamaBlock(nn.Module):
    """RMSNorm, rotary embedding, grouped-query attention and gated MLP, of Llama-3.2-1B's width: 2048, 32 / 8 heads."""

    def __init__(self, width: int = 2048, heads: int = 32, groups: int = 8, hidden: int = 8192) -> None:
        super().__init__()
        self.heads, self.groups, self.head = heads, groups, width // heads
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, groups * self.head, bias=False)
        self.value = nn.Linear(width, groups * self.head, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def attend(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, width = x.shape

        def split(t: Tensor, heads: int) -> Tensor:
            return t.view(batch, length, heads, self.head).transpose(1, 2)

        def repeated(t: Tensor) -> Tensor:
            shape = (batch, self.groups, self.heads // self.groups, length, self.head)
            return t[:, :, None].expand(shape).reshape(batch, self.heads, length, self.head)

        query, key = split(self.query(x), self.heads), split(self.key(x), self.groups)
        value = split(self.value(x), self.groups)
        query, key = rotated(query, cos, sin), rotated(key, cos, sin)
        found = F.scaled_dot_product_attention(query, repeated(key), repeated(value), is_causal=True)
        return self.out(found.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x), cos, sin)
        wide = self.norm2(x)
        return x + self.down(F.silu(self.gate(wide)) * self.up(wide))


class Bottleneck(nn.Module):
    """Residual block of ResNet-50's second stage: 256 → 64 → 64 → 256 channels, batch norms in evaluation mode."""

    def __init__(self, wide: int = 256, narrow: int = 64) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            [
                nn.Conv2d(wide, narrow, 1, bias=False),
                nn.Conv2d(narrow, narrow, 3, padding=1, bias=False),
                nn.Conv2d(narrow, wide, 1, bias=False),
            ]
        )
        self.norms = nn.ModuleList([nn.BatchNorm2d(narrow), nn.BatchNorm2d(narrow), nn.BatchNorm2d(wide)])

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for step, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            y = norm(convolution(y))
            y = F.relu(y + x if step == 2 else y)
        return y


class ConvNeXtBlock(nn.Module):
    """Depthwise convolution, norm and MLP with channels last, layer scale: ConvNeXt-tiny's first stage, 96 channels."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.down(F.gelu(self.up(y))) * self.scale
        return x + y.permute(0, 3, 1, 2)


def softmax_by_hand(x: Tensor) -> Tensor:
    shifted = (x - x.amax(-1, keepdim=True)).exp()
    return shifted / shifted.sum(-1, keepdim=True)


def layer_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(F.layer_norm(x + residual, weight.shape, weight, bias))


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits / 0.7, targets)


def autocast_mlp(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """A two-layer MLP on float32 weights under bfloat16 autocast: casts before each product."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.linear(F.relu(F.linear(x, up)), down)
