"""What groups are called: ``softmax``, ``linear_gelu``, ``conv_relu_add``; words of a valid identifier."""

from __future__ import annotations

import re
from collections.abc import Iterable

from neuron_compiler.ir.graph import GETITEM, Graph
from neuron_compiler.ir.space import base_name
from neuron_compiler.opdef import Kind
from neuron_compiler.passes.fusion_rules import CASTS, IN_SPACE, Place, Region

MAX_WORDS = 3

_WORDS = {
    "convolution": "conv",
    "convolution_backward": "conv_backward",
    "native_layer_norm": "layer_norm",
    "native_layer_norm_backward": "layer_norm_backward",
    "native_group_norm": "group_norm",
    "native_group_norm_backward": "group_norm_backward",
    "native_batch_norm_backward": "batch_norm_backward",
    "native_batch_norm": "batch_norm",
    "_native_batch_norm_legit": "batch_norm",
    "_native_batch_norm_legit_functional": "batch_norm",
    "_native_batch_norm_legit_no_training": "batch_norm",
    "_unsafe_view": "view",
    "nll_loss_forward": "nll_loss",
    **dict.fromkeys(CASTS, "cast"),
}

# Ops that say little about a group beside others.
_QUIET = frozenset(
    {"cast", GETITEM, "clone", "view", "expand", "unsqueeze", "squeeze", "permute", "full", "alias", "slice", "select"}
)

# Reductions that are known by the company they keep: all of these words, then the name.
_COMPOUNDS: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"log_softmax", "nll_loss"}), "cross_entropy"),
    (frozenset({"log_softmax", "gather"}), "cross_entropy"),
    (frozenset({"amax", "exp", "sum", "log"}), "log_softmax"),
    (frozenset({"amax", "exp", "sum"}), "softmax"),
    (frozenset({"var_mean", "rsqrt"}), "layer_norm"),
    (frozenset({"mean", "rsqrt", "sub"}), "layer_norm"),
    (frozenset({"mean", "rsqrt"}), "rms_norm"),
)


def stem(region: Region, graph: Graph) -> str:
    """The words for a group: its anchor and the first ops around it; the same for equal regions."""
    ops = [graph.ops[i] for i in region.ops]
    words = [(op.result, _word(op.kind)) for op in ops]
    if region.anchor:
        first = "attention" if region.anchor_kind is Kind.ATTENTION else _word(region.anchor_op)
        after = [w for name, w in words if name != region.anchor and region.places[name] in IN_SPACE]
        return _joined([first, *after])
    if region.runs is not None:
        all_words = {word for _, word in words}
        for company, name in _COMPOUNDS:
            if company <= all_words:
                return name
        return _joined(word for name, word in words if region.places[name] is not Place.APART or len(ops) == 1)
    return _joined(word for _, word in words)


def _joined(words: Iterable[str]) -> str:
    given = list(dict.fromkeys(words))
    told = [word for word in given if word not in _QUIET] or given or ["ops"]
    return "_".join(told[:MAX_WORDS])


def _word(kind: str) -> str:
    name = base_name(kind)
    word = _WORDS.get(name, name)
    return re.sub(r"\W", "_", word).strip("_").lower() or "op"
