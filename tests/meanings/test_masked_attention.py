"""Attention with masks, among them rows that see nothing; and gradients of gradients where tracing allows them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from agreement import compiled
from torch import nn


def inputs(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    numbers = torch.Generator().manual_seed(0)
    return [torch.randn(2, 2, 5, 8, generator=numbers).to(dtype) for _ in range(3)]


def blind() -> torch.Tensor:
    """A mask in which row 1 sees nothing."""
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    mask[1] = False
    return mask


@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("gradients", [False, True])
def test_rows_that_see_nothing(kind: str, gradients: bool) -> None:
    mask = blind() if kind == "bool" else torch.zeros(5, 5).masked_fill(~blind(), -torch.inf)
    found = []
    for function in (F.scaled_dot_product_attention, compiled(F.scaled_dot_product_attention)):
        q, k, v = (x.requires_grad_(gradients) for x in inputs())
        out = function(q, k, v, attn_mask=mask)
        found.append([out.detach(), *(torch.autograd.grad(out.sum(), (q, k, v)) if gradients else ())])
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6, equal_nan=True)


def test_rows_that_see_nothing_spelt_out() -> None:
    def program(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (q @ k.mT).masked_fill(~mask, -torch.inf).softmax(-1) @ v

    want = program(*inputs(), blind())
    assert want[:, :, 1].isnan().all()
    torch.testing.assert_close(compiled(program)(*inputs(), blind()), want, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_causal_grouped_and_scaled(dtype: torch.dtype) -> None:
    q, k, v = inputs(dtype)
    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    for options in ({"is_causal": True}, {"scale": 0.3}, {"enable_gqa": True}, {}):
        given = (q, k[:, :1], v[:, :1]) if "enable_gqa" in options else (q, k, v)
        want = F.scaled_dot_product_attention(*given, **options)  # type: ignore[arg-type]
        got = compiled(lambda q, k, v, options=options: F.scaled_dot_product_attention(q, k, v, **options))(*given)
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


def test_key_padding_of_a_whole_sequence() -> None:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(2, 4, 8)
    padding = torch.zeros(2, 4, dtype=torch.bool)
    padding[1] = True
    for weights in (True, False):
        want = layer(x, x, x, key_padding_mask=padding, need_weights=weights)
        got = torch.compile(layer, backend="neuron")(x, x, x, key_padding_mask=padding, need_weights=weights)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6, equal_nan=True)


def test_gradients_of_gradients_inside_a_function() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(lambda y: torch.func.grad(lambda z: (z.sin() * z**3).sum())(y).square().sum())(x)

    x = torch.linspace(-2, 2, 9)
    torch.testing.assert_close(compiled(program)(x), program(x), rtol=1e-4, atol=1e-5)
    hessian = torch.func.hessian(lambda x: (x.exp() * x).sum())
    torch.testing.assert_close(compiled(lambda x: hessian(x))(x), hessian(x), rtol=1e-5, atol=1e-5)


def test_gradients_of_gradients_across_the_call_are_refused_as_pytorch_refuses_them() -> None:
    x = torch.ones(3, requires_grad=True)
    messages = []
    for backend in ("aot_eager", "neuron"):
        (grad,) = torch.autograd.grad(torch.compile(lambda x: (x**3).sum(), backend=backend)(x), x, create_graph=True)
        with pytest.raises(RuntimeError) as error:
            grad.sum().backward()
        messages.append(str(error.value))
    assert messages[0] == messages[1]
