"""``flex_attention`` in the operators that it is made of, so that it compiles as any attention does.

PyTorch keeps it as one node that holds two functions, of a score and of a position. Here they are applied to all
scores at once, as eager PyTorch does, and differentiated as they stand. In: the operands of the higher-order op. Out:
its results: attention, and logarithm of the sum and largest score, both to base two.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch._higher_order_ops.flex_attention import _math_attention_inner, _permute_strides


def flex_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Callable[..., torch.Tensor],
    block_mask: tuple[Any, ...],
    scale: float,
    kernel_options: dict[str, Any],
    score_mod_other_buffers: tuple[Any, ...] = (),
    mask_mod_other_buffers: tuple[Any, ...] = (),
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``query`` [B, H, M, E], ``key`` [B or 1, H / groups, N, E], ``value`` [B or 1, H / groups, N, V]."""
    batch, groups = query.size(0), query.size(1) // key.size(1)
    key, value = (
        torch.repeat_interleave(x, groups, dim=1).expand(batch, query.size(1), x.size(2), x.size(3))
        for x in (key, value)
    )
    buffers = (score_mod_other_buffers, mask_mod_other_buffers)
    _, scores = _math_attention_inner(query, key, value, score_mod, block_mask, scale, kernel_options, *buffers)
    # A row without any key: its sum has the logarithm minus infinity and no gradient.
    hidden = torch.all(scores == -math.inf, dim=-1)
    sums = torch.where(hidden.unsqueeze(-1), 0.0, scores).logsumexp(dim=-1)
    sums = torch.where(hidden, -math.inf, sums)
    weights = torch._safe_softmax(scores, dim=-1)
    result = weights.to(query.dtype) @ value.to(query.dtype)
    largest = scores.detach().amax(dim=-1)
    return _permute_strides(result, query.stride()), sums / math.log(2), largest / math.log(2)
