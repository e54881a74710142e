"""Products of 8-bit matrices with scales."""

from __future__ import annotations

import torch

from neuron_compiler.ir.graph import DType, TensorType
from neuron_compiler.lowering.numeric import Array, cast, narrow, widen
from neuron_compiler.lowering.ops.contraction import contract, product_work
from neuron_compiler.opdef import Kind, op

aten = torch.ops.aten


@op(aten._int_mm.default, kind=Kind.CONTRACTION, work=product_work(0, 1))
def int_mm(a: Array, b: Array, *, out: TensorType) -> Array:
    return narrow(contract(a, b, ((1,), (0,))), out)


@op(aten._weight_int8pack_mm.default, kind=Kind.CONTRACTION, work=product_work(0, 1))
def weight_int8pack_mm(x: Array, weight: Array, scales: Array, *, out: TensorType) -> Array:
    """``x`` [M, K], ``weight`` int8 [N, K] with one scale a row."""
    product = contract(widen(x), cast(weight, DType.F32), ((1,), (1,)))
    return narrow(product * widen(scales), out)


@op(aten._scaled_mm.default, kind=Kind.CONTRACTION, work=product_work(0, 1))
def scaled_mm(
    a: Array,
    b: Array,
    scale_a: Array,
    scale_b: Array,
    bias: Array | None = None,
    scale_result: Array | None = None,
    out_dtype: DType | None = None,
    use_fast_accum: bool = False,
    *,
    out: TensorType,
) -> Array:
    """fp8 ``a`` [M, K] and ``b`` [K, N]; a scale is one number, [M, 1] of ``a`` or [1, N] of ``b``.

    As in ATen's CPU kernel, ``scale_result`` is not used.
    """
    product = contract(widen(a), widen(b), ((1,), (0,)))
    scales = (s.reshape(()) if s.size == 1 else s for s in (scale_a, scale_b))
    for scale in scales:
        product = product * scale
    if bias is not None:
        product = product + widen(bias)
    return narrow(product, out)
