"""An LSTM layer and its gradient against PyTorch's LSTM."""

from __future__ import annotations

import pytest
import torch
from against_aten import lower, work

from neuron_compiler import dtypes
from neuron_compiler.ir.graph import Op, Value
from neuron_compiler.opdef import Call, why_unsupported

aten = torch.ops.aten

FORWARD, BACKWARD = aten.mkldnn_rnn_layer.default, aten.mkldnn_rnn_layer_backward.default
STEPS, BATCH, WIDTH, HIDDEN = 5, 2, 4, 6


def operands(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Input, weights of input and state, biases, first state and cell."""
    torch.manual_seed(0)
    gates = 4 * HIDDEN
    shapes = ((STEPS, BATCH, WIDTH), (gates, WIDTH), (gates, HIDDEN), (gates,), (gates,))
    return [torch.randn(s).to(dtype) for s in (*shapes, (1, BATCH, HIDDEN), (1, BATCH, HIDDEN))]


def by_pytorch(reverse: bool, biased: bool, given: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The same layer as an ``nn.LSTM``: its second direction where it runs in reverse."""
    x, *parameters, h, c = given
    parameters = parameters if biased else parameters[:2]
    if reverse:
        parameters = [torch.zeros_like(p) for p in parameters] + parameters
        h, c = (torch.cat([torch.zeros_like(s), s]) for s in (h, c))
    lstm = torch.nn.LSTM(WIDTH, HIDDEN, bias=biased, bidirectional=reverse)
    names = [name for name, _ in lstm.named_parameters()]
    named = dict(zip(names, parameters, strict=True))
    states, (h, c) = torch.func.functional_call(lstm, named, (x, (h, c)))
    return (states[..., HIDDEN:], h[1:], c[1:]) if reverse else (states, h, c)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_forward_and_backward(reverse: bool, biased: bool) -> None:
    given = operands()
    how = (2, HIDDEN, 1, biased)
    found = lower(FORWARD, *given, reverse, [], *how, False, False, False)
    leaves = [t.clone().requires_grad_() for t in given]
    expected = by_pytorch(reverse, biased, leaves)
    torch.testing.assert_close(found[:3], [t.detach() for t in expected])
    grads = [torch.randn_like(t) for t in expected]
    workspace = torch.empty(0, dtype=torch.uint8)
    saved = [t.detach() for t in expected]
    gradients = lower(BACKWARD, *given, *saved, *grads, reverse, *how, True, False, [], False, workspace)
    wanted = torch.autograd.grad(expected, leaves, grads, allow_unused=True)
    for mine, theirs in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(mine, torch.zeros_like(mine) if theirs is None else theirs, rtol=1e-4, atol=1e-5)


def test_bfloat16_is_computed_in_float32() -> None:
    given = operands(torch.bfloat16)
    found = lower(FORWARD, *given, False, [], 2, HIDDEN, 1, True, False, False, False)
    expected = by_pytorch(False, True, [t.float() for t in given])
    torch.testing.assert_close(found[:3], [t.detach().bfloat16() for t in expected], rtol=1e-2, atol=1e-2)


def test_other_cells_are_refused() -> None:
    given = operands()
    names = tuple(f"x{i}" for i in range(len(given)))
    types = {name: dtypes.type_of(t) for name, t in zip(names, given, strict=True)}

    def reason(mode: int, layers: int) -> str | None:
        rest = (False, (), mode, HIDDEN, layers, True, False, False, False)
        op = Op("r", str(FORWARD), (*map(Value, names), *rest), types["x0"])
        return why_unsupported(Call(op, types))

    assert reason(2, 1) is None
    assert "LSTM" in str(reason(3, 1))
    assert "layer" in str(reason(2, 2))


def test_work_is_two_flops_a_weight_at_each_step() -> None:
    done = work(FORWARD, *operands(), False, [], 2, HIDDEN, 1, True, False, False, False)
    assert done.flops == 2 * STEPS * BATCH * 4 * HIDDEN * (WIDTH + HIDDEN)
    assert done.transcendentals == 5 * STEPS * BATCH * HIDDEN
