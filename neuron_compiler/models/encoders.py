"""Models with an encoder: BERT, T5, Whisper."""

from __future__ import annotations

import torch

from neuron_compiler.models.decoders import tokens
from neuron_compiler.models.example import Example, Size, generator
from neuron_compiler.models.library import make


def right_padding(batch: int, length: int) -> torch.Tensor:
    """Attention mask, int64 of shape (batch, length): the last sequence ends with a quarter of padding."""
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[-1, length - length // 4 :] = 0
    return mask


def bert(size: Size) -> Example:
    """BERT: post-norm encoder, exact GELU, masked-token head, two segments."""
    full = size is Size.FULL
    settings = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
    settings |= {"vocab_size": 128, "max_position_embeddings": 64}
    model = make("BertForMaskedLM", "BertConfig", **({} if full else settings))
    length = 128 if full else 16
    segments = (torch.arange(length) >= length // 2).long().expand(2, length).contiguous()
    return Example(
        model,
        (),
        {
            "input_ids": tokens(model.config.vocab_size, 2, length),
            "attention_mask": right_padding(2, length),
            "token_type_ids": segments,
        },
    )


def t5(size: Size) -> Example:
    """T5: relative position biases, RMSNorm, encoder and decoder with cross attention."""
    full = size is Size.FULL
    settings = {} if full else {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4}
    settings |= {} if full else {"vocab_size": 128}
    model = make("T5ForConditionalGeneration", "T5Config", use_cache=False, **settings)
    with torch.no_grad():
        # T5 does not divide scores by sqrt(d_kv); its own initial weights do.
        for name, weight in model.named_parameters():
            if name.endswith(".q.weight"):
                weight.mul_(model.config.d_kv**-0.5)
    source, target = (128, 32) if full else (16, 8)
    return Example(
        model,
        (),
        {
            "input_ids": tokens(model.config.vocab_size, 2, source),
            "attention_mask": right_padding(2, source),
            "decoder_input_ids": tokens(model.config.vocab_size, 2, target, seed=2),
        },
    )


def whisper(size: Size) -> Example:
    """Whisper: convolutions over 30 s of spectrogram, encoder, decoder with cross attention."""
    full = size is Size.FULL
    small = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": 128, "num_mel_bins": 16}
    small |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96}
    small |= {"max_source_positions": 32, "max_target_positions": 32}
    small |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    model = make("WhisperForConditionalGeneration", "WhisperConfig", use_cache=False, **({} if full else small))
    config = model.config
    frames = torch.randn(1, config.num_mel_bins, 2 * config.max_source_positions, generator=generator(1))
    return Example(
        model,
        (),
        {"input_features": frames, "decoder_input_ids": tokens(config.vocab_size, 1, 16 if full else 8, seed=2)},
    )
