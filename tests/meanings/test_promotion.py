"""Element types of results: tensors with dimensions before 0-dim ones before Python numbers, unless of a lower kind."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from agreement import assert_agree, compiled

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
]
NUMBERS = [True, 3, -2, 0.3, 1 / 3, 2.5 - 1j]


def tensor(dtype: torch.dtype, shape: tuple[int, ...] = (4,)) -> torch.Tensor:
    return torch.tensor([1, 0, 3, 2], dtype=dtype)[: max(1, shape[0] if shape else 1)].reshape(shape)


def test_of_two_tensors() -> None:
    def program(a: torch.dtype, b: torch.dtype) -> Callable[[], torch.Tensor]:
        x, y = tensor(a), tensor(b)
        return lambda _: x + y

    pairs = list(itertools.combinations_with_replacement(DTYPES, 2))
    assert_agree({f"{a} + {b}": program(a, b) for a, b in pairs}, 0)


def test_of_a_tensor_and_a_0_dim_one() -> None:
    def program(a: torch.dtype, b: torch.dtype) -> Callable[[], torch.Tensor]:
        x, y = tensor(a), tensor(b, ())
        return lambda _: x * y

    # Half precision and complex give complex32, which runs eagerly.
    pairs = [p for p in itertools.product(DTYPES, DTYPES) if p != (torch.float16, torch.complex64)]
    assert_agree({f"{a} * 0-dim {b}": program(a, b) for a, b in pairs}, 0)


@pytest.mark.parametrize("shape", [(4,), ()], ids=["dimensions", "0-dim"])
def test_of_a_tensor_and_a_number(shape: tuple[int, ...]) -> None:
    def program(a: torch.dtype, number: complex) -> Callable[[], list[torch.Tensor]]:
        x = tensor(a, shape)
        return lambda _: [x * number, number + x]

    pairs = [p for p in itertools.product(DTYPES, NUMBERS) if p != (torch.float16, NUMBERS[-1])]
    assert_agree({f"{a}, {n}": program(a, n) for a, n in pairs}, 0)


def test_a_number_is_rounded_to_a_narrow_type_but_not_as_a_factor() -> None:
    x = torch.tensor([1.0, 2.5, 7.3, -3.0, 0.3, 1 / 3])
    programs = {
        "remainder": lambda x: x % 0.3,
        "fmod": lambda x: torch.fmod(x, 0.3),
        "sum": lambda x: x + 1 / 3,
        "difference": lambda x: 0.3 - x,
        "product": lambda x: x * 0.3,
        "quotient": lambda x: x / 0.3,
        "quotient of the number": lambda x: 0.3 / x,
        "floor": lambda x: x // 0.3,
        "equal": lambda x: x == 0.3,
        "above": lambda x: x > 1 / 3,
        "0-dim factor": lambda x: x * torch.tensor(0.3),
        "0-dim summand": lambda x: x + torch.tensor(0.3),
        "lerp": lambda x: torch.lerp(x, x * 2, 0.3),
        "alpha": lambda x: torch.add(x, x, alpha=1 / 3),
        "where": lambda x: torch.where(x > 1, x, 0.3),
        "clamp": lambda x: x.clamp(0.3, 100.1),
    }
    for dtype in (torch.bfloat16, torch.float16):
        assert_agree(programs, x.to(dtype))
    # 7.3 % 0.3 in bfloat16 is 7.3125 % 0.30078125.
    assert compiled(lambda x: x % 0.3)(x.bfloat16())[2].item() == 0.09375


@pytest.mark.parametrize("default", [torch.float32, torch.float64], ids=str)
def test_integers_become_the_default_type(default: torch.dtype) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        programs = {
            "quotient": lambda x: x / 2,
            "root": lambda x: (x * x).sqrt(),  # exact: in double, eager's last bit depends on the processor
            "float number": lambda x: x * 0.1,
            "new": lambda x: torch.full((2,), 0.1) + x[:2],
            "complex": lambda x: x + 1j,
            "sum of bools": lambda x: (x > 1).sum(),
            "mean": lambda x: x.to(default).mean(),
        }
        assert_agree(programs, torch.arange(4))
    finally:
        torch.set_default_dtype(before)


def test_sums_and_products_of_small_integers_are_int64() -> None:
    programs = {
        "sum": lambda x: x.sum(),
        "prod": lambda x: x.prod(),
        "cumsum": lambda x: x.cumsum(0),
        "cumprod": lambda x: x.cumprod(0),
        "sum in its own type": lambda x: x.sum(dtype=torch.uint8),
    }
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32):
        assert_agree(programs, torch.tensor([100, 100, 100], dtype=dtype))


def test_in_place_keeps_the_type() -> None:
    assert_agree(
        {
            "uint8 += int64": lambda x: x.add_(torch.tensor([300, 2, 3, 4])),
            "uint8 *= number": lambda x: x.mul_(3),
        },
        tensor(torch.uint8),
    )
    with pytest.raises(RuntimeError, match="in-place"):
        compiled(lambda x: x.add_(0.5))(tensor(torch.uint8))
