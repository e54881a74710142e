"""What results mean where they are not unique: vectors are free in sign or phase, and each LAPACK has its own."""

from __future__ import annotations

from collections.abc import Callable

import torch

Parts = list[torch.Tensor]


def _of_eigh(values: torch.Tensor, vectors: torch.Tensor) -> Parts:
    if vectors.ndim < 2:
        return [values, vectors]
    return [values, vectors * values[..., None, :] @ vectors.mH, vectors.mH @ vectors]


def _of_svd(u: torch.Tensor, s: torch.Tensor, vh: torch.Tensor) -> Parts:
    if u.ndim < 2:
        return [u, s, vh]
    k = s.shape[-1]
    return [s, u[..., :k] * s[..., None, :] @ vh[..., :k, :], u.mH @ u, vh @ vh.mH]


def _of_eig(values: torch.Tensor, vectors: torch.Tensor) -> Parts:
    """Products of the parts of each vector with one another are free of its phase, and tell theirs apart."""
    if vectors.ndim < 2:
        return [values, vectors]
    columns = vectors.mT
    return [values, columns[..., :, None] * columns.conj()[..., None, :]]


def _of_lstm(states: torch.Tensor, last: torch.Tensor, cell: torch.Tensor, workspace: torch.Tensor | None) -> Parts:
    return [states, last, cell]  # the workspace is oneDNN's own


MEANING: dict[str, Callable[..., Parts]] = {
    "aten._linalg_eigh.default": _of_eigh,
    "aten._linalg_svd.default": _of_svd,
    "aten.linalg_eig.default": _of_eig,
    "aten.mkldnn_rnn_layer.default": _of_lstm,
}
"""Overload → from its results to tensors that are equal for any two right answers."""
