"""Random programs: where padding is proven harmless, the padded program gives what eager gives, and raises no more."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from aten_interpreter import run, to_program
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

import neuron_compiler.lowering.ops  # noqa: F401
from neuron_compiler import dtypes
from neuron_compiler.buckets.padded import argument_of, cut, pad
from neuron_compiler.buckets.prove import Proof, prove
from neuron_compiler.ir.plan import Program
from neuron_compiler.lowering import decompositions
from neuron_compiler.runtime import Layout

Pool = list[torch.Tensor]


def floats(x: torch.Tensor) -> torch.Tensor:
    return x if x.is_floating_point() else x.float()


def index_into(x: torch.Tensor, size: int) -> torch.Tensor:
    return (floats(x).nan_to_num().clamp(-9, 9) * 3).long() % size


def dim(x: torch.Tensor, c: int) -> int:
    return c % x.dim()


def matmul(x: torch.Tensor, y: torch.Tensor, c: int) -> torch.Tensor:
    return floats(x) @ (floats(y).transpose(-1, -2) if c % 2 else floats(y))


def convolved(x: torch.Tensor, y: torch.Tensor, c: int) -> torch.Tensor:
    weight = torch.ones(3, x.shape[1], 2) * 0.5
    return F.conv1d(floats(x), weight, padding=c % 2, stride=1 + c % 3 // 2)


def attention(x: torch.Tensor, y: torch.Tensor, c: int) -> torch.Tensor:
    q, k = floats(x)[None], floats(y)[None]
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, k, is_causal=c % 2 == 0)[0][0]


OPS: tuple[Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor], ...] = (
    lambda x, y, c: torch.relu(x),
    lambda x, y, c: floats(x).tanh() * 2,
    lambda x, y, c: floats(x).abs().sqrt(),
    lambda x, y, c: x + y,
    lambda x, y, c: torch.where(x > 0, x, y),
    lambda x, y, c: floats(x) * 0.5 - floats(y),
    matmul,
    matmul,
    lambda x, y, c: floats(x).sum(dim(x, c), keepdim=c % 2 == 0),
    lambda x, y, c: floats(x).mean(dim(x, c), keepdim=c % 2 == 1),
    lambda x, y, c: floats(x).mean(),
    lambda x, y, c: x.amax(dim(x, c)),
    lambda x, y, c: x.min(dim(x, c)).values,
    lambda x, y, c: x.argmax(dim(x, c)),
    lambda x, y, c: x.argmax(),
    lambda x, y, c: (x > 0).any(dim(x, c)),
    lambda x, y, c: (x > 0).all(dim(x, c)),
    lambda x, y, c: floats(x).softmax(dim(x, c)),
    lambda x, y, c: floats(x).log_softmax(dim(x, c)),
    lambda x, y, c: floats(x).logsumexp(dim(x, c)),
    lambda x, y, c: x.cumsum(dim(x, c)),
    lambda x, y, c: floats(x).std(dim(x, c)),
    lambda x, y, c: x.flatten(c % 2, c % 2 + 1),
    lambda x, y, c: x.reshape(-1, 2),
    lambda x, y, c: x.reshape(2, -1),
    lambda x, y, c: x.reshape(-1, *y.shape[1:]),
    lambda x, y, c: x.reshape(y.shape),
    lambda x, y, c: x.unsqueeze(dim(x, c)),
    lambda x, y, c: x.transpose(0, dim(x, c)),
    lambda x, y, c: x.transpose(0, -1).contiguous(),
    lambda x, y, c: x.narrow(dim(x, c), 1, x.shape[dim(x, c)] - 1),
    lambda x, y, c: x.narrow(dim(x, c), 0, x.shape[dim(x, c)] - 1),
    lambda x, y, c: x.narrow(dim(x, c), 0, 2),
    lambda x, y, c: x[1::2],
    lambda x, y, c: x.select(dim(x, c), -1),
    lambda x, y, c: x.select(dim(x, c), 1),
    lambda x, y, c: x.flip(dim(x, c)),
    lambda x, y, c: x.roll(1, dim(x, c)),
    lambda x, y, c: torch.cat([x, y], dim(x, c)),
    lambda x, y, c: torch.stack([x, x * 2], dim(x, c)),
    lambda x, y, c: x[None].expand(3, *x.shape),
    lambda x, y, c: x[..., None].expand(*x.shape, y.shape[0]),
    lambda x, y, c: torch.arange(x.shape[dim(x, c)]).float(),
    lambda x, y, c: torch.arange(x.shape[-1]) < torch.arange(y.shape[-1])[:, None],
    lambda x, y, c: floats(x) * x.shape[dim(x, c)],
    lambda x, y, c: floats(x) / x.shape[0],
    lambda x, y, c: torch.full_like(floats(x), 1.5),
    lambda x, y, c: torch.zeros(x.shape),
    lambda x, y, c: floats(x).gather(dim(x, c), index_into(y, x.shape[dim(x, c)])),
    lambda x, y, c: x.index_select(dim(x, c), index_into(y, x.shape[dim(x, c)])),
    lambda x, y, c: F.embedding(index_into(x, 6), torch.arange(24.0).reshape(6, 4)),
    lambda x, y, c: torch.arange(30.0)[torch.arange(x.shape[dim(x, c)]) * 2],
    lambda x, y, c: torch.arange(100) // (index_into(x.flatten()[:1], 5) + 1),
    lambda x, y, c: (index_into(x, 9) + 3) // (index_into(y, 4) + 1),
    lambda x, y, c: F.layer_norm(floats(x), x.shape[-1 - c % 2 :]),
    convolved,
    lambda x, y, c: F.avg_pool1d(floats(x), 2, padding=c % 2),
    lambda x, y, c: x.sort(stable=True, dim=dim(x, c)).values,
    lambda x, y, c: x.topk(2, dim(x, c)).values,
    lambda x, y, c: F.pad(x, (c % 2, c // 2 % 2)),
    lambda x, y, c: F.pad(x, (0, 0, c % 2, c // 2 % 2)),
    lambda x, y, c: F.pad(x, (-1, 0)),
    lambda x, y, c: x.tril(),
    lambda x, y, c: x.repeat(1 + c % 2, *(1,) * (x.dim() - 1)),
    lambda x, y, c: floats(x).scatter_add(dim(x, c), index_into(y, x.shape[dim(x, c)]), floats(y)),
    lambda x, y, c: x.diagonal(),
    lambda x, y, c: x.unfold(dim(x, c), 2, 1),
    lambda x, y, c: x.masked_fill(y > 0, 0),
    attention,
    attention,
    lambda x, y, c: torch.slice_scatter(x, y, dim(x, c), start=1),
    lambda x, y, c: torch.select_scatter(x, y, dim(x, c), 1),
    lambda x, y, c: x[:, torch.arange(2), None],
    lambda x, y, c: x[torch.arange(x.shape[0]), index_into(y, x.shape[1])],
    lambda x, y, c: torch.linalg.vector_norm(floats(x), dim=dim(x, c)),
    lambda x, y, c: F.cross_entropy(floats(x), index_into(y, x.shape[1]), reduction=("none", "mean", "sum")[c % 3]),
    lambda x, y, c: x.squeeze(),
    lambda x, y, c: x.prod(dim(x, c)),
    lambda x, y, c: x.cummax(dim(x, c)).values,
    lambda x, y, c: x.split(2, dim(x, c))[0],
    lambda x, y, c: x.unbind(dim(x, c))[1],
)

Step = tuple[int, int, int, int]
STEPS = st.lists(
    st.tuples(st.integers(0, len(OPS) - 1), st.integers(0, 99), st.integers(0, 99), st.integers(0, 11)),
    min_size=1,
    max_size=6,
)


def arguments(n: int, m: int, seed: int) -> Pool:
    """Tensors with the two changing sizes at different places."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    return [normal(n, 4), normal(2, n, 4), normal(4, n), normal(n, m), normal(2, m, 4), normal(4, 6), normal(n)]


def program(steps: list[Step], taken: list[bool]) -> Callable[..., list[torch.Tensor]]:
    """Steps whose results join the pool; a step that the first arguments refused is left out for all others."""
    first = not taken

    def call(*inputs: torch.Tensor) -> list[torch.Tensor]:
        pool = list(inputs)
        for number, (op, a, b, c) in enumerate(steps):
            if not first and not taken[number]:
                continue
            try:
                # Later results are read more often, or programs would have no depth.
                x, y = (pool[-1 - (i % len(pool)) // (1 + i % 3)] for i in (a, b))
                found = OPS[op](x, y, c)
                ok = found.numel() <= 5000 and found.dim() <= 5
            except (RuntimeError, IndexError, ValueError, ZeroDivisionError):
                if not first:
                    raise
                ok = False
            if first:
                taken.append(ok)
            if ok:
                pool.append(found)
        return pool[len(inputs) :]

    return call


def traced(call: Callable[..., Any], inputs: Pool) -> Program:
    return to_program(make_fx(call, decomposition_table=decompositions.table())(*inputs))


def shape_of(tensor: torch.Tensor) -> Layout:
    return Layout.of(tensor.shape, tensor.stride())


def padded_run(proof: Proof, inputs: Pool, true_outputs: Pool) -> Pool:
    """The bucket's program by PyTorch's kernels, on padded arguments."""
    given = [
        pad(x, t, Layout.of(t.bucket, torch.empty(t.bucket).stride()))
        for x, t in zip(inputs, proof.inputs, strict=True)
    ]
    results = run(Program(proof.graph), *given, *(argument_of(a) for a in proof.added))
    return [cut(r, t, shape_of(o)) for r, t, o in zip(results, proof.outputs, true_outputs, strict=True)]


def check(steps: list[Step], sizes: tuple[int, int], buckets: tuple[int, int], seed: int) -> str:
    taken: list[bool] = []
    inputs = arguments(*sizes, seed)
    program(steps, taken)(*inputs)
    assume(any(taken))
    call = program(steps, taken)
    true = traced(call, inputs)
    try:
        bucket = traced(call, arguments(*buckets, seed))
    except (RuntimeError, IndexError, ValueError, ZeroDivisionError):
        return "refused by PyTorch at the bucket's sizes"
    proof = prove(true.graph, bucket.graph)
    if not isinstance(proof, Proof):
        return f"refused: {proof.cause.partition('%')[0]}"
    expected = call(*inputs)
    found = padded_run(proof, inputs, expected)
    for one, other in zip(found, expected, strict=True):
        assert dtypes.type_of(one) == dtypes.type_of(other)
        assert one.stride() == other.stride() or not shape_of(other).dense
        torch.testing.assert_close(one, other, equal_nan=True, rtol=1e-4, atol=1e-5)
    return "proven"


@pytest.fixture(autouse=True)
def no_gradients() -> Any:
    with torch.no_grad():
        yield


@settings(
    max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "30")),
    deadline=None,
    report_multiple_bugs=True,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    steps=STEPS,
    sizes=st.tuples(st.sampled_from([3, 5, 7]), st.sampled_from([3, 5, 7, 9])),
    buckets=st.sampled_from([(8, 16), (16, 16), (8, 9)]),
    seed=st.integers(0, 99),
)
def test_padded_programs_are_eager_s(
    steps: list[Step], sizes: tuple[int, int], buckets: tuple[int, int], seed: int
) -> None:
    event(check(steps, sizes, buckets, seed))
