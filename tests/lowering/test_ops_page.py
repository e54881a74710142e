"""docs/ops.md is what its script writes, and says what is so."""

from __future__ import annotations

import pytest
import torch
from ops_page import PAGE, Row, page, row

from neuron_compiler.opdef import REGISTRY

aten = torch.ops.aten


def test_the_page_is_up_to_date() -> None:
    if f"as PyTorch {torch.__version__.partition('+')[0]} has them" not in PAGE.read_text():
        pytest.skip("written for another PyTorch")
    assert PAGE.read_text() == page(), "run python tests/lowering/ops_page.py"


@pytest.mark.parametrize(
    ("overload", "status", "detail"),
    [
        (aten.add.Tensor, "rule", "elementwise in `elementwise.py`"),
        (aten.huber_loss.default, "decomposed", "PyTorch"),
        (aten.add_.Tensor, "in place", ""),
        (aten.add.out, "in place", ""),
        (aten.bernoulli.p, "drawn", ""),
        (aten.nonzero.default, "eager", "its size depends on values"),
        (aten.equal.default, "eager", "its value is a number of the program"),
        (aten._to_sparse.default, "not captured", "sparse layout"),
        (aten.view_as.default, "not captured", "views and memory"),
    ],
)
def test_what_is_done_with_an_operator(overload: object, status: str, detail: str) -> None:
    found = row(overload)
    assert found == Row(str(overload).removeprefix("aten.").removesuffix(".default"), status, detail)


def test_every_rule_of_aten_is_there() -> None:
    text = PAGE.read_text()
    for name in REGISTRY.names():
        if name.startswith("aten."):
            assert f"`{name.split('.')[1]}`" in text
