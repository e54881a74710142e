"""Attention: who sees whom by masks of every kind, positions of every kind, and what is kept between calls."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from handwritten import BATCH, LENGTH, WIDTH, Network, integers, normal
from torch import nn

HEADS = 4


class Attention(Network):
    """Projections around what a subclass does with queries, keys and values of shape (batch, head, time, size)."""

    groups = HEADS

    def __init__(self) -> None:
        super().__init__()
        size = WIDTH // HEADS
        self.query, self.output = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.key, self.value = nn.Linear(WIDTH, self.groups * size), nn.Linear(WIDTH, self.groups * size)

    def split(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v)

    def forward(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        q, k, v = (self.split(layer(x)) for layer in (self.query, self.key, self.value))
        return self.output(self.attend(q, k, v, *rest).transpose(1, 2).flatten(2))


class CausalAttention(Attention):
    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)


class PaddedAttention(Attention):
    """Lengths become a boolean mask."""

    def inputs(self) -> tuple[Any, ...]:
        return *super().inputs(), torch.tensor([LENGTH, 4, 1])

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> torch.Tensor:
        seen = torch.arange(k.shape[2])[None] < rest[0][:, None]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None, None])


class DroppedAttention(Attention):
    """Scores, a causal fill, a softmax and dropout, spelled out."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> torch.Tensor:
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
        return F.dropout(scores.softmax(-1, dtype=torch.float32), 0.3, self.training) @ v


class WindowedAttention(Attention):
    """Each token sees the three before it, by an additive mask of the smallest float."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> torch.Tensor:
        place = torch.arange(q.shape[2])
        behind = place[:, None] - place
        mask = torch.where((behind >= 0) & (behind < 4), 0.0, torch.finfo(q.dtype).min)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class SlopedAttention(Attention):
    """A bias by distance whose slope differs from head to head."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> torch.Tensor:
        slopes = 2.0 ** -torch.arange(1, HEADS + 1)
        place = torch.arange(q.shape[2])
        bias = (place - place[:, None]).tril()[None] * slopes[:, None, None]
        scores = torch.baddbmm(bias.repeat(q.shape[0], 1, 1), q.flatten(0, 1), k.flatten(0, 1).mT, beta=1.0, alpha=0.5)
        return (scores.softmax(-1) @ v.flatten(0, 1)).view_as(q)


class GroupedAttention(Attention):
    """Two heads share each key, positions turn queries and keys."""

    groups = 2

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        size = x.shape[-1]
        angles = torch.arange(x.shape[2])[:, None] / 10000 ** (torch.arange(0, size, 2) / size)
        angles = torch.cat([angles, angles], -1)
        first, second = x.chunk(2, -1)
        return x * angles.cos() + torch.cat([-second, first], -1) * angles.sin()

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> torch.Tensor:
        q, k = self.turned(q), self.turned(k)
        k, v = (x.repeat_interleave(HEADS // self.groups, dim=1) for x in (k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class NormalisedAttention(Attention):
    """Queries and keys of length 1, a learned scale, scores capped by tanh, and keys shared through ``enable_gqa``."""

    groups = 2

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> torch.Tensor:
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        shared = F.scaled_dot_product_attention(q * self.scale, k, v, enable_gqa=True)
        scores = torch.tanh(q.unflatten(1, (2, 2)) @ k[:, :, None].mT / 2) * 2
        return shared + (scores.softmax(-1) @ v[:, :, None]).flatten(1, 2)


class BucketedAttention(Attention):
    """A learned bias for each range of distances, ranges growing logarithmically."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Embedding(8, HEADS)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> torch.Tensor:
        place = torch.arange(q.shape[2])
        distance = (place[None] - place[:, None]).abs()
        far = 2 + (torch.log(distance.float().clamp(min=1) / 2) / math.log(8) * 6).to(torch.long)
        bucket = torch.where(distance < 2, distance, far.clamp(max=7))
        return (q @ k.mT + self.bias(bucket).permute(2, 0, 1)).softmax(-1) @ v


class LinearAttention(Attention):
    """A positive feature map instead of a softmax, and running sums instead of a mask."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> torch.Tensor:
        q, k = F.elu(q) + 1, F.elu(k) + 1
        memory = torch.einsum("bhtd,bhte->bhtde", k, v).cumsum(2)
        total = torch.einsum("bhtd,bhtd->bht", q, k.cumsum(2))
        return torch.einsum("bhtd,bhtde->bhte", q, memory) / total[..., None].clamp_min(1e-6)


class CachedAttention(Attention):
    """Keys and values are written into buffers at the place of each token, and read up to there."""

    trains = False

    def __init__(self) -> None:
        super().__init__()
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(BATCH, HEADS, 16, WIDTH // HEADS))
        self.register_buffer("used", torch.tensor(0))

    def inputs(self) -> tuple[Any, ...]:
        return normal(BATCH, 3, WIDTH), torch.tensor([4, 5, 6])

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> torch.Tensor:
        place = rest[0]
        self.keys.index_copy_(2, place, k)
        self.values[:, :, place] = v
        self.used += q.shape[2]
        seen = torch.arange(16) <= place[:, None]
        return F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=seen)


class ShiftedWindows(Network):
    """Attention inside windows of an image that is rolled by half a window."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def inputs(self) -> tuple[Any, ...]:
        return (normal(2, 8, 8, 8),)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, h, w, c = x.shape
        windows = torch.roll(x, (-2, -2), (1, 2)).view(b, h // 4, 4, w // 4, 4, c).transpose(2, 3).reshape(-1, 16, c)
        q, k, v = self.qkv(windows).view(-1, 16, 3, 2, 4).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, h // 4, w // 4, 4, 4, c)
        return torch.roll(found.transpose(2, 3).reshape(b, h, w, c), (2, 2), (1, 2))


class EncoderLayers(Network):
    """PyTorch's own layers with padding; in evaluation they take their fused path."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, dropout=0.1, batch_first=True, norm_first=False)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def inputs(self) -> tuple[Any, ...]:
        return *super().inputs(), torch.arange(LENGTH) >= torch.tensor([[LENGTH], [6], [3]])

    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        return self.layers(x, src_key_padding_mask=hidden)


class EncoderAndDecoder(Network):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, WIDTH)
        self.model = nn.Transformer(WIDTH, HEADS, 1, 1, 32, dropout=0.0, batch_first=True, norm_first=True)

    def inputs(self) -> tuple[Any, ...]:
        return integers(20, BATCH, LENGTH), integers(20, BATCH, 6)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        states = self.model(self.embed(source), self.embed(target), tgt_mask=mask, tgt_is_causal=True)
        return states @ self.embed.weight.t()


class CrossAttention(Network):
    """PyTorch's own attention, with its weights returned and a key of zeros added."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, add_zero_attn=True, bias=True, kdim=6, vdim=5)

    def inputs(self) -> tuple[Any, ...]:
        return normal(4, BATCH, WIDTH), normal(7, BATCH, 6), normal(7, BATCH, 5)

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
        return self.attention(query, key, value, need_weights=True, average_attn_weights=False)


class AttentionPooling(Network):
    """One learned query over all tokens, those beyond each length left out by ``-inf``."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Parameter(normal(WIDTH))

    def inputs(self) -> tuple[Any, ...]:
        return *super().inputs(), integers(2, BATCH, LENGTH).bool().index_fill(1, torch.tensor([0]), True)

    def forward(self, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        scores = torch.where(seen, x @ self.query, float("-inf"))
        weights = torch.exp(scores - scores.logsumexp(-1, keepdim=True))
        return torch.bmm(weights[:, None], x)[:, 0]
