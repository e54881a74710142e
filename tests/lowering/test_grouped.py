"""Products of one matrix with several by groups of its rows, against ATen and against what transformers computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from against_aten import call, check, lower, work

from neuron_compiler.ledger import LEDGER
from neuron_compiler.lowering.ops import grouped

aten = torch.ops.aten


# Groups with rows and without, and blocks that divide the groups and do not.
@pytest.mark.parametrize("ends", [[4, 4, 16], [0, 0, 16], [16, 16, 16], [5, 9, 16]], ids=str)
@pytest.mark.parametrize("block", [64, 3])
def test_grouped_products(monkeypatch: pytest.MonkeyPatch, ends: list[int], block: int) -> None:
    monkeypatch.setattr(grouped, "BLOCK", block)
    torch.manual_seed(0)
    rows, matrices = torch.randn(16, 32).bfloat16(), torch.randn(3, 32, 16).bfloat16()
    offsets = torch.tensor(ends, dtype=torch.int32)
    check(
        call(aten._grouped_mm.default, rows, matrices, offsets),
        call(aten._grouped_mm.default, matrices.mT.contiguous(), torch.randn(32, 16).bfloat16(), offsets),
        call(aten._grouped_mm.default, torch.randn(8, 16).bfloat16(), torch.randn(16, 24).bfloat16(), offsets),
        call(aten._grouped_mm.default, torch.randn(3, 8, 32).bfloat16(), matrices),
    )


def test_work_is_that_of_the_groups_together() -> None:
    rows, matrices = torch.randn(16, 32).bfloat16(), torch.randn(3, 32, 8).bfloat16()
    ends = torch.tensor([4, 4, 16], dtype=torch.int32)
    assert work(aten._grouped_mm.default, rows, matrices, ends).flops == 2 * 16 * 32 * 8
    assert work(aten._grouped_mm.default, rows.t().contiguous(), rows, ends).flops == 2 * 32 * 16 * 32


@pytest.fixture(scope="module")
def experts() -> Any:
    """The ops that transformers registers when its experts are imported."""
    pytest.importorskip("transformers.integrations.moe")
    return torch.ops.transformers


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_products_of_experts(experts: Any, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    monkeypatch.setattr(grouped, "BLOCK", 3)
    torch.manual_seed(0)
    rows, grad = torch.randn(16, 8, dtype=dtype), torch.randn(16, 6, dtype=dtype)
    matrices = torch.randn(3, 6, 8, dtype=dtype).transpose(1, 2)
    calls = []
    # Empty groups, rows after the end of all groups, an end after the last row.
    for ends in ([4, 4, 16], [0, 0, 16], [5, 9, 12], [5, 9, 20]):
        offsets = torch.tensor(ends, dtype=torch.int32 if ends[0] else torch.int64)
        calls.append(call(experts.grouped_mm_fallback.default, rows, matrices, offsets))
        calls.append(call(experts.grouped_mm_fallback_backward.default, rows, matrices, offsets, grad))
    check(*calls)


def test_products_of_no_rows(experts: Any) -> None:
    matrices, offsets = torch.randn(3, 8, 6), torch.zeros(3, dtype=torch.int32)
    assert lower(experts.grouped_mm_fallback.default, torch.randn(0, 8), matrices, offsets).shape == (0, 6)
    backward = experts.grouped_mm_fallback_backward.default
    by_row, by_matrix = lower(backward, torch.randn(0, 8), matrices, offsets, torch.randn(0, 6))
    assert by_row.shape == (0, 8)
    torch.testing.assert_close(by_matrix, torch.zeros(3, 8, 6))


def test_experts_are_compiled_with_their_gradients(experts: Any) -> None:
    torch.manual_seed(0)
    rows, matrices = torch.randn(16, 8, requires_grad=True), torch.randn(3, 8, 6, requires_grad=True)
    offsets = torch.tensor([5, 9, 16], dtype=torch.int32)

    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return experts.grouped_mm_fallback(x, w, offs=offsets).tanh()

    before = LEDGER.total("fallback")
    found = torch.compile(run, backend="neuron")(rows, matrices)
    wanted = run(rows, matrices)
    torch.testing.assert_close(found, wanted)
    for f, w in zip(*(torch.autograd.grad(r.square().sum(), (rows, matrices)) for r in (found, wanted)), strict=True):
        torch.testing.assert_close(f, w)
    assert LEDGER.total("fallback") == before
    with pytest.raises(ValueError, match="ascending"):
        torch.compile(lambda x, w, o: experts.grouped_mm_fallback(x, w, o), backend="neuron")(
            rows.detach(), matrices.detach(), torch.tensor([9, 5, 16])
        )
