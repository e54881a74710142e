"""Kernels run instruction by instruction: published loop nests against PyTorch, published arithmetic to the bit."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from published_kernels import causal_attention, layer_norm, matmul, softmax
from torch.testing import assert_close

import neuron_compiler
from neuron_compiler.dtypes import to_numpy, to_torch
from neuron_compiler.errors import OptionsError, RuntimeFault
from neuron_compiler.ir.graph import DType
from neuron_compiler.ir.kernel import Engine, Kernel
from neuron_compiler.trainium import isa
from neuron_compiler.trainium.builder import KernelBuilder, ds
from neuron_compiler.trainium.execute.alu import BINARY, REDUCE, UNARY
from neuron_compiler.trainium.execute.instructions import COMPUTE
from neuron_compiler.trainium.execute.storing import Rounding

F32, I32 = DType.F32, DType.I32


def on_a_tile(
    shape: tuple[int, int], dtype: DType, *instructions: tuple[str, tuple, dict], out=None, to=None
) -> Kernel:
    """Loads x, runs instructions on ``s`` and ``d`` by name, and stores d."""
    b = KernelBuilder("one")
    x = b.input("x", dtype, shape)
    y = b.output("y", to or dtype, out or shape)
    tiles = {"s": b.sbuf("s", dtype, shape), "d": b.sbuf("d", to or dtype, out or shape)}
    b.dma_copy(tiles["s"], x)
    for opcode, operands, attrs in instructions:
        getattr(b, opcode)(*(tiles.get(o, o) if isinstance(o, str) else o for o in operands), **attrs)
    b.dma_copy(y, tiles["d"])
    return b.build()


# Published loop nests


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16, F32, DType.F8E5M2], ids=lambda d: d.value)
def test_a_product(dtype: DType) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(256, 384).to(to_torch(dtype)), torch.randn(384, 512).to(to_torch(dtype))
    y = neuron_compiler.run_kernel(matmul(256, 384, 512, dtype), x, w)
    assert_close(y, (x.double() @ w.double()).float(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("rows", [256, 77])
def test_softmax(rows: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(rows, 300) * 5
    assert_close(neuron_compiler.run_kernel(softmax(rows, 300), x), x.softmax(-1))


def test_layer_norm() -> None:
    torch.manual_seed(0)
    x, w, c = torch.randn(256, 1024) * 3 + 1, torch.randn(1024), torch.randn(1024)
    assert_close(neuron_compiler.run_kernel(layer_norm(256, 1024), x, w, c), F.layer_norm(x, (1024,), w, c))


def test_causal_attention() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(384, 64) for _ in range(3))
    wanted = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
    assert_close(neuron_compiler.run_kernel(causal_attention(384, 64), q, k, v), wanted, rtol=1e-4, atol=1e-5)


# Published arithmetic


def additions(dtype: DType, count: int) -> Kernel:
    b = KernelBuilder("additions")
    x, y = b.input("x", dtype, (128, 8)), b.output("y", dtype, (128, 8))
    s = b.sbuf("s", dtype, (128, 8))
    b.dma_copy(s, x)
    with b.loop("n", count, sequential=True):
        b.tensor_scalar(s, s, 0.5, op0="add")
    b.dma_copy(y, s)
    return b.build()


def test_many_small_additions_to_fp16() -> None:
    """The vendor's example: 2048 times 0.5 added to 1024 leave 1024 under nearest; stochastically the mean is right."""
    kernel, x = additions(DType.F16, 2048), torch.full((128, 8), 1024.0, dtype=torch.float16)
    assert torch.equal(neuron_compiler.run_kernel(kernel, x), x)
    found = torch.stack(
        [neuron_compiler.run_kernel(kernel, x, rounding="stochastic", seed=seed, verify=False) for seed in range(3)]
    ).double()
    assert abs(found.mean() - 2048) < 4 * found.std() / found.numel() ** 0.5
    # Each addition is at the middle of two neighbours: up or down by chance, 1 or 2 apart.
    assert found.std() > 10


def test_the_seed_decides_what_is_drawn() -> None:
    kernel, x = additions(DType.F16, 64), torch.full((128, 8), 1024.0, dtype=torch.float16)
    a, b, c = (neuron_compiler.run_kernel(kernel, x, rounding="stochastic", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16, DType.F8E4M3, DType.F8E5M2], ids=lambda d: d.value)
def test_stochastic_rounding_takes_a_neighbour_by_its_distance(dtype: DType) -> None:
    target = to_numpy(dtype)
    for low, high in ((1.0, None), (-1.0, None), (0.0, None), (2.0**-6, None)):
        bits = np.array([low], np.float32).astype(target).view(f"u{target.itemsize}")
        high = float((bits + 1).astype(bits.dtype).view(target).astype(np.float32)[0])
        x = np.full(20000, low + 0.25 * (high - low), np.float32)
        found = Rounding(True, 0)(x, dtype).astype(np.float64)
        assert set(np.unique(found)) == {low, high}
        assert abs((found == high).mean() - 0.25) < 0.02
    exact = np.array([0, 1, -2, np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(Rounding(True, 0)(exact, dtype).astype(np.float32), exact)


def test_e4m3_ends_at_240() -> None:
    kernel = on_a_tile((1, 8), F32, ("tensor_copy", ("d", "s"), {}), to=DType.F8E4M3)
    x = torch.tensor([[240.0, 247.9, 248.0, 300.0, -500.0, 1.0625, 2.0**-9, float("nan")]])
    y = neuron_compiler.run_kernel(kernel, x)
    inf = float("inf")
    wanted = torch.tensor([[240.0, 240.0, inf, inf, -inf, 1.0, 2.0**-9, float("nan")]])
    assert_close(y, wanted, rtol=0, atol=0, equal_nan=True)


def test_tf32_keeps_ten_bits() -> None:
    kernel = on_a_tile((1, 4), F32, ("tensor_copy", ("d", "s"), {}), to=DType.TF32)
    x = torch.tensor([[1 + 2**-10, 1 + 2**-11, 1 + 3 * 2**-11, -(1 + 2**-11 + 2**-20)]])
    wanted = torch.tensor([[1 + 2**-10, 1.0, 1 + 2**-9, -(1 + 2**-10)]])
    assert torch.equal(neuron_compiler.run_kernel(kernel, x), wanted)


def test_a_bf16_product_is_exact_where_its_sums_are() -> None:
    """Whole numbers whose sums stay below 2**24, over three contraction tiles: no order of additions matters."""
    g = np.random.default_rng(0)
    x, w = (g.integers(-8, 9, shape).astype(ml_dtypes.bfloat16) for shape in ((128, 384), (384, 512)))
    wanted = x.astype(np.float64) @ w.astype(np.float64)
    to_torch = [torch.from_numpy(a.astype(np.float32)).bfloat16() for a in (x, w)]
    y = neuron_compiler.run_kernel(matmul(128, 384, 512), *to_torch)
    np.testing.assert_array_equal(y.numpy(), wanted)


def test_contraction_tiles_are_added_in_order() -> None:
    """2**24 + 1 - 2**24 in fp32 is 0 in this order, and 1 in another."""
    x = torch.zeros(128, 384)
    x[:, 0], x[:, 128], x[:, 256] = 2.0**24, 1.0, -(2.0**24)
    y = neuron_compiler.run_kernel(matmul(128, 384, 512, F32), x, torch.ones(384, 512))
    assert (y == 0).all()


def test_psum_holds_fp32_between_tiles_of_bf16() -> None:
    x = torch.zeros(128, 256, dtype=torch.bfloat16)
    x[:, 0], x[:, 128] = 256.0, 1.0
    y = neuron_compiler.run_kernel(matmul(128, 256, 512), x, torch.ones(256, 512, dtype=torch.bfloat16))
    assert (y == 257).all()  # which bfloat16 has not


def test_double_row_contracts_two_rows_a_partition() -> None:
    b = KernelBuilder("double")
    x, w = b.input("x", DType.F8E5M2, (128, 2, 64)), b.input("w", DType.F8E5M2, (128, 2, 32))
    y = b.output("y", F32, (64, 32))
    xs, ws = b.sbuf("xs", DType.F8E5M2, (128, 2, 64)), b.sbuf("ws", DType.F8E5M2, (128, 2, 32))
    acc, out = b.psum("acc", F32, (64, 32)), b.sbuf("out", F32, (64, 32))
    b.dma_copy(xs, x)
    b.dma_copy(ws, w)
    b.nc_matmul(acc, xs, ws, performance_mode="double_row")
    b.tensor_copy(out, acc)
    b.dma_copy(y, out)
    torch.manual_seed(0)
    given = [torch.randn(128, 2, n).to(torch.float8_e5m2) for n in (64, 32)]
    wanted = torch.einsum("pkm,pkn->mn", *(t.double() for t in given)).float()
    assert_close(neuron_compiler.run_kernel(b.build(), *given), wanted)


@pytest.mark.parametrize("engine", [Engine.VECTOR, Engine.GPSIMD], ids=lambda e: e.value)
def test_whole_numbers_are_exact_on_gpsimd_alone(engine: Engine) -> None:
    kernel = on_a_tile((1, 2), I32, ("tensor_scalar", ("d", "s", 1), {"op0": "add", "engine": engine}))
    y = neuron_compiler.run_kernel(kernel, torch.tensor([[2**24, 7]], dtype=torch.int32))
    assert y.tolist() == [[2**24 + (engine is Engine.GPSIMD), 8]]


def test_bits_of_whole_numbers() -> None:
    kernel = on_a_tile((1, 3), I32, ("tensor_scalar", ("d", "s", 3, 1), {"op0": "bitwise_and", "op1": "left_shift"}))
    assert neuron_compiler.run_kernel(kernel, torch.tensor([[5, -1, 2**30 + 2]], dtype=torch.int32)).tolist() == [
        [2, 6, 4]
    ]
    floats = on_a_tile((1, 2), F32, ("tensor_scalar", ("d", "s", 3), {"op0": "bitwise_and"}))
    with pytest.raises(RuntimeFault, match="bitwise_and takes whole numbers"):
        neuron_compiler.run_kernel(floats, torch.ones(1, 2))


def test_floats_become_whole_numbers_to_nearest_within_range() -> None:
    kernel = on_a_tile((1, 6), F32, ("tensor_copy", ("d", "s"), {}), to=DType.I8)
    x = torch.tensor([[0.5, 1.5, -2.6, 300.0, -300.0, float("nan")]])
    assert neuron_compiler.run_kernel(kernel, x).tolist() == [[0, 2, -3, 127, -128, 0]]


# Single instructions


def test_every_instruction_can_be_executed() -> None:
    assert set(COMPUTE) == set(isa.SPECS)
    assert set(BINARY) == set(isa.ALU_OPS)
    assert set(UNARY) == set(isa.ACTIVATIONS)
    assert set(REDUCE) == set(isa.REDUCTIONS)


FUNCTIONS = {
    "gelu": F.gelu,
    "gelu_apprx_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
    "mish": F.mish,
    "erf": torch.erf,
    "relu": F.relu,
    "tanh": torch.tanh,
    "sin": torch.sin,
    "arctan": torch.atan,
    "exp": torch.exp,
    "square": torch.square,
    "abs": torch.abs,
    "sign": torch.sign,
    "copy": lambda x: x,
}
OF_POSITIVES = {"sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "log": torch.log, "reciprocal": torch.reciprocal}
DERIVATIVES = {"gelu_dx": F.gelu, "silu_dx": F.silu, "erf_dx": torch.erf}


@pytest.mark.parametrize("op", isa.ACTIVATIONS)
def test_functions_of_the_scalar_engine(op: str) -> None:
    x = torch.linspace(-4, 4, 128 * 4).reshape(128, 4)
    if op in OF_POSITIVES:
        x = x.abs() + 0.1
    kernel = on_a_tile((128, 4), F32, ("activation", ("d", "s"), {"op": op}))
    if op in DERIVATIVES:
        x.requires_grad_()
        (wanted,) = torch.autograd.grad(DERIVATIVES[op](x).sum(), x)
    else:
        wanted = {**FUNCTIONS, **OF_POSITIVES}[op](x)
    assert_close(neuron_compiler.run_kernel(kernel, x.detach()), wanted, rtol=2e-6, atol=1e-6)


def test_activation_scales_shifts_and_sums() -> None:
    b = KernelBuilder("one")
    x, shift = b.input("x", F32, (16, 8)), b.input("shift", F32, (16, 1))
    y, total = b.output("y", F32, (16, 8)), b.output("total", F32, (16, 1))
    s, c, r = b.sbuf("s", F32, (16, 8)), b.sbuf("c", F32, (16, 1)), b.sbuf("r", F32, (16, 1))
    b.dma_copy(s, x)
    b.dma_copy(c, shift)
    b.activation(s, s, 2.0, c, also=r, op="square", reduce_op="add")
    b.dma_copy(y, s)
    b.dma_copy(total, r)
    torch.manual_seed(0)
    given = torch.randn(16, 8), torch.randn(16, 1)
    wanted = (2 * given[0] + given[1]) ** 2
    found = neuron_compiler.run_kernel(b.build(), *given)
    assert_close(found, (wanted, wanted.sum(1, keepdim=True)))


def test_statistics_of_odd_and_even_places() -> None:
    kernel = on_a_tile((1, 5), F32, ("bn_stats", ("d", "s"), {}), out=(1, 6))
    found = neuron_compiler.run_kernel(kernel, torch.tensor([[1.0, 10.0, 2.0, 20.0, 6.0]]))
    assert found.tolist() == [[3, 3, 14, 2, 15, 50]]


def test_the_eight_largest_where_they_stand_and_taken_out() -> None:
    b = KernelBuilder("top")
    x = b.input("x", F32, (2, 12))
    values, places, rest = (
        b.output("values", F32, (2, 8)),
        b.output("places", DType.U32, (2, 8)),
        b.output("rest", F32, (2, 12)),
    )
    s, v, p = b.sbuf("s", F32, (2, 12)), b.sbuf("v", F32, (2, 8)), b.sbuf("p", DType.U32, (2, 8))
    b.dma_copy(s, x)
    b.max8(v, s)
    b.nc_find_index8(p, s, v)
    b.nc_match_replace8(s, s, v, -9.0)
    for out, tile in ((values, v), (places, p), (rest, s)):
        b.dma_copy(out, tile)
    x = torch.tensor([[3.0, 1, 3, 0, 5, 4, 2, 7, 6, 8, 9, 3], list(range(12))])
    top, at, left = neuron_compiler.run_kernel(b.build(), x)
    assert top.tolist() == [[9, 8, 7, 6, 5, 4, 3, 3], [11, 10, 9, 8, 7, 6, 5, 4]]
    assert at.tolist() == [[10, 9, 7, 8, 4, 5, 0, 2], [11, 10, 9, 8, 7, 6, 5, 4]]
    assert left.tolist() == [[-9, 1, -9, 0, -9, -9, 2, -9, -9, -9, -9, 3], [0, 1, 2, 3, *[-9] * 8]]


def test_scan_select_and_patterns() -> None:
    scan = on_a_tile((2, 4), F32, ("tensor_tensor_scan", ("d", "s", "s", 1.0), {"op0": "multiply", "op1": "add"}))
    assert neuron_compiler.run_kernel(scan, torch.tensor([[1.0, 2, 3, 4], [0, 0, 1, 2]])).tolist() == [
        [2, 6, 21, 88],
        [0, 0, 1, 4],
    ]
    lower = {"steps": (-1,), "channel_multiplier": 1, "cmp_op": "greater_equal"}
    kernel = on_a_tile((3, 4), F32, ("affine_select", ("d", "s", -1.0), lower))
    x = torch.arange(12.0).reshape(3, 4)
    assert torch.equal(neuron_compiler.run_kernel(kernel, x), torch.where(torch.ones(3, 4).tril() > 0, x, -1.0))
    counting = {"steps": (2,), "channel_multiplier": 10, "offset": 3}
    kernel = on_a_tile((2, 3), I32, ("iota", ("d",), counting))
    assert neuron_compiler.run_kernel(kernel, torch.zeros(2, 3, dtype=torch.int32)).tolist() == [
        [3, 5, 7],
        [13, 15, 17],
    ]


def embedding(rows: int, scatter: bool) -> Kernel:
    b = KernelBuilder("rows")
    table, index = b.input("table", F32, (10, 4)), b.input("index", DType.I64, (rows,))
    at, s = b.sbuf("at", I32, (rows, 1)), b.sbuf("s", F32, (rows, 4))
    b.dma_copy(at, index.viewed((rows, 1), (2, 1), dtype=I32))  # the low halves
    if not scatter:
        y = b.output("y", F32, (rows, 4))
        b.dma_gather(s, table, at)
        b.dma_copy(y, s)
        return b.build()
    y = b.output("y", F32, (10, 4))
    b.dma_copy(y, table)
    b.memset(s, 1.0)
    b.dma_scatter(y, s, at, accumulate=1)
    return b.build()


def test_rows_by_index() -> None:
    torch.manual_seed(0)
    table, index = torch.randn(10, 4), torch.tensor([9, 0, 9, 3])
    assert torch.equal(neuron_compiler.run_kernel(embedding(4, False), table, index), table[index])
    wanted = table.clone().index_add_(0, index, torch.ones(4, 4))
    assert_close(neuron_compiler.run_kernel(embedding(4, True), table, index), wanted)
    with pytest.raises(RuntimeFault, match="row 10 is outside of a table of 10"):
        neuron_compiler.run_kernel(embedding(4, False), table, index + 1)


def test_transposes() -> None:
    b = KernelBuilder("transposes")
    x = b.input("x", DType.BF16, (32, 16))
    outs = [b.output(f"y{i}", DType.BF16, (16, 32)) for i in range(3)]
    s = b.sbuf("s", DType.BF16, (32, 16))
    p, v, d, c = (
        b.psum("p", DType.BF16, (16, 32)),
        *(b.sbuf(name, DType.BF16, (16, 32)) for name in ("v", "d", "c")),
    )
    b.dma_copy(s, x)
    b.nc_transpose(p, s)
    b.tensor_copy(c, p)
    b.nc_transpose(v, s, engine=Engine.VECTOR)
    b.dma_transpose(d, x)
    for out, tile in zip(outs, (c, v, d), strict=True):
        b.dma_copy(out, tile)
    x = torch.randn(32, 16).bfloat16()
    x[3, 4] = float("nan")
    for y in neuron_compiler.run_kernel(b.build(), x):
        assert_close(y, x.t(), rtol=0, atol=0, equal_nan=True)


# Use


def test_text_and_wrong_tensors() -> None:
    kernel = softmax(4, 8)
    x = torch.randn(4, 8)
    assert torch.equal(neuron_compiler.run_kernel(str(kernel), x), neuron_compiler.run_kernel(kernel, x))
    with pytest.raises(RuntimeFault, match="takes 1 inputs, and 2 are given"):
        neuron_compiler.run_kernel(kernel, x, x)
    with pytest.raises(RuntimeFault, match="%x is f32, and a tensor of torch.float64 is given"):
        neuron_compiler.run_kernel(kernel, x.double())
    with pytest.raises(RuntimeFault, match=r"%x is f32\[4,8\], and an array of float32\[8, 4\] is given"):
        neuron_compiler.run_kernel(kernel, x.t())
    with pytest.raises(OptionsError, match="rounding cannot be 'up'"):
        neuron_compiler.run_kernel(kernel, x, rounding="up")


def test_what_is_not_written_is_not_a_number() -> None:
    b = KernelBuilder("holes")
    y = b.output("y", F32, (2, 4))
    s = b.sbuf("s", F32, (2, 4))
    with b.loop("i", 2) as i:
        t = b.sbuf("t", F32, (2, 4))
        b.memset(t[:, ds(i, 1)], 1.0)
        b.tensor_copy(s, t)
    b.dma_copy(y, s)
    found = neuron_compiler.run_kernel(b.build(verify=False), verify=False)
    assert_close(found, torch.tensor([[float("nan"), 1, float("nan"), float("nan")]] * 2), equal_nan=True)
