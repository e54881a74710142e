"""Fused attention and its gradient: masks, groups of heads, masked rows; long sequences without their scores."""

from __future__ import annotations

from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import pytest
import torch
from against_aten import Call, call, check, lower, work

from neuron_compiler.ir.graph import DType, TensorType, TupleType
from neuron_compiler.lowering.ops import attention

aten = torch.ops.aten

FORWARD = aten._scaled_dot_product_flash_attention_for_cpu.default
BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def heads(
    queries: int = 5, keys: int = 7, groups: int = 2, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Query, key and value of two samples and ``groups`` times two heads of width 8."""
    torch.manual_seed(0)
    kept = (2, 2, keys, 8)
    return torch.randn(2, 2 * groups, queries, 8, dtype=dtype), *torch.randn(2, *kept, dtype=dtype).unbind()


def both(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False, **kwargs: Any) -> tuple[Call, Call]:
    """Forward, and backward of what ATen's forward saved."""
    output, log_sum = FORWARD(q, k, v, 0.0, causal, **kwargs)
    grad = torch.randn_like(output)
    return (
        call(FORWARD, q, k, v, 0.0, causal, **kwargs),
        call(BACKWARD, grad, q, k, v, output, log_sum, 0.0, causal, **kwargs),
    )


def masked() -> torch.Tensor:
    """A mask that leaves some row no key at all."""
    mask = torch.randn(5, 7)
    mask[2] = -float("inf")
    mask[0, 3:] = -float("inf")
    return mask


def situations() -> list[Call]:
    return [
        *both(*heads(groups=1)),
        *both(*heads(), scale=0.3),
        *both(*heads(), True),
        *both(*heads(queries=9), True),
        *both(*heads(), attn_mask=masked()),
        *both(*heads(), True, attn_mask=masked()),
    ]


def shrink_blocks(monkeypatch: pytest.MonkeyPatch, keys: int, queries: int) -> None:
    monkeypatch.setattr(attention, "LARGEST_SCORES", 1)
    monkeypatch.setattr(attention, "KEY_BLOCKS", (keys, keys))
    monkeypatch.setattr(attention, "QUERY_BLOCK", queries)


def test_short_sequences() -> None:
    check(*situations())


# Blocks that divide the sequences, that do not, and one alone.
@pytest.mark.parametrize(("keys", "queries"), [(3, 4), (7, 10)])
def test_long_sequences(monkeypatch: pytest.MonkeyPatch, keys: int, queries: int) -> None:
    shrink_blocks(monkeypatch, keys, queries)
    check(*situations())


@pytest.mark.parametrize("blocked", [False, True])
def test_masks_broadcast(monkeypatch: pytest.MonkeyPatch, blocked: bool) -> None:
    if blocked:
        shrink_blocks(monkeypatch, 3, 4)
    shapes = ((1, 7), (5, 1), (2, 1, 5, 7), (1, 4, 5, 7), (2, 4, 5, 7), (2, 1, 1, 7))
    check(*(one for shape in shapes for one in both(*heads(), attn_mask=torch.randn(shape))))


def test_double_precision_and_halves() -> None:
    check(*both(*heads(dtype=torch.float64)), *both(*heads(dtype=torch.float64), True))
    q, k, v = heads(dtype=torch.bfloat16)
    forward = call(FORWARD, q, k, v, 0.0, True, attn_mask=masked())
    check(forward, call(FORWARD, q, k, v, attn_mask=masked().bfloat16()), rtol=1e-2, atol=1e-2)
    output, log_sum = FORWARD(q.float(), k.float(), v.float())
    check(call(BACKWARD, torch.randn_like(q), q, k, v, output.bfloat16(), log_sum, 0.0, False), rtol=2e-2, atol=2e-2)


def test_a_row_without_keys_is_zero_and_a_nan_stays() -> None:
    q, k, v = heads()
    output, log_sum = lower(FORWARD, q, k, v, attn_mask=masked())
    assert output[:, :, 2].eq(0).all()
    assert log_sum[:, :, 2].eq(0).all()
    q[0, 0, 1, 0] = float("nan")
    output, _ = lower(FORWARD, q, k, v)
    assert output[0, 0, 1].isnan().all()
    assert output[0, 0, 0].isfinite().all()


def test_no_long_sequence_stores_its_scores() -> None:
    length = 4096
    shape = jax.ShapeDtypeStruct((1, 2, length, 8), jnp.float32)
    out = TupleType((TensorType((1, 2, length, 8), DType.F32), TensorType((1, 2, length), DType.F32)))

    def forward(q: Any, k: Any, v: Any) -> Any:
        return attention.attention(q, k, v, 0.0, True, out=out)

    def backward(q: Any, k: Any, v: Any) -> Any:
        return attention.attention_backward(q, q, k, v, v, jnp.zeros((1, 2, length)), 0.0, True)

    largest = length * 512
    for function in (forward, backward):
        sizes = [
            value.aval.size
            for equation in equations(jax.make_jaxpr(function)(shape, shape, shape).jaxpr)
            for value in equation.outvars
        ]
        assert max(sizes) <= largest, "a value as large as the scores"


def equations(jaxpr: Any) -> list[Any]:
    found = []
    for equation in jaxpr.eqns:
        found.append(equation)
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            found += equations(inner)
    return found


def test_safe_softmax() -> None:
    x = torch.randn(3, 4)
    x[1] = -float("inf")
    x[2, 1:] = -float("inf")
    check(
        call(aten._safe_softmax.default, x, -1),
        call(aten._safe_softmax.default, x, 0),
        call(aten._safe_softmax.default, x.bfloat16(), 1, torch.float32),
        call(aten._safe_softmax.default, torch.tensor([[float("nan"), 1.0]]), 1),
    )


def test_work_is_two_products_and_an_exponential_a_score() -> None:
    q, k, v = heads()
    scores = 2 * 4 * 5 * 7
    done = work(FORWARD, q, k, v)
    assert (done.flops, done.transcendentals) == (2 * 2 * scores * 8, scores)
    output, log_sum = FORWARD(q, k, v)
    assert work(BACKWARD, output, q, k, v, output, log_sum, 0.0, False).flops == 2 * 5 * scores * 8
