"""Exceptions that eager raises for what is in the tensors: the same type and gist, and nothing is broken afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from agreement import compiled

X = torch.arange(6.0).reshape(2, 3)
HIGH, LOW = torch.tensor([0, 3]), torch.tensor([0, -4])

CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "index": (lambda x, i: x[:, i], (X, HIGH), "out of bounds"),
    "negative index": (lambda x, i: x[:, i], (X, LOW), "out of bounds"),
    "index_select": (lambda x, i: x.index_select(0, i), (X, HIGH), "out of range"),
    "index_select of columns": (lambda x, i: x.index_select(1, i), (X, HIGH), "out of DATA bounds"),
    "index_select of a row": (lambda x, i: x[0].index_select(0, i), (X, HIGH), "out of range"),
    "gather": (lambda x, i: x.gather(1, i[None]), (X, HIGH), "out of bounds"),
    "take": (lambda x, i: x.take(i * 2), (X, HIGH), "out of range"),
    "index_put": (lambda x, i: x.index_put((i,), x[0, 0]), (X, HIGH), "out of bounds"),
    "index_add": (lambda x, i: x.index_add(1, i, x[:, :2]), (X, HIGH), "out of (bounds|range)"),
    "index_fill": (lambda x, i: x.index_fill(1, i, 0.0), (X, HIGH), "out of"),
    "index_copy": (lambda x, i: x.index_copy(1, i, x[:, :2]), (X, HIGH), "out of"),
    "scatter": (lambda x, i: x.scatter(1, i[None], 1.0), (X, HIGH), "out of bounds"),
    "scatter_add": (lambda x, i: x.scatter_add(1, i[None], x), (X, HIGH), "out of bounds"),
    "embedding": (lambda x, i: F.embedding(i, x), (X, HIGH), "out of range"),
    "embedding_bag": (lambda x, i: F.embedding_bag(i[None], x), (X, HIGH), ""),
    "cross_entropy": (lambda x, i: F.cross_entropy(x, i), (X, HIGH), "out of bounds"),
    "nll_loss": (lambda x, i: F.nll_loss(x, i), (X, HIGH), "out of bounds"),
    "one_hot": (lambda x, i: F.one_hot(i, 3), (X, HIGH), ""),
    "integer division": (lambda x, i: x.int() // i, (X[:, :2], torch.tensor([1, 0])), "ZeroDivisionError"),
    "inverse": (lambda x, i: torch.linalg.inv(x), (torch.ones(2, 2), HIGH), "singular"),
    "solve": (lambda x, i: torch.linalg.solve(x, x), (torch.ones(2, 2), HIGH), "singular"),
    "cholesky": (lambda x, i: torch.linalg.cholesky(x), (-torch.eye(2), HIGH), "positive-definite"),
    "multinomial": (lambda x, i: torch.multinomial(x, 1), (-torch.ones(3), HIGH), ""),
    "bernoulli": (lambda x, i: torch.bernoulli(x), (torch.tensor([2.0]), HIGH), ""),
    "masked_scatter": (lambda x, i: x.masked_scatter(x > -1, x[0]), (X, HIGH), ""),
    "repeat_interleave": (
        lambda x, i: torch.repeat_interleave(x, i, 1, output_size=3),
        (X, torch.tensor([1, -1, 3])),
        "",
    ),
}


def raised(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Exception:
    try:
        function(*arguments)
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("name", CASES)
def test_as_in_eager(name: str) -> None:
    function, arguments, gist = CASES[name]
    wanted = raised(function, arguments)
    program = torch.compile(function, backend="neuron")
    with pytest.raises(type(wanted), match=gist) as found:
        program(*arguments)
    assert type(found.value) is type(wanted), (found.value, wanted)


def test_in_a_loop_the_function_goes_on_working() -> None:
    program = compiled(lambda x, i: x.gather(1, i[None]) * 2)
    for _ in range(5):
        with pytest.raises(RuntimeError, match="out of bounds"):
            program(X, HIGH)
        assert program(X, torch.tensor([0, 2])).tolist() == [[0.0, 4.0]]


def test_the_first_of_several_is_raised() -> None:
    def program(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x[:, i].sum() + torch.linalg.inv(x[:, :2] * 0).sum()

    with pytest.raises(IndexError):
        program(X, HIGH)
    with pytest.raises(IndexError):
        compiled(program)(X, HIGH)


def test_in_a_backward() -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(i)
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
            (i,) = ctx.saved_tensors
            return grad.index_select(0, i).sum() * torch.ones_like(grad), None

    x = X.clone().requires_grad_()
    result = torch.compile(lambda x, i: Fails.apply(x, i).sum(), backend="neuron")(x, HIGH)
    with pytest.raises(IndexError, match="out of range"):
        result.backward()
    assert x.grad is None


def test_arguments_are_as_they_were() -> None:
    # Eager has added before it fails; compiled programs write when all is done.
    x, y = X.clone(), X.clone()

    def program(x: torch.Tensor, y: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        y.add_(1)
        return x[:, i]

    with pytest.raises(IndexError):
        compiled(program)(x, y, HIGH)
    assert torch.equal(x, X)
    assert torch.equal(y, X) or torch.equal(y, X + 1), "never half"


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x @ x,
        lambda x: x + x[:, :2],
        lambda x: x.view(4, 2),
        lambda x: torch.cat([x, x[:, :1]]),
        lambda x: F.conv1d(x, x),
    ],
    ids=["product", "broadcast", "view", "cat", "convolution"],
)
def test_of_shapes(function: Callable[..., Any]) -> None:
    assert isinstance(raised(function, (X,)), RuntimeError)
    with pytest.raises(RuntimeError):
        compiled(function)(X)
