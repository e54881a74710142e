"""Decompositions of kernels that are another operator under a second name, or a few of them at once.

Autograd, forward-mode formulas, ``torch._C._nn`` and exported programs call them; PyTorch decomposes none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._dynamo import _trace_wrapped_higher_order_op as _indexed  # noqa: F401  (defines flex_lib)

aten = torch.ops.aten


def add_relu(x: Tensor, other: Any, alpha: Any = 1) -> Tensor:
    return torch.relu(torch.add(x, other, alpha=alpha))


def addmm_activation(
    x: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1, use_gelu: bool = False
) -> Tensor:
    product = torch.addmm(x, mat1, mat2, beta=beta, alpha=alpha)
    return torch.nn.functional.gelu(product) if use_gelu else torch.relu(product)


def aminmax(x: Tensor) -> tuple[Tensor, Tensor]:
    return tuple(torch.aminmax(x))


def aminmax_along(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return tuple(torch.aminmax(x, dim=dim, keepdim=keepdim))


def linear_combination(x: Tensor, coefficients: Tensor) -> Tensor:
    """``x`` [k, ...] in as many sums as ``coefficients`` [n, k] has rows: [n, ...]."""
    rows = x.reshape(x.shape[0], -1)
    return (coefficients.to(x.dtype) @ rows).reshape(-1, *x.shape[1:])


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    *_: bool,
) -> Tensor:
    """With switches of other backends at its end, which say nothing of the value."""
    return aten.convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)


def slow_conv(
    x: Tensor, weight: Tensor, kernel_size: Any, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    return _batched(x, weight, bias, stride, padding, [1] * len(stride), False, [0] * len(stride))


def slow_conv_dilated(
    x: Tensor,
    weight: Tensor,
    kernel_size: Sequence[int],
    bias: Tensor | None = None,
    stride: Sequence[int] | int = 1,
    padding: Sequence[int] | int = 0,
    dilation: Sequence[int] | int = 1,
) -> Tensor:
    rank = weight.dim() - 2
    sizes = [_each(v, rank) for v in (stride, padding, dilation)]
    return _batched(x, weight, bias, *sizes, False, [0] * rank)


def slow_conv_transpose(
    x: Tensor,
    weight: Tensor,
    kernel_size: Sequence[int],
    bias: Tensor | None = None,
    stride: Sequence[int] | int = 1,
    padding: Sequence[int] | int = 0,
    output_padding: Sequence[int] | int = 0,
    dilation: Sequence[int] | int = 1,
) -> Tensor:
    rank = weight.dim() - 2
    strides, paddings, outputs, dilations = (_each(v, rank) for v in (stride, padding, output_padding, dilation))
    if rank == 2 and x.dim() == 3:
        x = x.unsqueeze(0)  # the kernel makes a batch of one sample, and leaves it one
    return _batched(x, weight, bias, strides, paddings, dilations, True, outputs)


def _each(value: Sequence[int] | int, rank: int) -> list[int]:
    given = [value] if isinstance(value, int) else list(value)
    return given * rank if len(given) == 1 else given


def _batched(x: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
    """A convolution of one sample or of several."""
    single = x.dim() == weight.dim() - 1
    made = aten.convolution(x.unsqueeze(0) if single else x, weight, bias, *rest, 1)
    return made.squeeze(0) if single else made


def slow_conv2d_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    kernel_size: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    sizes = (stride, padding, [1, 1], False, [0, 0], 1)
    made = aten.convolution_backward(grad, x, weight, [weight.shape[0]], *sizes, list(output_mask))
    return tuple(g if wanted else None for g, wanted in zip(made, output_mask, strict=True))


def conv_tbc(x: Tensor, weight: Tensor, bias: Tensor, pad: int = 0) -> Tensor:
    """``x`` [time, batch, channels] with ``weight`` [width, channels, results]."""
    made = torch.conv1d(x.permute(1, 2, 0), weight.permute(2, 1, 0), bias, padding=pad)
    return made.permute(2, 0, 1).contiguous()


def index_put(
    x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False, unsafe: bool = False
) -> Tensor:
    return aten.index_put(x, list(indices), values, accumulate)


def zeros_and_scatter(shape: Sequence[int], indices: Sequence[Tensor], values: Tensor) -> Tensor:
    """The gradient of indexing, as ``flex_attention`` asks for it."""
    return aten.index_put(values.new_zeros(shape), list(indices), values, True)


def transform_bias_rescale_qkv(qkv: Tensor, bias: Tensor, heads: int) -> tuple[Tensor, ...]:
    """``qkv`` [B, T, 3 D] with its bias as query, divided by the root of the width of a head, key and value."""
    batch, length, width = qkv.shape
    parts = (qkv + bias).view(batch, length, 3, heads, width // (3 * heads)).permute(2, 0, 3, 1, 4)
    query, key, value = (part.contiguous() for part in parts)
    return query * (1 / math.sqrt(width // (3 * heads))), key, value


def glu_jvp(glu: Tensor, x: Tensor, dx: Tensor, dim: int) -> Tensor:
    """Change of ``a * sigmoid(b)`` with those of the halves of ``x``."""
    da, db = dx.chunk(2, dim)
    gate = x.chunk(2, dim)[1].sigmoid()
    return da * gate + (glu - glu * gate) * db


def glu_backward_jvp(grad_x: Tensor, grad_glu: Tensor, x: Tensor, dgrad_glu: Tensor, dx: Tensor, dim: int) -> Tensor:
    """Change of the gradient with those of ``x`` and of the gradient it is made from."""
    a, b = x.chunk(2, dim)
    da, db = dx.chunk(2, dim)
    gate = b.sigmoid()
    slope = gate - gate * gate
    first = dgrad_glu * gate + grad_glu * slope * db
    second = dgrad_glu * a * slope + grad_glu * da * slope + grad_glu * a * slope * (1 - 2 * gate) * db
    return torch.cat([first, second], dim)


def powsum(
    x: Tensor,
    order: Any = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Sum of the powers of magnitudes."""
    sizes = x.abs() if dtype is None else x.to(dtype).abs()
    return sizes.pow(order).sum(dim, keepdim=keepdim)


def foreach_powsum(tensors: Sequence[Tensor], order: Any = 2, dtype: torch.dtype | None = None) -> list[Tensor]:
    return [powsum(x, order, dtype=dtype) for x in tensors]


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten._add_relu.Tensor: add_relu,
    aten._add_relu.Scalar: add_relu,
    aten._addmm_activation.default: addmm_activation,
    aten._aminmax.default: aminmax,
    aten._aminmax.dim: aminmax_along,
    aten._compute_linear_combination.default: linear_combination,
    aten._convolution.default: convolution,
    aten._slow_conv2d_forward.default: slow_conv,
    aten._slow_conv2d_backward.output_mask: slow_conv2d_backward,
    aten.slow_conv3d_forward.default: slow_conv,
    aten.slow_conv_dilated2d.default: slow_conv_dilated,
    aten.slow_conv_dilated3d.default: slow_conv_dilated,
    aten.slow_conv_transpose2d.default: slow_conv_transpose,
    aten.slow_conv_transpose3d.default: slow_conv_transpose,
    aten.conv_tbc.default: conv_tbc,
    aten._index_put_impl.default: index_put,
    aten._is_all_true.default: torch.all,
    aten._is_any_true.default: torch.any,
    aten._stack.default: torch.stack,
    aten._transform_bias_rescale_qkv.default: transform_bias_rescale_qkv,
    aten.glu_jvp.default: glu_jvp,
    aten.glu_backward_jvp.default: glu_backward_jvp,
    aten.linalg__powsum.default: powsum,
    aten._foreach_powsum.Scalar: foreach_powsum,
    torch.ops.flex_lib.zeros_and_scatter.default: zeros_and_scatter,
}
