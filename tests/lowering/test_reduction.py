"""Meanings of reductions that random samples do not reach: accuracy, types, empty rows, infinities."""

from __future__ import annotations

import jax
import pytest
import torch
from against_aten import lower
from many_calls import Batch

from neuron_compiler.ir.graph import DType, TensorType
from neuron_compiler.lowering import emit
from neuron_compiler.lowering.numeric import cast
from neuron_compiler.lowering.ops.reduction import sum_

aten = torch.ops.aten
INF, NAN = float("inf"), float("nan")


def test_sum_of_many_elements_is_as_accurate_as_a_pairwise_sum() -> None:
    x = torch.rand(3_000_000, generator=torch.Generator().manual_seed(0))
    exact = x.double().sum()
    for overload, want in ((aten.sum.default, exact), (aten.mean.default, exact / x.numel())):
        assert abs(lower(overload, x).double() - want) / want < 2e-7
    squares = lower(aten.linalg_vector_norm.default, x)
    assert abs(squares.double() - x.double().norm()) / x.double().norm() < 2e-7


def test_half_precision_accumulates_in_float32() -> None:
    x = torch.ones(5000, dtype=torch.bfloat16)
    assert lower(aten.sum.default, x).item() == 4992  # 5000 rounded; summed in bf16 it stops at 256
    assert lower(aten.prod.default, torch.full((64,), 1.0078125, dtype=torch.bfloat16)).item() == pytest.approx(
        1.6484375
    )


def test_narrow_integers_and_bools_promote() -> None:
    with Batch() as check:
        assert lower(aten.sum.default, torch.full((300,), 100, dtype=torch.int8)).item() == 30_000
        assert lower(aten.sum.default, torch.ones(70_000, dtype=torch.bool)).item() == 70_000
        check(aten.prod.default, torch.tensor([200, 3], dtype=torch.uint8))
        check(aten.sum.dim_IntList, torch.tensor([[1.7, 2.9], [3.0, 0.1]]), [1], dtype=torch.int64)
        check(aten.sum.dim_IntList, torch.tensor([[1.0009765625, 1.0]]), [1], dtype=torch.bfloat16)


def test_empty_rows_have_aten_s_values() -> None:
    with Batch() as check:
        x = torch.zeros(3, 0)
        for overload in (aten.sum.dim_IntList, aten.mean.dim, aten.any.dim, aten.all.dim, aten.prod.dim_int):
            check(overload, x, [1] if overload in (aten.sum.dim_IntList, aten.mean.dim) else 1)
        check(aten.var.correction, x, [1])
        check(aten.logsumexp.default, x, [1])
        check(aten.amax.default, torch.zeros(0, 3), [1])


@pytest.mark.parametrize("keepdim", [False, True])
def test_zero_dim_tensors_have_a_dimension_to_name(keepdim: bool) -> None:
    with Batch() as check:
        x = torch.tensor(3.0)
        check(aten.sum.dim_IntList, x, [0], keepdim)
        check(aten.var.correction, x, [0], correction=0, keepdim=keepdim)
        check(aten.linalg_vector_norm.default, x, 3, [-1], keepdim)
        check(aten.max.dim, x, 0, keepdim)
        check(aten.argmax.default, x, -1, keepdim)


@pytest.mark.parametrize("correction", [None, 0, 1, 2.5, 7, 9])
def test_variance_with_every_correction(correction: float | None) -> None:
    with Batch() as check:
        x = torch.arange(14.0).reshape(2, 7) ** 2
        for overload in (aten.var.correction, aten.std.correction, aten.var_mean.correction, aten.std_mean.correction):
            check(overload, x, [1], correction=correction)
            check(overload, torch.complex(x, x.flip(1)), [1], correction=correction)


def test_variance_holds_far_from_zero() -> None:
    with Batch(rtol=1e-5, atol=0) as check:
        x = 1e5 + torch.randn(4, 4096, generator=torch.Generator().manual_seed(0))
        check(aten.var.correction, x, [1])


def test_any_and_all_take_nan_and_infinity_for_true_and_keep_uint8() -> None:
    with Batch() as check:
        for x in (torch.tensor([0.0, NAN]), torch.tensor([0, 3], dtype=torch.uint8), torch.tensor([0j, 1j])):
            check(aten.any.default, x)
            check(aten.all.dim, x, 0)


@pytest.mark.parametrize("power", [0, 1, 2, 3, 0.5, -1, INF, -INF])
def test_norms(power: float) -> None:
    with Batch() as check:
        x = torch.tensor([[3.0, -4.0, 0.0], [NAN, 1.0, 2.0], [INF, -1.0, 2.0]])
        check(aten.linalg_vector_norm.default, x, power, [1])
        check(aten.linalg_vector_norm.default, torch.complex(x[:1], x[:1]), power, [1])
        check(aten.linalg_vector_norm.default, x[:1].bfloat16(), power, [1], dtype=torch.float32)


def test_logsumexp_of_infinities_and_nan() -> None:
    with Batch() as check:
        rows = [[-INF, -INF], [INF, 1.0], [INF, -INF], [NAN, 1.0], [-INF, 2.0], [1000.0, 1000.0]]
        check(aten.logsumexp.default, torch.tensor(rows), [1])
        check(aten.logsumexp.default, torch.tensor(rows), [0, 1], True)
        check(aten.logsumexp.default, torch.tensor([[1, 2], [3, 4]]), [1])


def test_a_rounding_to_bfloat16_before_a_sum_is_kept() -> None:
    x = torch.full((64, 512), 1.001)

    def rounded(a: jax.Array) -> jax.Array:
        narrow = cast(a, DType.BF16)
        return sum_(narrow, [1], dtype=DType.F32, out=TensorType((64,), DType.F32))

    with emit.tracing_scope():
        compiled = jax.jit(rounded).lower(x.numpy()).compile(compiler_options={"xla_allow_excess_precision": False})
        assert float(compiled(x.numpy())[0]) == 512
