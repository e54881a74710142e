"""Calls that the op database does not make, of normalisations, searches, unchecked indexing and bags of embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

Call = tuple[tuple[Any, ...], dict[str, Any]]

_aten = torch.ops.aten


def _noise(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _channels(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Weight, bias, running mean and running variance of three channels."""
    weight, bias, mean, var = (_noise(3, dtype=dtype, seed=s) for s in (1, 2, 3, 4))
    return weight, bias, mean, var.abs() + 0.5


def _batch_norm(*, statistics: bool, plain: bool) -> Iterator[Call]:
    """Arguments up to eps, with and without ``training``."""
    for dtype, of_parameters in ((torch.float32,) * 2, (torch.bfloat16, torch.float32), (torch.float64,) * 2):
        x = _noise(4, 3, 5, dtype=dtype) * 3 + 2
        weight, bias, mean, var = _channels(of_parameters)
        for w, b in ((weight, bias), (None, None)):
            head = (x, w, b, mean, var) if statistics else (x, w, b)
            if plain:
                yield (*head, 0.1, 1e-5), {}
            else:
                for training in (True, False):
                    yield (*head, training, 0.1, 1e-5), {}


def _batch_norm_backward() -> Iterator[Call]:
    for dtype in (torch.float32, torch.float64):
        x, grad = _noise(4, 3, 5, dtype=dtype), _noise(4, 3, 5, dtype=dtype, seed=5)
        weight, bias, mean, var = _channels(dtype)
        _, save_mean, save_invstd = _aten._native_batch_norm_legit.no_stats(x, weight, bias, True, 0.1, 1e-5)
        reserve = torch.empty(0, dtype=torch.uint8)
        for mask in ([True, True, True], [True, False, False]):
            yield (grad, x, weight, mean, var, save_mean, save_invstd, True, 1e-5, mask, reserve), {}


def _searches() -> Iterator[tuple[torch.Tensor, float | int]]:
    for value in (2.0, -1.0, 99.0, float("nan")):
        yield torch.tensor([0.0, 2.0, 2.0, 5.0]), value
    yield torch.tensor([0, 2, 2, 5]), 2


def _unsafe_index() -> Iterator[Call]:
    x, rows, columns = _noise(4, 5, 3), torch.tensor([[3, 0], [-1, 2]]), torch.tensor([1, -2])
    yield (x, [rows, columns]), {}
    yield (x, [None, columns]), {}
    yield (x, [columns, None, columns]), {}


def _unsafe_index_put() -> Iterator[Call]:
    for (x, indices), _ in _unsafe_index():
        values = torch.ones_like(_aten.index(x, indices))
        yield (x, indices, values, False), {}
        yield (x, indices, values, True), {}


def _bags(*, forward_only: bool) -> Iterator[Call]:
    weight, indices, offsets = _noise(6, 4), torch.tensor([0, 5, 3, 3, 1, 2, 0]), torch.tensor([0, 2, 2, 5])
    for mode in (0, 1, 2):
        for padding in (-1, 3):
            yield (weight, indices, offsets, False, mode, False, None, False, padding), {}
    yield (weight, indices, offsets, False, 0, False, _noise(7, seed=2), False, -1), {}
    if not forward_only:
        yield (weight, indices, torch.tensor([0, 2, 2, 7]), False, 1, False, None, True, -1), {}


def _bags_backward() -> Iterator[Call]:
    for (weight, indices, offsets, _, mode, _, of_samples, last, padding), _ in _bags(forward_only=False):
        out, bag, size, maximum = _aten._embedding_bag(
            weight, indices, offsets, False, mode, False, of_samples, last, padding
        )
        if bag.numel() == 0:
            starts = offsets[:-1] if last else offsets
            bag = torch.searchsorted(starts, torch.arange(len(indices)), right=True) - 1
        yield (_noise(*out.shape, seed=7), indices, bag, size, maximum, 6, False, mode, of_samples, padding), {}


def _sample_weights_backward() -> Iterator[Call]:
    for (weight, indices, offsets, _, mode, *_, padding), _ in _bags(forward_only=True):
        if mode == 0:
            bag = torch.searchsorted(offsets, torch.arange(len(indices)), right=True) - 1
            yield (_noise(4, 4, seed=8), weight, indices, offsets, bag, mode, padding), {}


CALLS: dict[str, tuple[Call, ...]] = {
    "aten.embedding_renorm.default": tuple(
        ((_noise(6, 3, dtype=dtype) * 3, torch.tensor([[1, 4], [1, 5]]), 1.5, p), {})
        for dtype in (torch.float32, torch.bfloat16)
        for p in (2.0, 1.0)
    ),
    "aten._native_batch_norm_legit_functional.default": tuple(_batch_norm(statistics=True, plain=False)),
    "aten._native_batch_norm_legit_no_training.default": tuple(_batch_norm(statistics=True, plain=True)),
    "aten._batch_norm_no_update.default": tuple(_batch_norm(statistics=True, plain=True)),
    "aten._batch_norm_with_update_functional.default": tuple(_batch_norm(statistics=True, plain=True)),
    "aten.batch_norm_backward.default": tuple(_batch_norm_backward()),
    "aten.searchsorted.Scalar": tuple(((s, v), {"right": r}) for s, v in _searches() for r in (False, True)),
    "aten.bucketize.Scalar": tuple(((v, s), {"right": r}) for s, v in _searches() for r in (False, True)),
    "aten._unsafe_index.Tensor": tuple(_unsafe_index()),
    "aten._unsafe_index_put.default": tuple(_unsafe_index_put()),
    "aten._embedding_bag_forward_only.default": tuple(_bags(forward_only=True)),
    "aten._embedding_bag_dense_backward.default": tuple(_bags_backward()),
    "aten._embedding_bag_per_sample_weights_backward.default": tuple(_sample_weights_backward()),
}
