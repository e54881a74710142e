"""Decoder-only language models: GPT-2, Llama, Qwen3, Mixtral.

All are called without a key-value cache (``use_cache=False``): the cache is an object that grows from call to call, and
what is measured here is one forward pass.
"""

from __future__ import annotations

import torch

from neuron_compiler.models.example import Example, Size, generator
from neuron_compiler.models.library import make


def tokens(vocabulary: int, batch: int, length: int, seed: int = 1) -> torch.Tensor:
    """Random token numbers, int64 of shape (batch, length)."""
    return torch.randint(0, vocabulary, (batch, length), generator=generator(seed))


def left_padding(batch: int, length: int) -> torch.Tensor:
    """Attention mask, int64 of shape (batch, length): the last sequence starts after a quarter of padding."""
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[-1, : length // 4] = 0
    return mask


def gpt2(size: Size) -> Example:
    """GPT-2: learned positions, LayerNorm, tied embeddings."""
    full = size is Size.FULL
    settings = {} if full else {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 128, "n_positions": 64}
    model = make("GPT2LMHeadModel", "GPT2Config", use_cache=False, **settings)
    return Example(model, (), {"input_ids": tokens(model.config.vocab_size, 1, 128 if full else 16)})


def _rotary(model: str, config: str, length: int, **settings: object) -> Example:
    made = make(model, config, use_cache=False, **settings)
    batch = 1 if length >= 128 else 2
    inputs = {"input_ids": tokens(made.config.vocab_size, batch, length)}
    if batch > 1:
        inputs["attention_mask"] = left_padding(batch, length)
    return Example(made, (), inputs)


SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 128,
    "max_position_embeddings": 64,
    "num_hidden_layers": 2,
}


def llama(size: Size) -> Example:
    """Llama: RoPE, RMSNorm, grouped-query attention, gated MLP. The width is that of Llama 3.2 1B."""
    if size is Size.SMALL:
        return _rotary("LlamaForCausalLM", "LlamaConfig", 16, **SMALL)
    return _rotary(
        "LlamaForCausalLM",
        "LlamaConfig",
        128,
        hidden_size=2048,
        intermediate_size=8192,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        vocab_size=32000,
        num_hidden_layers=2,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
    )


def qwen3(size: Size) -> Example:
    """Qwen3: as Llama, with RMSNorm on queries and keys. The width is that of Qwen3 0.6B."""
    if size is Size.SMALL:
        return _rotary("Qwen3ForCausalLM", "Qwen3Config", 16, **SMALL)
    return _rotary(
        "Qwen3ForCausalLM",
        "Qwen3Config",
        128,
        hidden_size=1024,
        intermediate_size=3072,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=32000,
        num_hidden_layers=2,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
    )


def mixtral(size: Size) -> Example:
    """Mixtral: as Llama, with two of four experts for each token.

    The library's default loop over the experts that were hit has data-dependent sizes (``nonzero``) and breaks the
    graph. ``experts_implementation="batched_mm"`` gathers each token's expert weights instead: static shapes.
    """
    scale = 4 if size is Size.FULL else 1
    settings = SMALL | {"hidden_size": 64 * scale, "intermediate_size": 96 * scale, "head_dim": 16 * scale}
    return _rotary(
        "MixtralForCausalLM",
        "MixtralConfig",
        32 if size is Size.FULL else 16,
        num_local_experts=4,
        num_experts_per_tok=2,
        experts_implementation="batched_mm",
        **settings,
    )
