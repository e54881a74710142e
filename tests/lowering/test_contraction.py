"""Matrix products: values against ATen in every precision, rounding, ``beta`` and ``alpha``, and the work stated."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from against_aten import call, check, lower, work
from torch.utils.flop_counter import FlopCounterMode

from neuron_compiler.ir.graph import DType, TensorType
from neuron_compiler.lowering.ops import contraction

aten = torch.ops.aten

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def tensor(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(*shape, dtype=dtype)
    return torch.randint(0, 100, shape, dtype=dtype)


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
def test_products(dtype: torch.dtype) -> None:
    torch.manual_seed(0)

    def t(*shape: int) -> torch.Tensor:
        return tensor(dtype, *shape)

    check(
        call(aten.mm.default, t(3, 5), t(5, 4)),
        call(aten.bmm.default, t(2, 3, 5), t(2, 5, 4)),
        call(aten.mv.default, t(3, 5), t(5)),
        call(aten.dot.default, t(5), t(5)),
        call(aten.vdot.default, t(5), t(5)),
        call(aten.linear.default, t(2, 3, 5), t(4, 5), t(4)),
        call(aten.linear.default, t(5), t(4, 5)),
        call(aten.linear.default, t(3, 5), t(5)),
        call(aten._trilinear.default, t(4, 3), t(5, 3, 2), t(4, 2), [1, 3], [0], [1, 2], [2, 3]),
    )


@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (2, 3), (0, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int32], ids=str)
def test_products_added_to_a_tensor(dtype: torch.dtype, beta: int, alpha: int) -> None:
    torch.manual_seed(0)
    how = {"beta": beta, "alpha": alpha}

    def t(*shape: int) -> torch.Tensor:
        return tensor(dtype, *shape)

    check(
        call(aten.addmm.default, t(4), t(3, 5), t(5, 4), **how),
        call(aten.addmm.default, t(3, 1), t(3, 5), t(5, 4), **how),
        call(aten.addmv.default, t(3), t(3, 5), t(5), **how),
        call(aten.baddbmm.default, t(2, 3, 4), t(2, 3, 5), t(2, 5, 4), **how),
        call(aten.addbmm.default, t(3, 4), t(2, 3, 5), t(2, 5, 4), **how),
        call(aten.addr.default, t(3, 4), t(3), t(4), **how),
    )


def test_beta_zero_ignores_nan_and_empty_sums_are_zero() -> None:
    nan = torch.full((4,), float("nan"))
    check(
        call(aten.addmm.default, nan, torch.randn(3, 5), torch.randn(5, 4), beta=0),
        call(aten.addmm.default, torch.randn(4), torch.randn(3, 0), torch.randn(0, 4), beta=0.5),
        call(aten.mm.default, torch.randn(0, 3), torch.randn(3, 4)),
        call(aten.dot.default, torch.randn(0), torch.randn(0)),
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_halves_are_summed_in_float32(dtype: torch.dtype) -> None:
    # In the half type, adding 1 to 4096 ones more than once would be lost.
    ones = torch.ones(1, 4097, dtype=dtype)
    assert lower(aten.mm.default, ones, ones.mT).item() == ones.float().sum().to(dtype).item()
    # 256.5 is no bfloat16: rounded after the bias, not before it.
    x = torch.tensor([[256.0, 0.5]]).to(dtype)
    bias = torch.tensor([0.5]).to(dtype)
    found = lower(aten.addmm.default, bias, x, torch.ones(2, 1, dtype=dtype))
    assert found.item() == torch.tensor(257.0).to(dtype).item()


def test_int8_products_wrap_as_atens_do() -> None:
    x = torch.full((2, 3), 100, dtype=torch.int8)
    assert lower(aten.mm.default, x, x.mT).tolist() == [[48, 48], [48, 48]]
    check(call(aten.mm.default, x, x.mT))


def test_linear_never_transposes_a_weight() -> None:
    out = TensorType((2, 3, 4), DType.F32)
    text = str(
        jax.make_jaxpr(lambda x, w, b: contraction.linear(x, w, b, out=out))(
            jnp.zeros((2, 3, 5)), jnp.zeros((4, 5)), jnp.zeros(4)
        )
    )
    assert text.count("dot_general") == 1
    assert "transpose" not in text


def counted(overload: Any, *args: Any, **kwargs: Any) -> int:
    with FlopCounterMode(display=False) as counter:
        overload(*args, **kwargs)
    return counter.get_total_flops()


def test_work_is_two_m_k_n() -> None:
    r = torch.randn
    assert work(aten.mm.default, r(3, 5), r(5, 7)).flops == 2 * 3 * 5 * 7
    assert work(aten.mm.default, r(3, 5), r(5, 7)).bytes == 4 * (15 + 35 + 21)
    assert work(aten.linear.default, r(2, 3, 5), r(7, 5)).flops == 2 * 6 * 5 * 7
    assert work(aten.mv.default, r(3, 5), r(5)).flops == 2 * 3 * 5
    assert work(aten.dot.default, r(5), r(5)).flops == 2 * 5
    assert work(aten.addbmm.default, r(3, 4), r(2, 3, 5), r(2, 5, 4)).flops == 2 * 2 * 3 * 5 * 4
    for overload, args in (
        (aten.mm.default, (r(3, 5), r(5, 7))),
        (aten.bmm.default, (r(2, 3, 5), r(2, 5, 7))),
        (aten.addmm.default, (r(7), r(3, 5), r(5, 7))),
        (aten.baddbmm.default, (r(2, 3, 7), r(2, 3, 5), r(2, 5, 7))),
    ):
        assert work(overload, *args).flops == counted(overload, *args) > 0


def test_accumulator_is_wide_enough() -> None:
    assert contraction.accumulator(DType.BF16) is DType.F32
    assert contraction.accumulator(DType.I8) is DType.I32
    assert contraction.accumulator(DType.F64) is DType.F64
