"""The list of models by name. An entry is added here and built by one function in a file of its family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from neuron_compiler.errors import OptionsError
from neuron_compiler.models import decoders, encoders, recurrent, vision
from neuron_compiler.models.example import Example, Size


@dataclass(frozen=True)
class Entry:
    """One model: its name on the command line, what the full size is, and its builder."""

    name: str
    title: str
    builder: Callable[[Size], Example]


CATALOGUE: tuple[Entry, ...] = (
    Entry("gpt2", "GPT-2 124M, 128 tokens", decoders.gpt2),
    Entry("llama", "Llama, 2 layers of 1B's width, 128 tokens", decoders.llama),
    Entry("qwen3", "Qwen3, 2 layers of 0.6B's width, 128 tokens", decoders.qwen3),
    Entry("mixtral", "Mixtral, tiny, 4 experts, 32 tokens", decoders.mixtral),
    Entry("bert", "BERT-base, 2 x 128 tokens, padded", encoders.bert),
    Entry("t5", "T5-small, 128 → 32 tokens", encoders.t5),
    Entry("whisper", "Whisper-tiny, 30 s → 16 tokens", encoders.whisper),
    Entry("vit", "ViT-B/16, 224 px", vision.vit),
    Entry("resnet50", "ResNet-50, 224 px", vision.resnet50),
    Entry("convnext", "ConvNeXt-tiny, 224 px", vision.convnext),
    Entry("mamba", "Mamba, 4 layers of 130M's width, 64 tokens", recurrent.mamba),
)


def find(name: str) -> Entry:
    """The entry of that name; raises OptionsError with the known names."""
    for entry in CATALOGUE:
        if entry.name == name:
            return entry
    raise OptionsError(f"no model {name!r}", hint=f"known: {', '.join(entry.name for entry in CATALOGUE)}")


def build(name: str, size: Size = Size.FULL) -> Example:
    """The model of that name in float32, with random weights and inputs; nothing is downloaded."""
    return find(name).builder(size)
