"""Kernels that are other operators under a second name give what ATen gives, and compile."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from neuron_compiler.capture.functions import compile_function
from neuron_compiler.ledger import LEDGER
from neuron_compiler.lowering.kernel_decompositions import DECOMPOSITIONS

aten = torch.ops.aten
NAN = float("nan")


def r(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


SPECIAL = torch.tensor([[1.0, -2.0, NAN, 0.0], [float("inf"), -1.5, 3.0, -0.0]])
C2, C3 = (r(2, 3, 6, 5), r(4, 3, 2, 3)), (r(2, 3, 5, 5, 5), r(4, 3, 2, 3, 2))
T2, T3 = (r(2, 3, 4, 5), r(3, 4, 2, 3)), (r(2, 3, 3, 4, 3), r(3, 4, 2, 3, 2))
I = torch.tensor  # noqa: E741

CALLS: dict[str, list[tuple[Any, ...]]] = {
    "_add_relu.Tensor": [(r(2, 4), r(2, 4) - 1), (r(3, 4), r(4), {"alpha": 2})],
    "_add_relu.Scalar": [(r(2, 4), 0.5), (r(2, 4), 0.5, 3)],
    "_addmm_activation.default": [
        (r(4), r(3, 2), r(2, 4), {"use_gelu": gelu, "beta": 0.5, "alpha": 2}) for gelu in (False, True)
    ],
    "_aminmax.default": [(SPECIAL,), (r(3, 4),), (I([3, -1]),)],
    "_aminmax.dim": [(SPECIAL, 1), (r(3, 4), 0, True)],
    "_compute_linear_combination.default": [(r(3, 2, 2), r(5, 3)), (r(3, 4, dtype=torch.float64), r(1, 3).double())],
    "_convolution.default": [
        (*C2, r(4), [1, 2], [1, 0], [2, 1], False, [0, 0], 1, False, False, False, True),
        (*T2, None, [2, 2], [0, 1], [1, 1], True, [1, 0], 1, False, False, False, False),
    ],
    "_slow_conv2d_forward.default": [(*C2, [2, 3], r(4), [2, 1], [1, 0]), (*C2, [2, 3], None, [1, 1], [0, 0])],
    "_slow_conv2d_backward.output_mask": [
        (r(2, 4, 4, 3), *C2, [2, 3], [2, 1], [1, 0], mask) for mask in ([True] * 3, [True, False, True])
    ],
    "slow_conv3d_forward.default": [(*C3, [2, 3, 2], r(4), [1, 2, 1], [1, 0, 1])],
    "slow_conv_dilated2d.default": [(*C2, [2, 3], r(4), [1, 1], [1, 1], [2, 1]), (C2[0][0], C2[1], [2, 3])],
    "slow_conv_dilated3d.default": [(*C3, [2, 3, 2], None, [1, 1, 2], [0, 1, 0], [2, 1, 1])],
    "slow_conv_transpose2d.default": [(*T2, [2, 3], r(4), [2, 2], [1, 0], [1, 0], [1, 2]), (T2[0][0], T2[1], [2, 3])],
    "slow_conv_transpose3d.default": [(*T3, [2, 3, 2], r(4), [2, 1, 1], [0, 1, 0], [1, 0, 0], [1, 1, 1])],
    "conv_tbc.default": [(r(6, 2, 3), r(3, 3, 4), r(4), 1), (r(6, 2, 3), r(2, 3, 4), r(4))],
    "_index_put_impl.default": [
        (r(4, 3), [I([0, 2, 0])], r(3, 3), True),
        (r(4, 3), [None, I([0, 2])], r(2), False, True),
    ],
    "_is_all_true.default": [(I([[True, False]]),), (I([True, True]),)],
    "_is_any_true.default": [(I([[True, False]]),), (I([False, False]),)],
    "_stack.default": [([r(2, 3), r(2, 3) + 1], 1), ([r(2), r(2) - 1],)],
    "_transform_bias_rescale_qkv.default": [(r(2, 5, 24), r(24), 2)],
    "glu_jvp.default": [(torch.nn.functional.glu(r(3, 4), dim), r(3, 4), r(3, 4) * 2, dim) for dim in (1, -1)],
    "glu_backward_jvp.default": [
        (aten.glu_backward(r(3, 2), r(3, 4), 1), r(3, 2), r(3, 4), r(3, 2) + 1, r(3, 4) * 2, 1)
    ],
    "linalg__powsum.default": [
        (SPECIAL,),
        (r(3, 4), 3, [1], True),
        (r(3, 4), 0.5, [0], {"dtype": torch.float64}),
        (I([0.0, 2.0, NAN]), 0),
        (r(3, dtype=torch.bfloat16), 2),
        (torch.view_as_complex(r(3, 2)), 3),
    ],
    "_foreach_powsum.Scalar": [([r(3), r(2, 2)], 3), ([r(2, dtype=torch.float32)], 1, torch.float64)],
    "zeros_and_scatter.default": [([4, 3], [I([0, 2, 0]), I([1, 1, 1])], r(3))],
}
BY_NAME = {str(overload).partition(".")[2]: overload for overload in DECOMPOSITIONS}


def split(call: tuple[Any, ...]) -> tuple[list[Any], dict[str, Any]]:
    return (list(call[:-1]), call[-1]) if isinstance(call[-1], dict) else (list(call), {})


def compare(found: Any, wanted: Any) -> None:
    found, wanted = ([x for x in tree_leaves(r) if x is not None] for r in (found, wanted))
    assert len(found) == len(wanted)
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.stride() == theirs.stride()
        torch.testing.assert_close(mine, theirs, equal_nan=True)


@pytest.mark.parametrize("name", BY_NAME)
def test_gives_what_aten_gives(name: str) -> None:
    for call in CALLS[name]:
        args, kwargs = split(call)
        compare(DECOMPOSITIONS[BY_NAME[name]](*args, **kwargs), BY_NAME[name](*args, **kwargs))


@pytest.mark.parametrize("name", BY_NAME)
def test_compiles(name: str) -> None:
    args, kwargs = split(CALLS[name][0])
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]

    def function(*given: torch.Tensor) -> Any:
        left = iter(given)

        def fill(x: Any) -> Any:
            return next(left) if isinstance(x, torch.Tensor) else [fill(y) for y in x] if isinstance(x, list) else x

        return [x for x in tree_leaves(BY_NAME[name](*map(fill, args), **kwargs)) if x is not None]

    compare(compile_function(function, tensors)(*tensors), BY_NAME[name](*args, **kwargs))
    assert LEDGER.total("fallback") == 0
