"""Scaled dot-product attention: scores are never stored whole on long sequences.

Short sequences are two products around one softmax, which XLA compiles and runs fastest. Long ones go head by head and
block by block with a running maximum and sum; backward recomputes a block's weights from the saved log-sum-exp.

As in ATen, a row with every key masked gives 0 and a log-sum-exp of 0. A NaN score makes its row NaN, where ATen's CPU
kernel gives 0, NaN or a finite value, depending on the key's place in a vector register.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import NamedTuple

import jax.numpy as jnp
import torch
from jax import lax

from neuron_compiler.ir.graph import DType, TensorType, TupleType
from neuron_compiler.lowering.numeric import Array, cast, narrow, widen
from neuron_compiler.lowering.ops.contraction import contract
from neuron_compiler.opdef import Call, Kind, Work, WorkRule, op, per_element

aten = torch.ops.aten

LARGEST_SCORES = 1 << 18
"""Elements of the scores of all heads together up to which they are stored whole."""
QUERY_BLOCK = 256
"""Queries of a block, those of all heads that share their keys together."""
KEY_BLOCKS = (256, 512)
"""Keys of a block with and without a causal mask: 512 KB of scores at most, which stay in a core's own cache."""


class Heads(NamedTuple):
    """Operands by head: queries [B, H, G, Sq, D] of G query heads to each of H key heads; keys, values [B, H, Sk, D].

    ``bias`` is None or [B|1, H|1, G|1, Sq|1, Sk|1], added to the scaled scores.
    """

    query: Array
    key: Array
    value: Array
    bias: Array | None
    scale: float
    causal: bool


class Partial(NamedTuple):
    """Attention to some of the keys: values summed with weight ``exp(score - peak)``, that weight's sum, the peak."""

    weighted: Array
    total: Array
    peak: Array


def _split_heads(x: Array, groups: int) -> Array:
    batch, heads, rows, width = x.shape
    return x.reshape(batch, heads // groups, groups, rows, width)


def _join_heads(x: Array) -> Array:
    batch, heads, groups, *rest = x.shape
    return x.reshape(batch, heads * groups, *rest)


def _heads(query: Array, key: Array, value: Array, mask: Array | None, scale: float | None, causal: bool) -> Heads:
    kept = key.shape[1]
    groups = query.shape[1] // kept if kept else 1
    bias = None
    if mask is not None:
        mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
        bias = mask[:, :, None] if mask.shape[1] == 1 else _split_heads(mask, groups)
    return Heads(
        _split_heads(query, groups), key, value, bias, 1 / sqrt(query.shape[-1]) if scale is None else scale, causal
    )


def _scores(h: Heads, rows: Array, columns: Array, fresh: Array | None) -> Array:
    """Scaled and masked scores [B, H, G, rows, columns]; ``fresh`` says which of them count at all."""
    scores = contract(h.query, h.key, ((4,), (3,)), ((0, 1), (0, 1)))
    scores = scores * jnp.asarray(h.scale, scores.dtype)
    if h.bias is not None:
        scores = scores + cast(h.bias, DType.F64 if scores.dtype == jnp.float64 else DType.F32)
    if h.causal:
        below = columns[None, :] <= rows[:, None]
        fresh = below if fresh is None else fresh & below
    return scores if fresh is None else jnp.where(fresh, scores, -jnp.inf)


def _attend(h: Heads, rows: Array, columns: Array, fresh: Array | None = None) -> Partial:
    scores = _scores(h, rows, columns, fresh)
    peak = jnp.max(scores, axis=-1, initial=-jnp.inf)
    weights = jnp.exp(scores - _finite(peak)[..., None])
    weighted = contract(weights, widen(h.value), ((4,), (2,)), ((0, 1), (0, 1)))
    return Partial(weighted, jnp.sum(weights, axis=-1), peak)


def _finite(peak: Array) -> Array:
    """The peak to subtract: 0 for a row that has no key yet."""
    return jnp.where(peak == -jnp.inf, 0, peak)


def _merge(a: Partial, b: Partial) -> Partial:
    peak = jnp.maximum(a.peak, b.peak)
    of_a, of_b = jnp.exp(a.peak - _finite(peak)), jnp.exp(b.peak - _finite(peak))
    weighted = a.weighted * of_a[..., None] + b.weighted * of_b[..., None]
    return Partial(weighted, a.total * of_a + b.total * of_b, peak)


def _finish(p: Partial) -> tuple[Array, Array]:
    """Output and log-sum-exp of all keys' weights."""
    empty = p.total == 0
    total = jnp.where(empty, 1, p.total)
    return p.weighted / total[..., None], jnp.where(empty, 0, p.peak + jnp.log(total))


def _is_long(h: Heads) -> bool:
    batch, heads, groups, queries, _ = h.query.shape
    return batch * heads * groups * queries * h.key.shape[2] > LARGEST_SCORES


def _each_head(
    h: Heads, function: Callable[..., tuple[Array, ...]], by_query: Sequence[Array] = ()
) -> tuple[Array, ...]:
    """Results of ``function`` for each key head alone, one after the other: what it works on stays in cache.

    ``function`` is given Heads of one head, and of each array in ``by_query`` [B, H, G, ...] that head's part.
    """
    batch, heads = h.query.shape[:2]

    def part(x: Array, sample: Array, head: Array) -> Array:
        sample, head = (i if n > 1 else 0 for i, n in zip((sample, head), x.shape[:2], strict=True))
        zero = jnp.zeros((), jnp.int32)
        start = (jnp.asarray(sample, jnp.int32), jnp.asarray(head, jnp.int32), *(zero,) * (x.ndim - 2))
        return lax.dynamic_slice(x, start, (1, 1, *x.shape[2:]))

    def of_head(number: Array) -> tuple[Array, ...]:
        where = (number // heads, number % heads)
        query, key, value = (part(x, *where) for x in (h.query, h.key, h.value))
        bias = None if h.bias is None else part(h.bias, *where)
        one = h._replace(query=query, key=key, value=value, bias=bias)
        return tuple(x[0, 0] for x in function(one, *(part(x, *where) for x in by_query)))

    results = lax.map(of_head, jnp.arange(batch * heads, dtype=jnp.int32))
    return tuple(x.reshape(batch, heads, *x.shape[1:]) for x in results)


class Blocks(NamedTuple):
    """``count`` windows of ``size`` that cover ``length``; the last is moved back to end with it, so it may overlap."""

    length: int
    size: int
    count: int

    def start(self, i: Array) -> Array:
        return jnp.minimum(i * self.size, self.length - self.size)

    def window(self, i: Array) -> Array:
        """Positions of window ``i``."""
        return self.start(i) + jnp.arange(self.size, dtype=jnp.int32)

    def fresh(self, i: Array) -> Array | None:
        """Which of these are not in an earlier window; None where windows never overlap."""
        return None if self.length % self.size == 0 else self.window(i) >= i * self.size

    def take(self, x: Array, i: Array, axis: int) -> Array:
        """The window's slice; all of an axis that has been left to broadcast."""
        return x if x.shape[axis] == 1 != self.length else lax.dynamic_slice_in_dim(x, self.start(i), self.size, axis)

    def put(self, x: Array, part: Array, i: Array, axis: int) -> Array:
        return lax.dynamic_update_slice_in_dim(x, part, self.start(i), axis)


def _blocks(h: Heads) -> tuple[Blocks, Blocks]:
    groups, queries = h.query.shape[2:4]
    keys = h.key.shape[2]
    key_size = min(KEY_BLOCKS[0 if h.causal else 1], keys)
    query_size = min(max(QUERY_BLOCK // groups, 1), queries)
    return Blocks(queries, query_size, -(-queries // query_size)), Blocks(keys, key_size, -(-keys // key_size))


def _of_block(h: Heads, q: Blocks, i: Array, k: Blocks, j: Array) -> Heads:
    bias = h.bias if h.bias is None else q.take(k.take(h.bias, j, 4), i, 3)
    return h._replace(query=q.take(h.query, i, 3), key=k.take(h.key, j, 2), value=k.take(h.value, j, 2), bias=bias)


def _forward(h: Heads) -> tuple[Array, Array]:
    """Output [B, H, G, Sq, D] and log-sum-exp [B, H, G, Sq], in float32 (float64 for float64)."""
    if _is_long(h):
        output, log_sum = _each_head(h, _forward_in_blocks)
        return output, log_sum
    return _finish(_attend(h, jnp.arange(h.query.shape[3]), jnp.arange(h.key.shape[2])))


def _forward_in_blocks(h: Heads) -> tuple[Array, Array]:
    q, k = _blocks(h)
    wide = widen(h.query).dtype
    outer, width = h.query.shape[:3], h.value.shape[-1]

    def of_queries(i: Array, results: tuple[Array, Array]) -> tuple[Array, Array]:
        def of_keys(j: Array, before: Partial) -> Partial:
            return _merge(before, _attend(_of_block(h, q, i, k, j), q.window(i), k.window(j), k.fresh(j)))

        none = Partial(
            jnp.zeros((*outer, q.size, width), wide),
            jnp.zeros((*outer, q.size), wide),
            jnp.full((*outer, q.size), -jnp.inf, wide),
        )
        last = jnp.minimum((q.start(i) + q.size - 1) // k.size + 1, k.count) if h.causal else k.count
        output, log_sum = _finish(lax.fori_loop(0, last, of_keys, none))
        return q.put(results[0], output, i, 3), q.put(results[1], log_sum, i, 3)

    start = jnp.zeros((*outer, q.length, width), wide), jnp.zeros((*outer, q.length), wide)
    return lax.fori_loop(0, q.count, of_queries, start)


class Saved(NamedTuple):
    """What backward reads by query: gradient of the output, log-sum-exp and ``sum(gradient * output)``."""

    grad: Array
    log_sum: Array
    inner: Array


def _gradients(
    h: Heads, saved: Saved, rows: Array, columns: Array, fresh: Array | None = None
) -> tuple[Array, Array, Array]:
    """Gradients by query, key and value of one block, in float32 (float64 for float64)."""
    batch = ((0, 1), (0, 1))
    weights = jnp.exp(_scores(h, rows, columns, fresh) - saved.log_sum[..., None])
    by_value = contract(weights, saved.grad, ((2, 3), (2, 3)), batch)
    by_weight = contract(saved.grad, widen(h.value), ((4,), (3,)), batch)
    by_score = weights * (by_weight - saved.inner[..., None]) * jnp.asarray(h.scale, weights.dtype)
    by_query = contract(by_score, widen(h.key), ((4,), (2,)), batch)
    return by_query, contract(by_score, widen(h.query), ((2, 3), (2, 3)), batch), by_value


def _backward(h: Heads, saved: Saved) -> tuple[Array, Array, Array]:
    if _is_long(h):
        by_query, by_key, by_value = _each_head(h, _backward_in_blocks, saved)
        return by_query, by_key, by_value
    return _gradients(h, saved, jnp.arange(h.query.shape[3]), jnp.arange(h.key.shape[2]))


def _backward_in_blocks(h: Heads, *saved: Array) -> tuple[Array, Array, Array]:
    q, k = _blocks(h)

    def of_keys(j: Array, grads: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        def of_queries(i: Array, before: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            part = Saved(*(q.take(x, i, 3) for x in saved))
            fresh, fresh_rows = k.fresh(j), q.fresh(i)
            if fresh_rows is not None:
                fresh = fresh_rows[:, None] if fresh is None else fresh_rows[:, None] & fresh
            block = _gradients(_of_block(h, q, i, k, j), part, q.window(i), k.window(j), fresh)
            by_query, by_key, by_value = before
            by_query = q.put(by_query, q.take(by_query, i, 3) + block[0], i, 3)
            return by_query, by_key + block[1], by_value + block[2]

        by_query, by_key, by_value = grads
        first = k.start(j) // q.size if h.causal else 0
        none = (by_query, jnp.zeros_like(k.take(by_key, j, 2)), jnp.zeros_like(k.take(by_value, j, 2)))
        by_query, key_part, value_part = lax.fori_loop(first, q.count, of_queries, none)
        by_key = k.put(by_key, k.take(by_key, j, 2) + key_part, j, 2)
        return by_query, by_key, k.put(by_value, k.take(by_value, j, 2) + value_part, j, 2)

    start = tuple(jnp.zeros(x.shape, widen(x).dtype) for x in (h.query, h.key, h.value))
    return lax.fori_loop(0, k.count, of_keys, start)


def _no_dropout(index: int) -> Callable[[Call], str | None]:
    def reason(call: Call) -> str | None:
        return "dropout inside the fused kernel" if call.op.operand(index, 0.0) else None

    return reason


def _attention_work(query: int, products: int) -> WorkRule:
    """``products`` multiply-adds for each score and feature, one exp for each score; a causal mask saves nothing."""

    def rule(call: Call) -> Work:
        batch, heads, queries, width = call.type(query).shape
        scores = batch * heads * queries * call.type(query + 1).shape[2]
        return Work(flops=2 * products * scores * width, transcendentals=scores)

    return rule


_flash = aten._scaled_dot_product_flash_attention_for_cpu.default
_flash_backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default


@op(_flash, kind=Kind.ATTENTION, work=_attention_work(0, 2), when=_no_dropout(3))
def attention(
    query: Array,
    key: Array,
    value: Array,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Array | None = None,
    scale: float | None = None,
    out: TupleType,
) -> tuple[Array, Array]:
    output, log_sum = (_join_heads(x) for x in _forward(_heads(query, key, value, attn_mask, scale, is_causal)))
    return narrow(output, _tensor(out, 0)), narrow(log_sum, _tensor(out, 1))


def _tensor(out: TupleType, index: int) -> TensorType:
    element = out.elements[index]
    if element is None:
        raise TypeError(f"result {index} of attention is not a tensor")
    return element


@op(_flash_backward, kind=Kind.ATTENTION, work=_attention_work(1, 5), when=_no_dropout(6))
def attention_backward(
    grad: Array,
    query: Array,
    key: Array,
    value: Array,
    output: Array,
    log_sum: Array,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Array | None = None,
    scale: float | None = None,
) -> tuple[Array, Array, Array]:
    h = _heads(query, key, value, attn_mask, scale, is_causal)
    groups = h.query.shape[2]
    wide = _split_heads(widen(grad), groups)
    inner = jnp.sum(wide * _split_heads(widen(output), groups), axis=-1)
    saved = Saved(wide, _split_heads(log_sum[..., None], groups)[..., 0], inner)
    by_query, by_key, by_value = _backward(h, saved)
    return (
        _join_heads(by_query).astype(query.dtype),
        by_key.astype(key.dtype),
        by_value.astype(value.dtype),
    )


@op(aten._safe_softmax.default, kind=Kind.NORMALISATION, work=per_element(flops=5, transcendental=1))
def safe_softmax(x: Array, dim: int, dtype: DType | None = None, *, out: TensorType) -> Array:
    """Softmax whose rows of nothing but -inf are 0."""
    x = widen(x if dtype is None else cast(x, dtype))
    weights = jnp.exp(x - _finite(jnp.max(x, axis=dim, keepdims=True, initial=-jnp.inf)))
    total = jnp.sum(weights, axis=dim, keepdims=True)
    return narrow(weights / jnp.where(total == 0, 1, total), out)
