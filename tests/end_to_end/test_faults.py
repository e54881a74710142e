"""Faults of the kind that compilers make, planted in the compiled model: the comparison of test_models.py sees each.

The perturbed model is compiled and held against eager of the model as it should be. A fault that passes would mean that
weights or inputs of the examples hide it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from model_check import call, compiled
from torch import nn

from neuron_compiler.measure.difference import RMS_LIMIT, Difference, difference
from neuron_compiler.measure.rows import verdict
from neuron_compiler.models import Size, build

Patch = pytest.MonkeyPatch
Fault = Callable[[nn.Module, Patch], None]


def causal_mask_off_by_one(module: nn.Module, patch: Patch) -> None:
    """Every position also sees the next."""
    from transformers import masking_utils

    patch.setattr(masking_utils, "causal_mask_function", lambda batch, head, query, key: key <= query + 1)


def causal_mask_strict(module: nn.Module, patch: Patch) -> None:
    """No position sees itself, but for the first."""
    from transformers import masking_utils

    patch.setattr(masking_utils, "causal_mask_function", lambda batch, head, query, key: (key < query) | (key == 0))


def padding_mask_off_by_one(module: nn.Module, patch: Patch) -> None:
    """One padded position is seen."""
    forward = module.forward

    def shifted(*args: Any, attention_mask: torch.Tensor, **kwargs: Any) -> Any:
        return forward(*args, attention_mask=attention_mask.roll(1, dims=1) | attention_mask, **kwargs)

    patch.setattr(module, "forward", shifted)


def rope_sign(module: nn.Module, patch: Patch) -> None:
    """Positions turn the other way, for queries alone."""
    from transformers.models.llama import modeling_llama

    def rotate(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1) -> Any:
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        half = modeling_llama.rotate_half
        return q * cos - half(q) * sin, k * cos + half(k) * sin

    patch.setattr(modeling_llama, "apply_rotary_pos_emb", rotate)


def rope_position(module: nn.Module, patch: Patch) -> None:
    """Queries are one position further than keys."""
    from transformers.models.llama import modeling_llama

    apply = modeling_llama.apply_rotary_pos_emb

    def rotate(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1) -> Any:
        return apply(q, k, cos, sin, unsqueeze_dim)[0], apply(q, k, cos.roll(1, 1), sin.roll(1, 1), unsqueeze_dim)[1]

    patch.setattr(modeling_llama, "apply_rotary_pos_emb", rotate)


def grouped_heads_in_the_wrong_order(module: nn.Module, patch: Patch) -> None:
    """Key and value heads are tiled (0 1 0 1) where each should be repeated (0 0 1 1)."""
    from transformers.integrations import sdpa_attention

    patch.setattr(sdpa_attention, "use_gqa_in_sdpa", lambda *_: False)
    patch.setattr(sdpa_attention, "repeat_kv", lambda x, n: x.repeat(1, n, 1, 1))


def eps_of_norms(module: nn.Module, patch: Patch) -> None:
    """1e-5 where 1e-6 should be."""
    for part in module.modules():
        for name in ("variance_epsilon", "eps"):
            if isinstance(value := getattr(part, name, None), float):
                setattr(part, name, 10 * value)


def eps_left_out(module: nn.Module, patch: Patch) -> None:
    """The rule that forgets eps."""
    for part in module.modules():
        if isinstance(part, nn.LayerNorm | nn.BatchNorm2d):
            part.eps = 0.0


def variance_unbiased(module: nn.Module, patch: Patch) -> None:
    """Layer norms divide by n - 1."""

    def unbiased(x: torch.Tensor, shape: Any, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
        variance, mean = torch.var_mean(x, dim=-1, keepdim=True, correction=1)
        return (x - mean) * torch.rsqrt(variance + eps) * weight + bias

    patch.setattr(nn.functional, "layer_norm", unbiased)


def gelu_by_tanh(module: nn.Module, patch: Patch) -> None:
    """The approximation of GELU where the exact one should be."""
    for part in module.modules():
        if type(part).__name__ == "GELUActivation":
            part.act = partial(nn.functional.gelu, approximate="tanh")


def statistics_of_the_batch(module: nn.Module, patch: Patch) -> None:
    """Batch norms that normalise by this batch instead of by running statistics."""
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.track_running_stats = False
            part.running_mean = part.running_var = None


FAULTS: list[tuple[str, Fault]] = [
    ("llama", causal_mask_off_by_one),
    ("llama", causal_mask_strict),
    ("llama", padding_mask_off_by_one),
    ("bert", padding_mask_off_by_one),
    ("t5", padding_mask_off_by_one),
    ("llama", rope_sign),
    ("llama", rope_position),
    ("llama", grouped_heads_in_the_wrong_order),
    ("llama", eps_of_norms),
    ("gpt2", eps_left_out),
    ("gpt2", variance_unbiased),
    ("resnet50", eps_left_out),
    ("resnet50", statistics_of_the_batch),
    ("bert", gelu_by_tanh),
]


def compared(model: str, fault: Fault | None, patch: Patch) -> Difference:
    """The compiled model, with the fault in it, against eager without."""
    reference = call(build(model, Size.SMALL))
    example = build(model, Size.SMALL)
    if fault is not None:
        fault(example.module, patch)
    return difference(call(example, compiled(example.module)), reference)


@pytest.mark.parametrize("model", sorted({model for model, _ in FAULTS}))
def test_without_a_fault_the_check_passes(model: str, monkeypatch: Patch) -> None:
    assert verdict(compared(model, None, monkeypatch), RMS_LIMIT) == ""


@pytest.mark.parametrize(("model", "fault"), FAULTS, ids=[f"{model}-{fault.__name__}" for model, fault in FAULTS])
def test_a_fault_fails_the_check(model: str, fault: Fault, monkeypatch: Patch) -> None:
    found = compared(model, fault, monkeypatch)
    assert "is over" in verdict(found, RMS_LIMIT), found
