"""Whether this host's library leaves equal elements in the order that PyTorch leaves them in: asked of PyTorch.

In: the loaded library of ``host/``. Out: the custom calls that may stand for PyTorch's. The order is that of the C++
standard library PyTorch was built with; where the host's is another one, or PyTorch sorts in another way, the calls
would be no better than a stable order.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import cache

import torch
from torch.utils._python_dispatch import _disable_current_modes

SORT, TOPK, TOPK_UNSORTED, KTHVALUE = CALLS = ("neuron_sort", "neuron_topk", "neuron_topk_unsorted", "neuron_kthvalue")
"""Targets of the custom calls, in the order of the C++ enumeration ``Way``."""


BY_DIGITS_FROM = 32768
"""From so many elements on, a build of PyTorch with OpenMP sorts a lone row of integers upwards by their digits."""


@cache
def sorts_by_digits() -> bool:
    """Whether this build does, which keeps equal elements in order."""
    # While a graph is captured, tensors would be made without values.
    with _disable_current_modes():
        row = torch.arange(BY_DIGITS_FROM, device="cpu").remainder_(7)
        return torch.equal(row.sort().indices, row.sort(stable=True).indices)


def in_pytorchs_order(library: ctypes.CDLL) -> frozenset[str]:
    """Which of the calls give PyTorch's positions, on rows of few values that each algorithm treats in another way."""
    ours = library.neuron_order_row
    ours.restype = None
    ours.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]

    def agrees(call: str) -> bool:
        for keys, k, theirs in _questions(call):
            found = torch.empty(theirs.shape, dtype=torch.int64, device="cpu")
            ours(CALLS.index(call), keys.data_ptr(), keys.numel(), k, found.data_ptr())
            if not torch.equal(found, theirs):
                return False
        return True

    with _disable_current_modes():
        return frozenset(call for call in CALLS if agrees(call))


_ASKED: dict[str, tuple[tuple[int, ...], Callable[[torch.Tensor, int], torch.Tensor]]] = {
    SORT: ((0,), lambda x, _: x.sort().indices),
    TOPK: ((1, 3, 40, 500), lambda x, k: x.topk(k, largest=False).indices),
    TOPK_UNSORTED: ((1, 3, 40, 500), lambda x, k: x.topk(k, largest=False, sorted=False).indices),
    KTHVALUE: ((0, 7, 250, 499), lambda x, rank: x.kthvalue(rank + 1, keepdim=True).indices),
}
"""By call: the ``k`` that are asked for, and what PyTorch does."""


def _questions(call: str) -> Iterator[tuple[torch.Tensor, int, torch.Tensor]]:
    """int32 keys [500], the number given to the call, and PyTorch's positions for them as integers and as floats."""
    places = torch.arange(500, dtype=torch.int32, device="cpu")
    numbers, theirs = _ASKED[call]
    for k in numbers:
        for keys in (places * 7919 % 13 % 5, -places // 100):
            for dtype in (torch.int32, torch.float32):
                yield keys, (500 if call == SORT else k), theirs(keys.to(dtype), k)
