"""Random numbers: eager's, bit for bit, from the user's generator; never baked in; the same again when recomputed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

P = torch.tensor([0.1, 0.5, 0.9, 0.3]).repeat(16)

DRAWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "dropout": lambda p: F.dropout(p, 0.3),
    "dropout in place": lambda p: F.dropout(p.clone(), 0.3, inplace=True),
    "feature dropout": lambda p: F.dropout1d(p.reshape(1, 8, 8), 0.5),
    "alpha dropout": lambda p: F.alpha_dropout(p, 0.4, training=True),
    "rand": lambda p: torch.rand(7),
    "rand double": lambda p: torch.rand(7, dtype=torch.float64),
    "rand_like": lambda p: torch.rand_like(p.bfloat16()),
    "randn": lambda p: torch.randn(3, 40),
    "randint": lambda p: torch.randint(3, 99, (5,)),
    "randint beyond 32 bits": lambda p: torch.randint(0, 2**40, (5,)),
    "randperm": lambda p: torch.randperm(9),
    "bernoulli": lambda p: torch.bernoulli(p),
    "bernoulli number": lambda p: torch.empty(9).bernoulli_(0.4),
    "multinomial": lambda p: torch.multinomial(p[:8], 5),
    "multinomial again": lambda p: torch.multinomial(p[:8], 20, replacement=True),
    "normal": lambda p: torch.normal(p, 2.0),
    "normal_": lambda p: p.clone().normal_(1, 2),
    "uniform_": lambda p: p.clone().uniform_(-1, 2),
    "exponential_": lambda p: p.clone().exponential_(0.5),
    "geometric_": lambda p: p.clone().geometric_(0.5),
    "cauchy_": lambda p: p.clone().cauchy_(),
    "log_normal_": lambda p: p.clone().log_normal_(),
    "random_": lambda p: p.clone().random_(100),
    "poisson": lambda p: torch.poisson(p * 5),
    "rrelu": lambda p: F.rrelu(p - 0.5, training=True),
    "gumbel": lambda p: F.gumbel_softmax(p.reshape(8, 8)).argmax(1),
    "attention": lambda p: F.scaled_dot_product_attention(*[p.reshape(1, 1, 8, 8)] * 3, dropout_p=0.5) != 0,
    "in order": lambda p: (torch.rand(2), F.dropout(p, 0.5), torch.randn(2), torch.randint(0, 9, (2,))),
    "by a condition": lambda p: torch.where(p > 0.2, torch.rand_like(p), torch.randn_like(p)),
    "of what was drawn": lambda p: torch.bernoulli(torch.rand_like(p)),
}


def drawn(function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What two calls give, and the next number of the generator."""
    torch.manual_seed(5)
    return [function(*arguments), function(*arguments), torch.rand(1)]


@pytest.mark.parametrize("name", DRAWS)
def test_as_eager_draws(name: str) -> None:
    function = DRAWS[name]
    want = drawn(function, P)
    got = drawn(torch.compile(function, backend="neuron"), P)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-7 if name == "alpha dropout" else 0, equal_nan=True)
    if name != "attention":
        assert not torch.equal(
            torch.cat([x.reshape(-1).double() for x in _leaves(got[0])]),
            torch.cat([x.reshape(-1).double() for x in _leaves(got[1])]),
        ), "baked in"


def _leaves(x: Any) -> list[torch.Tensor]:
    return list(x) if isinstance(x, tuple) else [x]


def test_gradients_use_the_same_mask() -> None:
    x = torch.ones(1000, requires_grad=True)
    torch.manual_seed(0)
    y = torch.compile(lambda x: F.dropout(x, 0.5) * 3, backend="neuron")(x)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, y.detach())
    assert 300 < (y == 0).sum() < 700


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_by_checkpoint(reentrant: bool) -> None:
    def block(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(torch.sin(x), 0.5) * torch.rand_like(x)

    def program(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(block, checkpoint(block, x, use_reentrant=reentrant), use_reentrant=reentrant).sum()

    found = []
    for function in (program, torch.compile(program, backend="neuron")):
        x = torch.linspace(0, 3, 50).requires_grad_()
        torch.manual_seed(3)
        loss = function(x)
        loss.backward()
        found.append((loss.detach(), x.grad, torch.rand(1)))
    torch.testing.assert_close(found[1], found[0], rtol=1e-6, atol=1e-7)
    assert torch.equal(found[1][2], found[0][2])


def test_a_generator_of_the_users_own() -> None:
    function = torch.compile(lambda x: x + 1, backend="neuron")
    mine = torch.Generator().manual_seed(9)
    before = torch.get_rng_state()
    first = function(torch.rand(3, generator=mine))
    assert torch.equal(first, torch.rand(3, generator=torch.Generator().manual_seed(9)) + 1)
    assert torch.equal(torch.get_rng_state(), before)


def test_fork_rng_puts_the_generator_back() -> None:
    function = torch.compile(lambda: torch.rand(4), backend="neuron")
    torch.manual_seed(1)
    function()
    before = torch.get_rng_state()
    with torch.random.fork_rng():
        inside = function()
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(function(), inside)
