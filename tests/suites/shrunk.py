"""Model classes of ``transformers`` made small: a config by capping its numbers, random weights, arguments by name."""

from __future__ import annotations

import copy
import inspect
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from steps import Specimen
from torch import nn

from neuron_compiler.models.example import redraw, tensors
from neuron_compiler.models.library import transformers

VOCABULARY, LENGTH, BATCH = 320, 12, 2
LARGEST_MODEL = 30e6
"""Parameters above which a model is not run."""

WIDTHS = (
    (
        r".*(intermediate_size|ffn_dim|d_ff|ffn_hidden_size|mlp_dim|feed_forward_size|n_inner|d_inner|dim_feedforward)",
        96,
    ),
    (r".*(head_dim|d_kv|kv_channels)", 16),
    (r".*lora_rank", 16),
    (r"(.*_)?(hidden_size|d_model|n_embd|embed_dim|embedding_size|hidden_dim|emb_dim|dim|width)", 64),
    (r"(.*_)?(num_|n_)?(attention_)?heads?|n_head", 4),
    (r".*(max_position_embeddings|source_positions|target_positions|n_positions|n_ctx|max_seq(uence)?_len.*)", 128),
)
EXPERTS = (
    (r".*(experts_per_tok|topk|top_k)", 2),
    (r".*experts", 4),
    (r"n_group|topk_group|first_k_dense_replace", 1),
)
DEPTHS = (
    (r"num_feat_extract_layers", 99),
    (r"(.*_)?(num_|n_)?(hidden_|encoder_|decoder_)?layers?|n_layer|(.*_)?depth|num_hidden_layers_.*", 2),
    (r".*vocab_size", VOCABULARY),
)
"""(name of a whole number in a config, the most it may be); the first that matches counts."""

IMAGES = ((r"image_size", 64),)

PLANS = (WIDTHS + EXPERTS + DEPTHS + IMAGES, WIDTHS + EXPERTS + DEPTHS, EXPERTS + DEPTHS, DEPTHS)
"""Which numbers are capped, boldest first."""

HEADS = (
    "ForCausalLM",
    "ForConditionalGeneration",
    "LMHeadModel",
    "ForMaskedLM",
    "ForCTC",
    "ForImageClassification",
    "ForObjectDetection",
    "ForSemanticSegmentation",
    "ForDepthEstimation",
    "ForAudioClassification",
    "ForSequenceClassification",
    "ForPrediction",
    "Model",
)
"""Ends of class names, the one that says most about a model first."""


INPUTS = ("input_ids", "pixel_values", "input_values", "input_features", "attention_mask")
"""Arguments that models of several kinds of input have, none of which their signature requires."""


class NotBuilt(Exception):
    """No plan gave a model that runs eagerly; the message is the first plan's reason."""


def class_of_type(model_type: str) -> str:
    """The class that stands for a model type (a folder of the library), by the order of ``HEADS``."""
    library = transformers()
    module = getattr(getattr(library.models, model_type), f"modeling_{model_type}")
    found = [
        name
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__ and issubclass(value, library.PreTrainedModel)
    ]
    for head in HEADS:
        for name in found:
            if name.endswith(head) and "PreTrained" not in name and "Pretrained" not in name:
                return name
    raise NotBuilt(f"none of {', '.join(found)} ends like a whole model")


def smaller(config: Any, plan: tuple[tuple[str, int], ...]) -> dict[str, Any]:
    """Settings that make a config of the same class a small relative of this one."""
    base = transformers().PretrainedConfig
    values = {name: value for name, value in vars(config).items() if not name.startswith("_")}
    heads = next((v for k, v in values.items() if re.fullmatch(r"(num_attention|num|n|attention)_heads?", k)), None)
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, base):
            found[name] = {**smaller(value, plan), "model_type": value.model_type}
        elif re.fullmatch(r"mask_(time|feature)_prob|.*layerdrop", name):
            found[name] = 0.0  # drawn by NumPy or by the host: no part of a compiled program
        elif name == "use_cache":
            found[name] = False
        elif isinstance(value, bool):
            continue
        elif isinstance(value, int):
            if (number := _capped(name, value, plan, heads, values)) != value:
                found[name] = number
        elif _are_integers(value) and (numbers := _capped_list(name, value, plan)) is not None:
            found[name] = type(value)(numbers)
    if "embed_dim" in values and _are_integers(values.get("depths")):
        found.pop("hidden_size", None)  # these double their width from stage to stage, and say where it ends
    return found


def _are_integers(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0 and all(type(x) is int for x in value)


def _capped(name: str, value: int, plan: tuple[tuple[str, int], ...], heads: Any, values: dict[str, Any]) -> int:
    if re.search(r"_token_(id|index)$", name):
        return value if value < VOCABULARY else VOCABULARY - 1 - sum(map(ord, name)) % 40
    wide = WIDTHS[0] in plan
    if re.fullmatch(r".*(key_value_heads|kv_heads|n_head_kv|query_group_num)", name):
        return (4 if value == heads else min(value, 2)) if wide else value
    patch = values.get("patch_size")
    if name == "image_size" and IMAGES[0] in plan and isinstance(patch, int) and patch >= 8:
        return min(value, 4 * patch)
    return next((min(value, most) for pattern, most in plan if re.fullmatch(pattern, name)), value)


def _capped_list(name: str, value: list[int], plan: tuple[tuple[str, int], ...]) -> list[int] | None:
    if re.fullmatch(r"(.*_)?depths?|layers|num_blocks.*", name):
        return [min(x, 1) for x in value]
    if WIDTHS[0] not in plan:
        return None
    if re.fullmatch(r"(.*_)?(hidden_sizes|embed_dims|widths|dims)", name):
        return [min(x, 16 * 2**i) for i, x in enumerate(value)]
    if name == "conv_dim":
        return [min(x, 32) for x in value]
    if re.fullmatch(r".*heads", name):
        return [min(x, 2**i) for i, x in enumerate(value)]
    return None


def build(class_name: str) -> Specimen:
    """The class with a small config and random weights, and arguments that it runs with; raises NotBuilt."""
    model_class = getattr(transformers(), class_name)
    reasons: list[str] = []
    for index, plan in enumerate(PLANS):
        try:
            config = model_class.config_class(**smaller(model_class.config_class(), plan))
            model = _made(model_class, config)
        except Exception as error:
            reasons.append(f"plan {index}: {_first_line(error)}")
            continue
        for arguments in _arguments(model):
            try:
                if not _is_lively(model, arguments):
                    raise NotBuilt("a result is not finite")
            except Exception as error:
                reasons.append(f"plan {index}, {', '.join(arguments)}: {_first_line(error)}")
                continue
            return Specimen(model, (), arguments, note=f"plan {index}: {', '.join(arguments)}")
    raise NotBuilt("; ".join(reasons[:4]) or "no arguments are known for it")


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:160]}"


def _made(model_class: Any, config: Any) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        with torch.device("meta"):
            size = sum(p.numel() for p in model_class(copy.deepcopy(config)).parameters())
        if size > LARGEST_MODEL:
            raise NotBuilt(f"{size / 1e6:.0f} million parameters")
        model: nn.Module = model_class(config).float()
        return with_weights_that_matter(model)


def with_weights_that_matter(model: nn.Module) -> nn.Module:
    """Random values for every weight that has an initial value of 0 or 1, or a small one; see ``models.example``."""
    return redraw(model)


def _is_lively(model: nn.Module, arguments: dict[str, Any]) -> bool:
    """Whether it runs, and gives finite numbers."""
    with torch.no_grad():
        results = [x for x in tensors(model(**arguments)) if x.is_floating_point() and x.numel()]
    return bool(results) and not any(bool(x.isnan().any()) for x in results)


# --- arguments -----------------------------------------------------------------------------------------------------


def setting(config: Any, names: str, default: int) -> int:
    """The first of the space-separated names that a config, or a config inside it, sets to a whole number."""
    base = transformers().PretrainedConfig
    for name in names.split():
        value = getattr(config, name, None)
        if isinstance(value, list | tuple) and value:
            value = value[0]
        if type(value) is int:
            return value
    inner = (v for v in vars(config).values() if isinstance(v, base))
    return next((n for c in inner if (n := setting(c, names, -1)) >= 0), default)


def _normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def _tokens(end: int, length: int = LENGTH) -> torch.Tensor:
    return torch.randint(3, max(4, end), (BATCH, length), generator=torch.Generator().manual_seed(length))


def _choices(config: Any) -> dict[str, Callable[[], list[torch.Tensor]]]:
    """For each argument that is known, what to try, likeliest first."""
    vocabulary = min(setting(config, "vocab_size text_vocab_size", VOCABULARY), VOCABULARY) - 60
    channels = setting(config, "num_channels in_channels in_chans", 3)
    sides = list(dict.fromkeys((setting(config, "image_size img_size input_size", 64), 64, 224)))
    bins = setting(config, "num_mel_bins input_feat_per_channel feature_size n_mels", 80)
    frames = setting(config, "num_frames", 4)
    positions = setting(config, "max_source_positions", 50)
    hidden = setting(config, "hidden_size d_model", 64)
    context, series = setting(config, "context_length", 32), setting(config, "num_input_channels input_size", 1)

    def padded() -> list[torch.Tensor]:
        mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
        mask[1, -3:] = 0
        return [mask]

    def pictures() -> list[torch.Tensor]:
        return [_normal(BATCH, channels, s, s) for s in sides] + [
            _normal(BATCH, frames, channels, s, s) for s in sides[:2]
        ]

    def sound() -> list[torch.Tensor]:
        return [_normal(BATCH, 4000), _normal(BATCH, 1, 4000), _normal(BATCH, 1024, bins), _normal(BATCH, 128, bins)]

    return {
        "input_ids": lambda: [_tokens(vocabulary)],
        "decoder_input_ids": lambda: [_tokens(vocabulary, 7)],
        "attention_mask": padded,
        "token_type_ids": lambda: [torch.zeros(BATCH, LENGTH, dtype=torch.long)],
        "bbox": lambda: [_tokens(60)[..., None] + torch.tensor([0, 5, 10, 20])],
        "pixel_values": pictures,
        "pixel_values_videos": lambda: [_normal(BATCH, frames, channels, s, s) for s in sides],
        "input_values": sound,
        "input_features": lambda: [
            _normal(BATCH, bins, 2 * positions),
            _normal(BATCH, 60, bins),
            _normal(BATCH, bins, 3000),
        ],
        "inputs_embeds": lambda: [_normal(BATCH, LENGTH, hidden)],
        "past_values": lambda: [_normal(BATCH, context, series), _normal(BATCH, context)],
        "inputs": lambda: [_normal(BATCH, LENGTH, hidden), _tokens(vocabulary)],
    }


def _arguments(model: Any) -> Iterator[dict[str, Any]]:
    """Arguments worth trying: what the signature asks for, with a padding mask and without."""
    signature = inspect.signature(model.forward).parameters
    required = [n for n, p in signature.items() if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    names = dict.fromkeys([model.main_input_name, *required])
    if "input_ids" in signature and len(required) == 0:
        names.setdefault("input_ids")
    if "decoder_input_ids" in signature and getattr(model.config, "is_encoder_decoder", False):
        names.setdefault("decoder_input_ids")
    known = _choices(model.config)
    if any(name not in known for name in names):
        return
    masked = [{"attention_mask": None}] if "attention_mask" in signature and "input_ids" in names else []
    every = [{name: None for name in INPUTS if name in signature and name not in names}]
    for extra in dict.fromkeys(map(tuple, (*masked, {}, *every))):
        wanted = [*names, *extra]
        for values in itertools.product(*(known[name]() for name in wanted)):
            yield dict(zip(wanted, values, strict=True))
