"""Attention in one pass over the keys: scores of a block, softmax of what was seen so far, its share of the values.

For each tile of queries a running maximum, a running sum and a running result are kept; a block of keys that raises
the maximum scales the others down. The scores never reach HBM.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from math import inf

from neuron_compiler.ir.graph import DType
from neuron_compiler.ir.kernel import Access, affine
from neuron_compiler.lowering.kernels.emission import Emission, Env, Span
from neuron_compiler.lowering.kernels.index_maps import NoKernel
from neuron_compiler.lowering.kernels.nodes import Node
from neuron_compiler.lowering.kernels.products import matrix
from neuron_compiler.trainium.builder import Ref

F32 = DType.F32
LEAST = -3.4028234663852886e38
"""The least float, where a maximum begins: a difference of it is a number, also from minus infinity."""


@dataclass(frozen=True)
class Running:
    """What a tile of queries has seen so far: the largest score, the sum of exponentials, and the weighted values."""

    top: Ref
    total: Ref
    out: Ref


def emit_attention(e: Emission, node: Node, env: Env) -> Ref:
    """One tile of queries."""
    key, width = str(node.attrs[1]), str(node.attrs[2])
    if e.space.extents[width] > e.partitions:
        raise NoKernel("heads wider than the array")
    column = e.shape(False, env)
    seen = Running(e.b.sbuf("top", F32, column), e.b.sbuf("total", F32, column), e.new(node, env, full=True))
    for tile, start in ((seen.top, LEAST), (seen.total, 0.0), (seen.out, 0.0)):
        e.b.memset(tile, start)
    whole = Span(affine(0), e.space.extents[width])
    queries = matrix(e, node.args[0], {**env, width: whole}, width, _rows(e))
    block = min(e.space.extents[key], e.partitions)
    count, rest = divmod(e.space.extents[key], block)
    with e.b.loop(key, count, sequential=True) if count > 1 else nullcontext(affine(0)) as i:
        _block(e, node, {**env, width: whole, key: Span(i * block, block)}, queries, seen)
    if rest:
        _block(e, node, {**env, width: whole, key: Span(affine(count * block), rest)}, queries, seen)
    # A row that sees no key at all has a sum of 0, and is 0; any other sum is at least 1.
    e.b.tensor_scalar(seen.total, seen.total, 0.5, op0="maximum")
    e.b.reciprocal(seen.total, seen.total)
    e.b.tensor_scalar(seen.out, seen.out, seen.total, op0="multiply")
    return seen.out


def _rows(e: Emission) -> tuple[str, ...]:
    return () if e.space.partition is None else (e.space.partition,)


def _block(e: Emission, node: Node, env: Env, queries: Access, seen: Running) -> None:
    """The keys and values of one block."""
    b, (query, key, width, scale, causal) = e.b, node.attrs
    query, key, width, (height, _) = str(query), str(key), str(width), e.shape(False, env)
    length = env[key].size
    scores, share = b.psum("scores", F32, (height, length)), b.sbuf("share", F32, (height, length))
    b.nc_matmul(scores, queries, matrix(e, node.args[1], env, width, (key,)))
    b.activation(share, scores, scale, op="copy")
    if len(node.args) > 3:
        mask = e.within(e.space.partition, (key,), {key: length}).tile(node.args[3], env, {}, full=True)
        b.tensor_tensor(share, share, mask, op="add")
    if causal:  # the query's place is not before the key's
        first = (env[query].start if query else 0) - env[key].start
        pattern = {"steps": (-1,), "offset": first, "channel_multiplier": 1, "cmp_op": "greater_equal"}
        b.affine_select(share, share, -inf, **pattern)
    new, factor, part = (b.sbuf(name, F32, (height, 1)) for name in ("new", "factor", "part"))
    b.tensor_reduce(new, share, op="max")
    b.tensor_tensor(new, new, seen.top, op="maximum")
    b.tensor_tensor(factor, seen.top, new, op="subtract")
    b.activation(factor, factor, op="exp")
    b.tensor_copy(seen.top, new)
    b.tensor_scalar(new, new, -1.0, op0="multiply")
    b.activation(share, share, 1.0, new, also=part, op="exp", reduce_op="add")
    b.scalar_tensor_tensor(seen.total, seen.total, factor, part, op0="multiply", op1="add")
    values = matrix(e, node.args[2], env, key, e.space.free)
    dtype = e.dag[node.args[2]].dtype
    if dtype is not F32:
        narrow = b.sbuf("narrow", dtype, (height, length))
        b.tensor_copy(narrow, share)
        share = narrow
    turned, weights = b.psum("turned", dtype, (length, height)), b.sbuf("weights", dtype, (length, height))
    b.nc_transpose(turned, share)
    b.tensor_copy(weights, turned)
    weighted = b.psum("weighted", F32, (height, values.free))
    b.nc_matmul(weighted, weights, values)
    b.scalar_tensor_tensor(seen.out, seen.out, factor, weighted, op0="multiply", op1="add")
