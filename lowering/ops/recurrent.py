"""One LSTM layer over a sequence, and its gradient: the op that PyTorch's LSTM decomposes into on CPU.

The products with the input are one product for the whole sequence; only what needs the previous state is in the loop.
Backward computes the gates again, from the states in the output, instead of keeping a workspace.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import torch
from jax import lax

from neuron_compiler.ir.graph import TensorType, TupleType
from neuron_compiler.lowering.numeric import Array, cast, narrow, widen
from neuron_compiler.lowering.ops.contraction import contract
from neuron_compiler.opdef import Call, Kind, Work, op

aten = torch.ops.aten

Ints = tuple[int, ...]

LSTM = 2
"""oneDNN's number of the kind of cell."""


class Weights(NamedTuple):
    """Of the input [4H, I], of the state [4H, H], and both biases added [4H]: input, forget, cell, output gate."""

    input: Array
    state: Array
    bias: Array


def _weights(weight: Array, state: Array, bias: Array, state_bias: Array, has_biases: bool) -> Weights:
    total = widen(bias) + widen(state_bias)
    return Weights(widen(weight), widen(state), total if has_biases else jnp.zeros_like(total))


def _linear(x: Array, weight: Array) -> Array:
    return contract(x, weight, ((x.ndim - 1,), (1,)))


def _gates(raw: Array) -> tuple[Array, Array, Array, Array]:
    i, f, g, o = jnp.split(raw, 4, axis=-1)
    return jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)


def _forward(x: Array, w: Weights, h: Array, c: Array, reverse: bool) -> tuple[Array, Array, Array]:
    """States of all steps [T, B, H], last state, last cell; ``x`` [T, B, I], ``h`` and ``c`` [B, H]."""

    def step(before: tuple[Array, Array], of_input: Array) -> tuple[tuple[Array, Array], Array]:
        h, c = before
        i, f, g, o = _gates(of_input + _linear(h, w.state))
        c = f * c + i * g
        h = o * jnp.tanh(c)
        return (h, c), h

    (h, c), states = lax.scan(step, (h, c), _linear(x, w.input) + w.bias, reverse=reverse)
    return states, h, c


def _not_one_lstm(mode: int, layers: int, batch_first: int, bidirectional: int) -> object:
    def reason(call: Call) -> str | None:
        if call.op.operand(mode) != LSTM:
            return "a cell that is not an LSTM"
        if call.op.operand(layers) != 1 or call.op.operand(batch_first) or call.op.operand(bidirectional):
            return "more than one layer in one direction, time first"
        return None

    return reason


def _work(call: Call) -> Work:
    """Two flops for each weight, five transcendentals for each state element, at each step."""
    steps, batch, _ = call.type(0).shape
    hidden = call.type(2).shape[1]
    weights = call.type(1).numel + call.type(2).numel
    return Work(2 * steps * batch * weights, 5 * steps * batch * hidden)


def _backward_work(call: Call) -> Work:
    """Forward's products again, and one more for the gradient by weight and one by operand."""
    done = _work(call)
    return Work(3 * done.flops, done.transcendentals)


def _element(out: TupleType, index: int) -> TensorType:
    found = out.elements[index]
    if found is None:
        raise TypeError(f"result {index} is not a tensor")
    return found


@op(aten.mkldnn_rnn_layer.default, kind=Kind.OTHER, work=_work, when=_not_one_lstm(9, 11, 14, 13))
def rnn_layer(
    x: Array,
    weight: Array,
    state_weight: Array,
    bias: Array,
    state_bias: Array,
    h: Array,
    c: Array,
    reverse: bool,
    batch_sizes: Ints,
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,
    bidirectional: bool,
    batch_first: bool,
    train: bool,
    *,
    out: TupleType,
) -> tuple[Array, Array, Array, Array]:
    w = _weights(weight, state_weight, bias, state_bias, has_biases)
    states, last, cell = _forward(widen(x), w, widen(h[0]), widen(c[0]), reverse)
    workspace = jnp.zeros(_element(out, 3).shape, jnp.uint8)
    found = (states, last[None], cell[None])
    return (*(narrow(f, _element(out, i)) for i, f in enumerate(found)), workspace)


@op(aten.mkldnn_rnn_layer_backward.default, kind=Kind.OTHER, work=_backward_work, when=_not_one_lstm(14, 16, 21, 19))
def rnn_layer_backward(
    x: Array,
    weight: Array,
    state_weight: Array,
    bias: Array,
    state_bias: Array,
    h: Array,
    c: Array,
    output: Array,
    last: Array,
    cell: Array,
    grad_output: Array | None,
    grad_last: Array | None,
    grad_cell: Array | None,
    reverse: bool,
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,
    train: bool,
    bidirectional: bool,
    batch_sizes: Ints,
    batch_first: bool,
    workspace: Array,
    *,
    out: TupleType,
) -> tuple[Array, ...]:
    w = _weights(weight, state_weight, bias, state_bias, has_biases)
    x, states, first, start = widen(x), widen(output), widen(h), widen(c[0])
    before = jnp.concatenate([states[1:], first] if reverse else [first, states[:-1]])
    i, f, g, o = _gates(_linear(x, w.input) + _linear(before, w.state) + w.bias)

    def cells(c: Array, step: tuple[Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        forget, new = step
        after = forget * c + new
        return after, (c, after)

    _, (old_cells, new_cells) = lax.scan(cells, start, (f, i * g), reverse=reverse)
    squashed = jnp.tanh(new_cells)

    def step(after: tuple[Array, Array], saved: tuple[Array, ...]) -> tuple[tuple[Array, Array], Array]:
        by_state, by_cell = after
        grad, i, f, g, o, old, squashed = saved
        by_state = by_state + grad
        by_cell = by_cell + by_state * o * (1 - squashed * squashed)
        raw = jnp.concatenate(
            [
                by_cell * g * i * (1 - i),
                by_cell * old * f * (1 - f),
                by_cell * i * (1 - g * g),
                by_state * squashed * o * (1 - o),
            ],
            axis=-1,
        )
        return (contract(raw, w.state, ((1,), (0,))), by_cell * f), raw

    zero = jnp.zeros_like(start)
    end = tuple(zero if grad is None else widen(grad[0]) for grad in (grad_last, grad_cell))
    by_output = jnp.zeros_like(states) if grad_output is None else widen(grad_output)
    saved = (by_output, i, f, g, o, old_cells, squashed)
    (by_first, by_start), raw = lax.scan(step, end, saved, reverse=not reverse)

    by_bias = jnp.sum(raw, axis=(0, 1)) if has_biases else jnp.zeros_like(w.bias)
    found = (
        contract(raw, w.input, ((2,), (0,))),
        contract(raw, x, ((0, 1), (0, 1))),
        contract(raw, before, ((0, 1), (0, 1))),
        by_bias,
        by_bias,
        by_first[None],
        by_start[None],
    )
    return tuple(cast(part, _element(out, index).dtype) for index, part in enumerate(found))
