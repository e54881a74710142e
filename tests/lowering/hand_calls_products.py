"""Calls that the op database does not make: products in 8 bits and by groups, attention, resizing, LSTM layers."""

from __future__ import annotations

from typing import Any

import torch

Call = tuple[tuple[Any, ...], dict[str, Any]]

_aten = torch.ops.aten


def _noise(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _int8(*shape: int) -> torch.Tensor:
    return (_noise(*shape) * 50).clamp(-128, 127).to(torch.int8)


def _attention() -> tuple[list[Call], list[Call]]:
    forward, backward = [], []
    for groups, causal in ((1, False), (2, True)):
        q, k, v = _noise(2, 2 * groups, 5, 8), _noise(2, 2, 7, 8, seed=1), _noise(2, 2, 7, 8, seed=2)
        mask = _noise(5, 7, seed=3)
        args: tuple[Any, ...] = (q, k, v, 0.0, causal)
        output, log_sum = _aten._scaled_dot_product_flash_attention_for_cpu.default(*args, attn_mask=mask)
        forward.append((args, {"attn_mask": mask}))
        backward.append(((_noise(*output.shape, seed=4), q, k, v, output, log_sum, 0.0, causal), {"attn_mask": mask}))
    return forward, backward


def _resized(name: str, rank: int, aligned: bool) -> tuple[list[Call], list[Call]]:
    """Calls of a mode and of its gradient: enlarged, shrunk, with factors."""
    forward, backward = [], []
    for dtype in (torch.float32, torch.float64):
        for sizes, factors in (([7, 4, 9], []), ([10, 8, 6], [2.0, 2.0, 2.0]), ([2, 3, 2], [])):
            x = _noise(2, 3, *[5, 4, 3][:rank], dtype=dtype)
            rest = [sizes[:rank], *([False] if aligned else []), *factors[:rank]]
            result = getattr(_aten, name).default(x, *rest)
            forward.append(((x, *rest), {}))
            grad = _noise(*result.shape, dtype=dtype, seed=1)
            backward.append(((grad, rest[0], list(x.shape), *rest[1:]), {}))
    return forward, backward


def _lstm() -> tuple[list[Call], list[Call]]:
    forward, backward = [], []
    for reverse in (False, True):
        shapes = ((5, 2, 4), (24, 4), (24, 6), (24,), (24,), (1, 2, 6), (1, 2, 6))
        given = [_noise(*shape, seed=seed) for seed, shape in enumerate(shapes)]
        how = (2, 6, 1, True)
        forward.append(((*given, reverse, [], *how, False, False, False), {}))
        *found, workspace = _aten.mkldnn_rnn_layer.default(*given, reverse, [], *how, False, False, True)
        grads = [_noise(*x.shape, seed=9) for x in found]
        backward.append(((*given, *found, *grads, reverse, *how, True, False, [], False, workspace), {}))
    return forward, backward


def _grouped() -> list[Call]:
    rows, matrices = _noise(16, 32, dtype=torch.bfloat16), _noise(3, 32, 16, dtype=torch.bfloat16, seed=1)
    ends = torch.tensor([5, 9, 16], dtype=torch.int32)
    return [((rows, matrices, ends), {}), ((rows.mT.contiguous(), rows, ends), {}), ((matrices, matrices.mT), {})]


def _scaled() -> list[Call]:
    a, b = _noise(16, 32).to(torch.float8_e4m3fn), _noise(16, 32, seed=1).to(torch.float8_e4m3fn).t()
    half, third = torch.tensor(0.5), torch.tensor(0.3)
    return [
        ((a, b, half, third), {"out_dtype": torch.float32}),
        ((a, b, torch.rand(16, 1), torch.rand(1, 16)), {"out_dtype": torch.float32}),
        ((a, b, half, third, _noise(16, dtype=torch.bfloat16)), {"out_dtype": torch.bfloat16}),
    ]


def _calls() -> dict[str, tuple[Call, ...]]:
    forward, backward = _attention()
    calls: dict[str, list[Call]] = {
        "aten._scaled_dot_product_flash_attention_for_cpu.default": forward,
        "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": backward,
        "aten._grouped_mm.default": _grouped(),
        "aten._scaled_mm.default": _scaled(),
        "aten._int_mm.default": [((_int8(17, 8), _int8(8, 16)), {})],
        "aten._weight_int8pack_mm.default": [((_noise(4, 32), _int8(16, 32), torch.rand(16)), {})],
        "aten.linear.default": [
            ((_noise(2, 3, 5, dtype=dtype), _noise(4, 5, dtype=dtype), _noise(4, dtype=dtype)), {})
            for dtype in (torch.float32, torch.bfloat16, torch.float64)
        ],
        "aten._linalg_eigvals.default": [((_noise(2, 4, 4),), {}), ((_noise(3, 3, dtype=torch.complex64),), {})],
        "neuron_compiler.assertion.default": [((torch.tensor(True),), {}), ((torch.tensor([2.0]), "two"), {})],
        "neuron_compiler.linalg_check.default": [
            ((token, torch.zeros(2, dtype=torch.int32), "linalg.inv"), {"is_matrix": False})
            for token in (None, torch.empty(0))
        ],
        "aten.avg_pool1d.default": [((_noise(2, 3, 7), [3], [2], [1], True, False), {})],
    }
    calls["aten.mkldnn_rnn_layer.default"], calls["aten.mkldnn_rnn_layer_backward.default"] = _lstm()
    for stem, ranks, aligned in (
        ("upsample_nearest{}d", (1, 2, 3), False),
        ("_upsample_nearest_exact{}d", (1, 2, 3), False),
        ("upsample_linear{}d", (1,), True),
        ("upsample_bilinear{}d", (2,), True),
        ("upsample_trilinear{}d", (3,), True),
        ("upsample_bicubic{}d", (2,), True),
        ("_upsample_bilinear{}d_aa", (2,), True),
        ("_upsample_bicubic{}d_aa", (2,), True),
        ("_upsample_lanczos{}d_aa", (2,), True),
    ):
        for rank in ranks:
            name = stem.format(rank)
            calls[f"aten.{name}.default"], calls[f"aten.{name}_backward.default"] = _resized(name, rank, aligned)
    return {name: tuple(made) for name, made in calls.items()}


CALLS = _calls()
