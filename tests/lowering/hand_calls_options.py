"""Calls that set options which no other call sets and whose values have to fit the operands; and calls with operands
of some size, of overloads that the op database calls with empty or single ones first.
"""

from __future__ import annotations

from typing import Any

import torch

Call = tuple[tuple[Any, ...], dict[str, Any]]


def _noise(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


_PLACES = torch.tensor([3.0, 1.0, 2.0])
_WEIGHTS = {"weight": torch.arange(1.0, 13.0)}
_LENGTHS = torch.tensor([[3, 1], [2, 2]])
_SINGULAR = _noise(4, 2) @ _noise(2, 4)


def _segments() -> tuple[Call, ...]:
    """Gradients of products that start from a number, and along an axis that is not the first."""
    made = []
    with_zero = torch.tensor([0.0, 1.5, 2.0, 3.0])
    ways = ((with_zero, {"lengths": _LENGTHS[0], "initial": 2.0}), (_noise(2, 4), {"lengths": _LENGTHS, "axis": 1}))
    for x, how in ways:
        result = torch.ops.aten.segment_reduce(x, "prod", **how)
        made.append(((_noise(*result.shape), result, x, "prod"), how))
    return tuple(made)


CALLS: dict[str, tuple[Call, ...]] = {
    "aten._linalg_solve_ex.default": (((_noise(3, 3), _noise(2, 3)), {"left": False}),),
    "aten.all.dim": (((_noise(2, 3, 4) > -1, 1), {}), ((_noise(2, 3, 4) > -1, 0, True), {})),
    "aten.any.dim": (((_noise(2, 3, 4) > 1, 1), {}), ((_noise(2, 3, 4) > 1, 0, True), {})),
    "aten.arange.default": (((7,), {}), ((6.5,), {"dtype": torch.float64})),
    "aten.arange.start": (((-2, 5), {}), ((0.5, 7), {"dtype": torch.float32})),
    "aten.eye.default": (((4,), {}), ((3,), {"dtype": torch.int64})),
    "aten.eye.m": (((3, 5), {}), ((4, 2), {"dtype": torch.bool})),
    "aten.col2im.default": (
        ((_noise(2, 12, 4), [4, 5], [2, 3], [1, 1], [0, 0], [2, 2]), {}),
        ((_noise(1, 6, 16), [4, 5], [2, 3], [2, 1], [1, 2], [1, 2]), {}),
    ),
    "aten.im2col.default": (
        ((_noise(2, 2, 4, 5), [2, 3], [1, 1], [0, 0], [2, 2]), {}),
        ((_noise(1, 1, 4, 5), [2, 3], [2, 1], [1, 2], [1, 2]), {}),
    ),
    "aten.linalg_vector_norm.default": tuple(
        ((_noise(2, 3, 4), order, dim, keep), {})
        for order in (0, 1, 2.5, float("inf"), -float("inf"))
        for dim, keep in ((None, False), ([1], True), ([0, 2], False))
    ),
    "aten.median.default": (((_noise(3, 4),), {}), ((torch.arange(7).flip(0),), {})),
    "aten.nanmedian.default": (((torch.tensor([3.0, float("nan"), 1.0, 2.0, 5.0, 4.0]),), {}),),
    "aten.scatter.value_reduce": tuple(
        ((_noise(3, 4), 1, torch.tensor([[0, 2, 0], [1, 1, 3]]), 2.5), {"reduce": reduce})
        for reduce in ("add", "multiply")
    ),
    "aten.slice.Tensor": (((_noise(5, 4), 0, 1, 4, 2), {}), ((_noise(5, 4), 1, -3, -1), {})),
    "aten.t.default": (((_noise(3, 4),), {}),),
    "aten._linalg_svd.default": tuple(
        ((x, full), {})
        for x in (_noise(4, 3), _noise(2, 3, 5), torch.complex(_noise(3, 3), _noise(3, 3).T))
        for full in (False, True)
    ),
    "aten.diagonal_scatter.default": (
        ((_noise(2, 3, 4), _noise(2, 3), 0, 2, 1), {}),
        ((_noise(2, 3, 4), _noise(3, 2), 1, 0, 2), {}),
    ),
    "aten.histogram.bin_ct": (
        ((_noise(12), 5), {**_WEIGHTS, "range": (-1.0, 2.0), "density": True}),
        ((_noise(12), 5), _WEIGHTS),
    ),
    "aten.histogram.bins_tensor": (((_noise(12), torch.tensor([-1.0, 0.0, 0.7, 2.0])), _WEIGHTS),),
    "aten._histogramdd_bin_edges.default": (((_noise(12, 2), [3, 2]), {"range": [-1.0, 2.0, -2.0, 1.5]}),),
    "aten._histogramdd_from_bin_cts.default": (
        ((_noise(12, 2), [3, 2]), {**_WEIGHTS, "range": [-1.0, 2.0, -2.0, 1.5]}),
        ((_noise(12, 2), [3, 2]), {**_WEIGHTS, "density": True}),
    ),
    "aten._histogramdd_from_bin_tensors.default": (
        ((_noise(12, 2), [torch.tensor([-1.0, 0.0, 2.0]), torch.tensor([-2.0, 0.5, 1.0])]), _WEIGHTS),
    ),
    "aten.linalg_pinv.atol_rtol_tensor": (
        ((_noise(4, 4),), {"atol": torch.tensor(0.9)}),
        ((_noise(4, 4),), {"rtol": torch.tensor(0.5)}),
        ((_SINGULAR @ _SINGULAR.mT,), {"rtol": torch.tensor(0.1), "hermitian": True}),
    ),
    "aten.linalg_qr.default": tuple(((_noise(4, 3), mode), {}) for mode in ("complete", "r")),
    "aten._segment_reduce_backward.default": _segments(),
    "aten.unsafe_split_with_sizes.default": (((_noise(2, 4), [1, 3], 1), {}),),
    "aten.searchsorted.Scalar": (
        ((torch.tensor([1.0, 2.0, 3.0]), 2.0), {"side": "right"}),
        ((_PLACES, 1.5), {"sorter": _PLACES.argsort()}),
    ),
    "aten.searchsorted.Tensor": (
        ((torch.tensor([1.0, 2.0, 3.0]), _PLACES), {"side": "right"}),
        ((_PLACES, torch.tensor([1.5, 2.0])), {"sorter": _PLACES.argsort()}),
    ),
}
