"""Image models: ViT, ResNet, ConvNeXt."""

from __future__ import annotations

import torch

from neuron_compiler.models.example import Example, Size, generator
from neuron_compiler.models.library import make


def images(batch: int, pixels: int) -> torch.Tensor:
    """Random images, float32 of shape (batch, 3, pixels, pixels)."""
    return torch.randn(batch, 3, pixels, pixels, generator=generator(1))


def vit(size: Size) -> Example:
    """ViT: patches of 16 x 16 pixels, pre-norm encoder, class token."""
    full = size is Size.FULL
    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
    settings = {"num_labels": 10000} if full else {"num_labels": 100, "image_size": 48, **small}
    return Example(make("ViTForImageClassification", "ViTConfig", **settings), (images(1, 224 if full else 48),))


def resnet50(size: Size) -> Example:
    """ResNet-50: bottleneck blocks, batch normalisation with running statistics."""
    full = size is Size.FULL
    small = {"embedding_size": 16, "hidden_sizes": [32, 64], "depths": [2, 2], "num_labels": 100}
    settings = {"num_labels": 10000} if full else small
    return Example(make("ResNetForImageClassification", "ResNetConfig", **settings), (images(1, 224 if full else 32),))


def resnet18(size: Size) -> Example:
    """ResNet-18: basic blocks. For training."""
    full = size is Size.FULL
    widths = {"embedding_size": 64, "hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2]}
    small = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [2, 2]}
    settings = {"layer_type": "basic", "num_labels": 100, **(widths if full else small)}
    return Example(make("ResNetForImageClassification", "ResNetConfig", **settings), (images(4, 64 if full else 32),))


def convnext(size: Size) -> Example:
    """ConvNeXt: depthwise 7 x 7 convolutions, channels-last LayerNorm, layer scale."""
    full = size is Size.FULL
    small = {"depths": [1, 1, 2, 1], "hidden_sizes": [16, 32, 48, 64], "num_labels": 100}
    settings = {"num_labels": 10000} if full else small
    return Example(
        make("ConvNextForImageClassification", "ConvNextConfig", **settings), (images(1, 224 if full else 64),)
    )
