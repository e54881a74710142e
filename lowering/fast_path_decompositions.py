"""Decompositions of ATen's fused inference kernels, which PyTorch itself does not decompose.

``nn.TransformerEncoderLayer`` and ``nn.MultiheadAttention`` call them in evaluation mode without gradients; weight norm
calls its fused kernel in both directions. Each is written in the ops that its CPU kernel is made of.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

aten = torch.ops.aten

ATTENTION_MASK, KEY_PADDING_MASK, GENERIC_MASK = 0, 1, 2
"""ATen's ``mask_type``: (target, source), (batch, source), or the shape of the scores."""


def masked_softmax(scores: Tensor, mask: Tensor, dim: int | None = None, mask_type: int | None = None) -> Tensor:
    """Softmax of what the boolean mask does not hide; a row that it hides wholly is NaN, as in ATen."""
    if mask_type == ATTENTION_MASK:
        mask = mask.view(1, 1, *mask.shape)
    elif mask_type == KEY_PADDING_MASK:
        mask = mask.view(mask.shape[0], 1, 1, mask.shape[1])
    return torch.softmax(scores.masked_fill(mask, -math.inf), scores.dim() - 1 if dim is None else dim)


def native_multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention over batch-first operands of shape (batch, length, embed_dim); weights are empty unless asked for."""
    head_dim = embed_dim // num_head
    weights, biases = qkv_weight.chunk(3), qkv_bias.chunk(3)
    q, k, v = (
        functional.linear(x, w, b).view(x.shape[0], x.shape[1], num_head, head_dim).transpose(1, 2)
        for x, w, b in zip((query, key, value), weights, biases, strict=True)
    )
    scores = torch.matmul(q / math.sqrt(head_dim), k.transpose(-2, -1))
    mask = None if mask is None else mask.bool()  # minus infinity is the one value that masks of floats hide with
    probabilities = torch.softmax(scores, -1) if mask is None else masked_softmax(scores, mask, -1, mask_type)
    mixed = torch.matmul(probabilities, v).transpose(1, 2).reshape(query.shape[0], query.shape[1], embed_dim)
    result = functional.linear(mixed, proj_weight, proj_bias)
    if not need_weights:
        return result, query.new_empty(0)
    return result, probabilities.mean(1) if average_attn_weights else probabilities


def transformer_encoder_layer_fwd(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """One encoder layer in evaluation mode, pre- or post-norm."""

    def norm_1(x: Tensor) -> Tensor:
        return functional.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def norm_2(x: Tensor) -> Tensor:
        return functional.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    attended = norm_1(src) if norm_first else src
    parameters = (embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias)
    x = native_multi_head_attention(attended, attended, attended, *parameters, mask, False, True, mask_type)[0] + src
    x = x if norm_first else norm_1(x)
    hidden = functional.linear(norm_2(x) if norm_first else x, ffn_weight_1, ffn_bias_1)
    hidden = functional.gelu(hidden) if use_gelu else functional.relu(hidden)
    x = functional.linear(hidden, ffn_weight_2, ffn_bias_2) + x
    return x if norm_first else norm_2(x)


def weight_norm_interface_backward(
    grad_w: Tensor, saved_v: Tensor, saved_g: Tensor, saved_norms: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    """Gradients of ``w = v * (g / norm(v))``, the norm taken over all dimensions but ``dim``."""
    others = [d for d in range(saved_v.dim()) if d != dim % saved_v.dim()]
    norms = saved_norms.to(saved_g.dtype)
    along = (grad_w * saved_v).sum(others, keepdim=True)
    grad_v = (saved_g / norms) * (grad_w - saved_v * (along / (norms * norms)))
    return grad_v.to(saved_v.dtype), (along / norms).to(saved_g.dtype)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten._masked_softmax.default: masked_softmax,
    aten._native_multi_head_attention.default: native_multi_head_attention,
    aten._transformer_encoder_layer_fwd.default: transformer_encoder_layer_fwd,
    aten._weight_norm_interface_backward.default: weight_norm_interface_backward,
}
