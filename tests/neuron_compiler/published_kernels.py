"""Kernels as textbooks write them, for the tests of kernels: a product, softmax, layer norm, attention."""

from __future__ import annotations

import math

from neuron_compiler.ir.graph import DType
from neuron_compiler.ir.kernel import Engine, Kernel
from neuron_compiler.trainium.builder import KernelBuilder, ds

F32 = DType.F32


def matmul(m: int, k: int, n: int, dtype: DType = DType.BF16, target: str = "trn2", columns: int = 512) -> Kernel:
    """x [m, k] times w [k, n], in tiles of 128 by 128 by ``columns``; extents are multiples of them."""
    b = KernelBuilder("matmul", target)
    x, w = b.input("x", dtype, (m, k)), b.input("w", dtype, (k, n))
    y = b.output("y", F32, (m, n))
    xt = x.permuted(1, 0)
    with b.loop("i", m // 128) as i, b.loop("j", n // columns) as j:
        acc = b.psum("acc", F32, (128, columns), copies=2)
        with b.loop("c", k // 128, sequential=True) as c:
            stationary = b.sbuf("stationary", dtype, (128, 128), copies=2)
            moving = b.sbuf("moving", dtype, (128, columns), copies=2)
            b.dma_copy(stationary, xt[ds(128 * c, 128), ds(128 * i, 128)])
            b.dma_copy(moving, w[ds(128 * c, 128), ds(columns * j, columns)])
            b.nc_matmul(acc, stationary, moving, accumulate=c)
        out = b.sbuf("out", F32, (128, columns), copies=2)
        b.tensor_copy(out, acc)
        b.dma_copy(y[ds(128 * i, 128), ds(columns * j, columns)], out)
    return b.build()


def softmax(rows: int, columns: int) -> Kernel:
    """Over the last dimension of x [rows, columns]; rows a multiple of 128, or fewer."""
    b = KernelBuilder("softmax")
    x, y = b.input("x", F32, (rows, columns)), b.output("y", F32, (rows, columns))
    height = min(rows, 128)
    with b.loop("i", rows // height) as i:
        tile = b.sbuf("tile", F32, (height, columns), copies=2)
        least, total = b.sbuf("least", F32, (height, 1)), b.sbuf("total", F32, (height, 1))
        b.dma_copy(tile, x[ds(height * i, height), :])
        b.tensor_reduce(least, tile, op="max", negate=True)
        b.activation(tile, tile, 1.0, least, also=total, op="exp", reduce_op="add")
        b.reciprocal(total, total)
        b.tensor_scalar(tile, tile, total, op0="multiply")
        b.dma_copy(y[ds(height * i, height), :], tile)
    return b.build()


def layer_norm(rows: int, columns: int, eps: float = 1e-5) -> Kernel:
    """Of x [rows, columns] with weight and bias [columns]; rows a multiple of 128, columns of 512."""
    b = KernelBuilder("layer_norm")
    x, y = b.input("x", F32, (rows, columns)), b.output("y", F32, (rows, columns))
    weight, bias = b.input("weight", F32, (columns,)), b.input("bias", F32, (columns,))
    w, c = b.sbuf("w", F32, (128, columns)), b.sbuf("c", F32, (128, columns))
    b.dma_copy(w, weight.viewed((128, columns), (0, 1)))
    b.dma_copy(c, bias.viewed((128, columns), (0, 1)))
    with b.loop("i", rows // 128) as i:
        tile = b.sbuf("tile", F32, (128, columns), copies=2)
        stats, moments = b.sbuf("stats", F32, (128, columns // 512 * 6)), b.sbuf("moments", F32, (128, 2))
        scale = b.sbuf("scale", F32, (128, 1))
        b.dma_copy(tile, x[ds(128 * i, 128), :])
        with b.loop("s", columns // 512) as s:
            b.bn_stats(stats[:, ds(6 * s, 6)], tile[:, ds(512 * s, 512)])
        b.bn_aggr(moments, stats)
        b.tensor_scalar(scale, moments[:, 1:2], eps, -0.5, op0="add", op1="power")
        b.tensor_scalar(tile, tile, moments[:, 0:1], scale, op0="subtract", op1="multiply")
        b.tensor_tensor(tile, tile, w, op="multiply")
        b.tensor_tensor(tile, tile, c, op="add")
        b.dma_copy(y[ds(128 * i, 128), :], tile)
    return b.build()


def causal_attention(length: int, width: int) -> Kernel:
    """One head, q, k and v [length, width], online softmax over the blocks of 128 keys up to the query's own."""
    b = KernelBuilder("attention")
    q, k, v = (b.input(name, F32, (length, width)) for name in "qkv")
    y = b.output("y", F32, (length, width))
    with b.loop("i", length // 128) as i:
        queries = b.sbuf("queries", F32, (width, 128), copies=2)
        b.dma_copy(queries, q.permuted(1, 0)[:, ds(128 * i, 128)])
        out, top, total = (
            b.sbuf("out", F32, (128, width)),
            b.sbuf("top", F32, (128, 1)),
            b.sbuf("total", F32, (128, 1)),
        )
        b.memset(out, 0.0)
        b.memset(top, -3e38)
        b.memset(total, 0.0)
        with b.loop("j", i + 1, sequential=True) as j:
            keys, values = b.sbuf("keys", F32, (width, 128), copies=2), b.sbuf("values", F32, (128, width), copies=2)
            scores, weighted = b.psum("scores", F32, (128, 128)), b.psum("weighted", F32, (128, width))
            share, turned = b.sbuf("share", F32, (128, 128)), b.psum("turned", F32, (128, 128))
            new, factor, part = (b.sbuf(name, F32, (128, 1)) for name in ("new", "factor", "part"))
            b.dma_copy(keys, k.permuted(1, 0)[:, ds(128 * j, 128)])
            b.dma_copy(values, v[ds(128 * j, 128), :])
            b.nc_matmul(scores, queries, keys)
            b.activation(share, scores, 1 / math.sqrt(width), op="copy")
            # Keep where the query's place is not before the key's: 128 i + p - (128 j + n) >= 0.
            b.affine_select(
                share,
                share,
                -3e38,
                steps=(-1,),
                offset=128 * i - 128 * j,
                channel_multiplier=1,
                cmp_op="greater_equal",
            )
            b.tensor_reduce(new, share, op="max")
            b.tensor_tensor(new, new, top, op="maximum")
            b.tensor_tensor(factor, top, new, op="subtract")
            b.activation(factor, factor, op="exp")
            b.tensor_scalar(new, new, -1.0, op0="multiply")
            b.tensor_scalar(top, new, -1.0, op0="multiply")
            b.activation(share, share, 1.0, new, also=part, op="exp", reduce_op="add")
            b.scalar_tensor_tensor(total, total, factor, part, op0="multiply", op1="add")
            b.nc_transpose(turned, share)
            b.tensor_copy(share, turned, engine=Engine.SCALAR)
            b.nc_matmul(weighted, share, values)
            b.scalar_tensor_tensor(out, out, factor, weighted, op0="multiply", op1="add")
        b.reciprocal(total, total)
        b.tensor_scalar(out, out, total, op0="multiply")
        b.dma_copy(y[ds(128 * i, 128), :], out)
    return b.build()
