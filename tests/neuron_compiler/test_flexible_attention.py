"""``flex_attention`` compiles: scores changed and positions hidden as eager has them; so are gradients of tables.

Gradients of query, key and value are refused on the CPU by PyTorch itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from neuron_compiler.ledger import LEDGER

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch warns of flex_attention without its own compiler

LENGTH = 12


def causal(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return query >= key


def few(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return (query - key).abs() <= query - 2  # the first two rows see no key


def operands(heads: int = 2, groups: int = 1, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = [(2, heads * groups, LENGTH, 8), (2, heads, LENGTH, 8), (2, heads, LENGTH, 4)]
    return [torch.randn(shape, dtype=dtype) for shape in shapes]


def compare(function: Callable[..., Any], tensors: list[torch.Tensor], tolerance: float = 1e-5) -> None:
    """Results and gradients of eager and compiled, and that nothing ran eagerly."""
    learned = [x for x in tensors if x.requires_grad]

    def run(f: Callable[..., Any]) -> list[torch.Tensor]:
        results = f(*tensors)
        results = list(results) if isinstance(results, tuple) else [results]
        if not learned:
            return results
        total = sum((r.float().nan_to_num(neginf=0) * torch.arange(1.0, r.shape[-1] + 1)).sum() for r in results)
        return [*results, *torch.autograd.grad(total, learned)]

    wanted, found = run(function), run(torch.compile(function, backend="neuron"))
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.stride() == theirs.stride()
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)
    assert LEDGER.total("fallback") == 0


@pytest.mark.parametrize("mask", [None, causal, few])
def test_positions_that_are_hidden(mask: Any) -> None:
    block: BlockMask | None = mask and create_block_mask(mask, None, None, LENGTH, LENGTH, device="cpu")
    compare(lambda q, k, v: flex_attention(q, k, v, block_mask=block, return_lse=True), operands())


def test_scores_are_changed_by_a_table_that_learns() -> None:
    table = torch.randn(2 * LENGTH, requires_grad=True)

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s * 2 + t[i - j + LENGTH] * h)

    compare(function, [*operands(), table])


def test_a_row_without_keys_has_no_gradient() -> None:
    table = torch.randn(LENGTH, requires_grad=True)

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, t: torch.Tensor) -> Any:
        hide = -float("inf")

        def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return torch.where(i < 2, hide, s * t[j])

        return flex_attention(q, k, v, score_mod=score, return_lse=True)

    compare(function, [*operands(), table])


def test_a_score_that_hides_whole_rows() -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        hide = -float("inf")
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: torch.where(i < 2, hide, s), return_lse=True)

    compare(function, operands())


def test_groups_of_heads_and_low_precision() -> None:
    compare(lambda q, k, v: flex_attention(q, k, v, scale=0.5, enable_gqa=True), operands(groups=2))
    compare(lambda q, k, v: flex_attention(q, k, v), operands(dtype=torch.bfloat16), 2e-2)


def test_operands_of_another_memory_order() -> None:
    tensors = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in operands()]
    compare(lambda q, k, v: flex_attention(q, k, v), tensors)


def test_dynamic_length() -> None:
    compiled = torch.compile(flex_attention, backend="neuron", dynamic=True)
    for length in (5, 9):
        q = torch.randn(1, 2, length, 8)
        torch.testing.assert_close(compiled(q, q, q), flex_attention(q, q, q))
    assert LEDGER.total("fallback") == 0
