"""Kernels of groups: what a function computes tile by tile is what PyTorch computes, for extents that fill no tile."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from groups_by_torch import captured, differences, evaluated
from torch.testing import assert_close

from neuron_compiler.ir import text
from neuron_compiler.ir.graph import DType
from neuron_compiler.ir.kernel import Affine, Instruction, Loop, affine, statements
from neuron_compiler.lowering.kernels import NoKernel, kernel_of
from neuron_compiler.lowering.kernels.index_maps import Split, flat, unflat

aten = torch.ops.aten
BF16 = torch.bfloat16
TOLERANCE = {torch.float32: (1e-4, 1e-5), torch.bfloat16: (2e-2, 2e-2), torch.float16: (2e-3, 2e-3)}


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(shape) * 0.5).to(dtype)


def check(function: Callable[..., Any], *inputs: torch.Tensor) -> list[str]:
    """Every group of a function has a kernel that gives PyTorch's values; the opcodes of all of them."""
    program = captured(function, *inputs)
    graph = program.graph
    # Dynamo takes inputs in the order of their use.
    given = dict(zip(inspect.signature(function).parameters, inputs, strict=True))
    values = evaluated(graph, {i.name: given[i.origin] for i in graph.inputs})
    opcodes: list[str] = []
    for group in program.plan.groups:
        for name, found, wanted in differences(program, group, values):
            assert found.dtype == wanted.dtype, name
            rtol, atol = TOLERANCE.get(wanted.dtype, (0, 0))
            assert_close(found, wanted, rtol=rtol, atol=atol, msg=lambda m, name=name: f"{name}: {m}")
        kernel = kernel_of(program, group)
        opcodes += [s.opcode for s in statements(kernel.body) if isinstance(s, Instruction)]
    return opcodes


def mlp(x: torch.Tensor, w1: torch.Tensor, b1: torch.Tensor, w2: torch.Tensor) -> torch.Tensor:
    return F.linear(F.gelu(F.linear(x, w1, b1)), w2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("batch", [1, 7])
def test_mlp(batch: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    given = [rand(batch, 33, 200), rand(700, 200) / 8, rand(700), rand(130, 700) / 16]
    check(mlp, *(t.to(dtype) for t in given))


def test_swiglu() -> None:
    torch.manual_seed(0)
    check(
        lambda x, a, b, c: F.linear(F.silu(F.linear(x, a)) * F.linear(x, b), c),
        rand(7, 130, 96), rand(300, 96) / 8, rand(300, 96) / 8, rand(96, 300) / 8,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_norms(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, w, b = rand(7, 45, 130, dtype=dtype) + 1, rand(130, dtype=dtype), rand(130, dtype=dtype)
    check(lambda x, w, b: F.layer_norm(x, (130,), w, b), x, w, b)
    check(lambda x, w: F.rms_norm(x, (130,), w, 1e-6), x, w)
    check(lambda x: x.softmax(-1), x)
    check(lambda x: x.softmax(1), x)
    check(lambda x: x.log_softmax(-1), x)


def test_a_row_that_fits_no_tile() -> None:
    """It is read in parts: once for its sums, once for its results."""
    torch.manual_seed(0)
    check(lambda x, w: F.layer_norm(x, (30001,), w), rand(3, 30001), rand(30001))
    check(lambda x: x.softmax(-1), rand(2, 40000))


ATTENTION = {
    "causal": (2, 3, 197, 197, 64, {"is_causal": True}),
    "long": (1, 2, 1000, 1000, 32, {}),
    "cross": (2, 2, 130, 77, 64, {"scale": 0.3}),
    "one query": (2, 2, 1, 300, 64, {}),
    "causal rectangle": (1, 2, 150, 260, 32, {"is_causal": True}),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name: str) -> None:
    torch.manual_seed(0)
    batch, heads, queries, keys, width, options = ATTENTION[name]
    q, k, v = rand(batch, heads, queries, width), rand(batch, heads, keys, width), rand(batch, heads, keys, width)
    opcodes = check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options), q, k, v)
    assert "nc_matmul" in opcodes


def test_attention_with_shared_heads_and_a_mask() -> None:
    torch.manual_seed(0)
    mask = torch.rand(2, 1, 130, 130) > 0.4
    mask[0, 0, 5] = False  # a row that sees no key is 0

    def f(x: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q = x.view(2, 130, 4, 32).transpose(1, 2)
        k, v = (t[:, :, None].expand(2, 2, 2, 130, 32).reshape(2, 4, 130, 32) for t in (k, v))
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=torch.where(mask, 0.0, float("-inf")))
        return found.transpose(1, 2).reshape(2, 130, 128)

    check(f, rand(2, 130, 128), rand(2, 2, 130, 32), rand(2, 2, 130, 32), mask)


CONVOLUTIONS = {
    "3x3": (5, (7, 5, 3, 3), {"padding": 1}),
    "stride": (5, (130, 5, 3, 3), {"stride": 2, "padding": 1}),
    "1x1 stride": (130, (9, 130, 1, 1), {"stride": 2}),
    "dilation": (4, (6, 4, 3, 2), {"dilation": (2, 3), "padding": (2, 1)}),
    "channel by channel": (9, (9, 1, 3, 3), {"groups": 9, "padding": 1}),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str) -> None:
    torch.manual_seed(0)
    channels, filters, options = CONVOLUTIONS[name]
    check(
        lambda x, w, b: F.relu(F.conv2d(x, w, b, **options)),
        rand(2, channels, 17, 21),
        rand(*filters),
        rand(filters[0]),
    )


def test_convolutions_of_one_dimension_and_pools() -> None:
    torch.manual_seed(0)
    check(lambda x, w: F.conv1d(x, w, stride=2, padding=3), rand(2, 5, 40), rand(6, 5, 4))
    check(lambda x: F.max_pool2d(x, 3, 2, 1), rand(2, 5, 17, 16))
    check(lambda x: F.pad(x, (1, 2, 0, 3), value=0.5) + 1, rand(2, 5, 9))
    check(
        lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b),
        rand(2, 5, 9, 4),
        rand(5),
        rand(5).abs() + 1,
        rand(5),
        rand(5),
    )


def test_embedding() -> None:
    torch.manual_seed(0)
    check(lambda w, i: F.embedding(i, w) * 2, rand(40, 130), torch.randint(0, 40, (3, 50)))
    check(lambda w, i: w[i] + 1, rand(40, 13), torch.randint(-40, 40, (50,)))
    check(lambda w, i, j: w[i, j] + 1, rand(40, 13), torch.randint(0, 40, (50, 1)), torch.randint(-13, 13, (1, 1)))
    check(lambda n, i: n[i], torch.arange(20) * 5, torch.randint(0, 20, (1, 1, 30)))
    check(lambda w, i: w.index_select(0, i), rand(9, 4, 5), torch.randint(0, 9, (7,)))
    check(lambda w, i: (w * 2)[i] + 1, rand(40, 13), torch.randint(0, 40, (50,)))


def test_views_are_read_through() -> None:
    torch.manual_seed(0)
    x = rand(6, 4, 10)
    check(lambda x: (x.permute(2, 0, 1).reshape(10, 24)[::3, 4:] + 1).flip(0), x)
    check(lambda x: torch.cat([x[:, 1:], -x, x[:, :2] * 2], 1).permute(0, 2, 1) + 1, x)
    check(lambda x: torch.stack([x, x + 1], 2).flatten(1, 2), x)
    check(lambda x: torch.cat([-x[..., 5:], x[..., :5]], -1) * x.sin() + x * x.cos(), x)
    check(lambda x: x.split([1, 2, 3])[2] * 3, x)
    check(lambda x: x.chunk(3)[1] * 3, x)


def test_elementwise_functions() -> None:
    torch.manual_seed(0)
    x, y = rand(5, 77), rand(77)
    check(lambda x, y: torch.where(x > y, x.exp(), (y * 3).tanh()).clamp(-0.5, 0.7), x, y)
    check(lambda x, y: F.softplus(x * 30) + x.abs().sqrt() - (x - y) / (y.abs() + 1), x, y)
    check(lambda x, y: (x**2 + y**3 - (x.abs() + 1) ** 1.7 + (x.abs() + 1).rsqrt()).sigmoid(), x, y)
    check(lambda x, y: torch.maximum(x, y) - torch.minimum(x * 2, y), x, y)
    check(lambda x, y: ((x > 0) & ~(y < 0)) | (x == y), x, y)
    check(lambda x, y: (x.to(BF16) * y.to(BF16) + 1).float() * 2, x, y)


MORE = {
    "hard": lambda x: F.hardtanh(x, -0.3, 0.4) + F.hardsigmoid(x * 5) * F.hardswish(x * 5),
    "leaky": lambda x: F.leaky_relu(x, 0.2) + F.elu(x, 1.5),
    "bases": lambda x: x.exp2() + (x.abs() + 0.1).log2() - (x.abs() + 0.1).log10(),
    "added": lambda x: torch.addcmul(x, x + 1, x + 2, value=0.5) + torch.addcdiv(x, x, x.abs() + 1, value=-2),
    "gelu": lambda x: aten.gelu_backward(x, x + 1),
    "silu": lambda x: aten.silu_backward(x, x + 1),
    "tanh": lambda x: aten.tanh_backward(x, x.tanh()),
    "sigmoid": lambda x: aten.sigmoid_backward(x, x.sigmoid()),
    "relu": lambda x: aten.threshold_backward(x, x * 2 - 0.1, 0),
    "softmax": lambda x: aten._softmax_backward_data(x, x.softmax(-1), -1, torch.float32),
    "log_softmax": lambda x: aten._log_softmax_backward_data(x, x.log_softmax(0), 0, torch.float32),
}


@pytest.mark.parametrize("name", MORE)
def test_more_functions_and_gradients(name: str) -> None:
    torch.manual_seed(0)
    check(MORE[name], rand(130, 33))


def test_whole_numbers() -> None:
    n = torch.tensor([[2**30, -5, 7], [0, 2**24 + 1, 3]])
    check(lambda n: (n + 3) * 2 - n, n)
    check(lambda n: torch.arange(3) + n, n)
    check(lambda n: n >= torch.tensor([2**24, 2**24 + 1, 3]) + 0 * n, n)
    check(lambda n: torch.arange(100).view(4, 25).t() * 2 - n[0, 2], n)


REDUCTIONS = {
    "mean of a channel": lambda x: x.mean((0, 2)),
    "sum of all": lambda x: x.sum(),
    "largest": lambda x: x.amax(1) + x.amin(1),
    "kept": lambda x: x - x.mean(-1, keepdim=True),
    "first": lambda x: (x * 2).sum(0),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str) -> None:
    torch.manual_seed(0)
    check(REDUCTIONS[name], rand(7, 130, 33))


def test_why_there_is_none() -> None:
    program = captured(lambda x: x.cumsum(0), rand(4, 4))
    with pytest.raises(NoKernel, match="cumsum.default has no engine instructions"):
        kernel_of(program, program.plan.groups[0])
    program = captured(lambda x: x.double().exp(), rand(4, 4))
    with pytest.raises(NoKernel, match="no engine has f64"):
        kernel_of(program, program.plan.groups[0])


def test_instructions_name_the_ops_that_they_compute() -> None:
    program = captured(mlp, rand(4, 8), rand(16, 8), rand(16), rand(4, 16))
    kernel = kernel_of(program, program.plan.groups[0])
    named = {op for s in statements(kernel.body) if isinstance(s, Instruction) for op in s.ops}
    assert "gelu" in named
    assert named <= set(program.graph.defs)


def test_loops_are_as_deep_as_what_they_hold() -> None:
    """The weights of a norm are loaded once, not with every tile of rows."""
    program = captured(lambda x, w: F.rms_norm(x, (64,), w, 1e-6), rand(512, 64), rand(64))
    kernel = kernel_of(program, program.plan.groups[0])
    loads = [s.dst[0].buffer for s in kernel.body if isinstance(s, Instruction) and s.opcode == "dma_copy"]
    assert len(loads) == 1
    assert sum(isinstance(s, Loop) for s in kernel.body) == 1


# Indices


def test_places_and_indices() -> None:
    extents = {"a": 4, "b": 6}
    a, b = Affine(0, (("a", 1),)), Affine(0, (("b", 1),))
    assert flat((a, b), (4, 6)) == 6 * a + b
    assert unflat(6 * a + b, (4, 6), extents) == (a, b)
    assert unflat(6 * a + b, (24,), extents) == (6 * a + b,)
    assert unflat(12 * a + 2 * b + 1, (2, 2, 12), extents | {"a": 2}) == (affine(0), a, 2 * b + 1)
    with pytest.raises(Split) as split:
        unflat(6 * a + b, (4, 2, 3), extents)
    assert (split.value.atom, split.value.inner) == ("b", 3)
    with pytest.raises(NoKernel, match="do not fit a reshape"):
        unflat(6 * a + b, (8, 3, 1), extents | {"b": 5})


def test_a_program_written_by_hand() -> None:
    program = text.parse(
        "graph g(%x: f32[4,8]) {\n  %y = aten.exp.default(%x) : f32[4,8]\n  return %y\n}\n"
        "plan {\n  group g0 elementwise (%y)\n}"
    )
    kernel = kernel_of(program, program.plan.groups[0])
    assert [s.opcode for s in statements(kernel.body) if isinstance(s, Instruction)] == [
        "dma_copy",
        "activation",
        "dma_copy",
    ]
    assert program.graph.tensor_type("y").dtype is DType.F32
