"""Views of memory by permuting and narrowing, equal to ``as_strided``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from neuron_compiler.eager_fallback.strided_view import view


class Overloads(TorchDispatchMode):
    """Names of what is called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def checked(base: torch.Tensor, wanted: torch.Tensor) -> list[str]:
    """Overloads that give the view, which must be one: the same memory, place by place."""
    with Overloads() as called:
        found = view(base, wanted.shape, wanted.stride(), wanted.storage_offset())
    assert found.shape == wanted.shape
    assert torch.equal(found, wanted)
    assert found.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
    return called.names


@st.composite
def views(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    base = torch.arange(torch.Size(shape).numel()).reshape(shape).permute(draw(st.permutations(range(len(shape)))))
    found = base
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["permute", "narrow", "step", "select", "unsqueeze", "expand"]))
        d = draw(st.integers(0, max(found.dim() - 1, 0)))
        if kind == "permute":
            found = found.permute(draw(st.permutations(range(found.dim()))))
        elif kind == "unsqueeze":
            found = found.unsqueeze(d)
        elif found.dim() == 0:
            continue
        elif kind == "narrow":
            start = draw(st.integers(0, found.shape[d] - 1))
            found = found.narrow(d, start, draw(st.integers(1, found.shape[d] - start)))
        elif kind == "step":
            found = found.unfold(d, 1, draw(st.integers(1, 3))).squeeze(-1)
        elif kind == "select":
            found = found.select(d, draw(st.integers(0, found.shape[d] - 1)))
        elif found.shape[d] == 1:
            found = found.expand(*found.shape[:d], 3, *found.shape[d + 1 :])
    return base, found


@given(views())
@settings(max_examples=300, deadline=None)
def test_any_view_is_found(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    checked(*pair)


@pytest.mark.parametrize(
    ("of", "names"),
    [
        (lambda x: x, []),
        (lambda x: x.transpose(1, 2), ["aten.permute.default"]),
        (lambda x: x[:, 2:4], ["aten.slice.Tensor"]),
        (lambda x: x.view(24, 4)[3:], ["aten.slice.Tensor"]),
        (lambda x: x[..., 1], ["aten.select.int"]),
        (lambda x: x[:, :, None].expand(4, 6, 5, 4), ["aten.unsqueeze.default", "aten.expand.default"]),
    ],
)
def test_common_views_take_no_more_than_they_took(of: Any, names: list[str]) -> None:
    base = torch.arange(96).reshape(4, 6, 4)
    assert [name for name in checked(base, of(base)) if name != "aten.view.default"] == names


def test_overlapping_windows_fall_back_to_addresses() -> None:
    base = torch.arange(10)
    assert checked(base, base.unfold(0, 4, 1)) == ["aten.as_strided.default"]
