"""Branches, loops and marked regions: compiled into the executable, with eager's values, gradients and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo.config as dynamo_config
from agreement import assert_agree, compiled
from torch import nn
from torch._higher_order_ops import scan, while_loop
from torch._higher_order_ops.map import map as map_over
from torch.compiler import nested_compile_region

from neuron_compiler.ledger import LEDGER

X = torch.tensor([0.5, -1.5, 2.0, -0.25])
W = torch.arange(16.0).reshape(4, 4) / 8 - 1
ROWS = torch.arange(20.0).reshape(5, 4) / 4 - 2


def branch(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda a: a * 2 + w[0], lambda a: a - w[1], (x,))


def nested_branches(x: torch.Tensor) -> torch.Tensor:
    def inner(a: torch.Tensor) -> torch.Tensor:
        return torch.cond(a[0] > 0, lambda b: b + 1, lambda b: b - 1, (a,))

    return torch.cond(x.sum() > 0, inner, lambda a: -a, (x,))


def several(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Results of other types than the arguments."""
    return torch.cond(x.sum() > 0, lambda a: (a > 0, a.sum()), lambda a: (a < 0, a.amax()), (x,))


def halving(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    start = torch.zeros((), dtype=torch.int64)
    return while_loop(lambda x, n: x.abs().amax() > 0.1, lambda x, n: (x / 2, n + 1), (x, start))


def branch_in_loop(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    def body(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.cond(n % 2 == 0, lambda a: a + 1, lambda a: a * 2, (x,)), n + 1

    return while_loop(lambda x, n: n < 5, body, (x, torch.zeros((), dtype=torch.int64)))


def running(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return scan(lambda carry, row: (carry + row, carry * row), torch.zeros(4), x, dim=0)


def from_behind(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return scan(lambda carry, row: (carry / 2 + row, carry.clone()), torch.ones(4), x, dim=0, reverse=True)


def rows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return map_over(lambda row, w: row.abs() + w[0] * row, x, w)


@nested_compile_region
def marked(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + x.abs()


def twice_marked(x: torch.Tensor) -> torch.Tensor:
    return marked(marked(x) + 1)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("program", [nested_branches, several])
def test_branches(program: Callable[..., Any], sign: int) -> None:
    assert_agree({program.__name__: program}, X * sign)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_branch_reads_what_is_around_it(sign: int) -> None:
    assert_agree({"branch": branch}, X * sign, W)


def test_only_the_branch_that_is_taken_can_fail() -> None:
    def checked(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda a, i: a[i] * 2, lambda a, i: a[i * 0], (x, at))

    function = compiled(checked)
    outside, inside = torch.tensor([0, 9]), torch.tensor([3, 1])
    assert function(X, inside).tolist() == [-0.5, -3.0]
    assert function(-X, outside).tolist() == [-0.5, -0.5]
    with pytest.raises(IndexError, match="out of range|out of bounds"):
        function(X, outside)


@pytest.mark.parametrize("program", [halving, branch_in_loop])
def test_loops(program: Callable[..., Any]) -> None:
    assert_agree({program.__name__: program}, X)


def test_a_loop_that_never_runs() -> None:
    assert_agree({"halving": halving}, X / 100)


def test_a_check_that_fails_ends_the_loop_with_eagers_error() -> None:
    def walking(x: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        # Without the check the loop would go on for ever: what it counts is read from the place that does not exist.
        return while_loop(lambda s, at: s < 100, lambda s, at: (s + x[at].sum(), at + 1), (torch.zeros(()), at))

    function = compiled(walking)
    with pytest.raises(IndexError, match="out of range|out of bounds"):
        function(torch.zeros(4), torch.tensor([0]))
    total, at = function(torch.full((4,), 40.0), torch.tensor([0]))
    assert (total.item(), at.item()) == (120.0, 3)


@pytest.mark.parametrize("program", [running, from_behind])
def test_scans(program: Callable[..., Any]) -> None:
    assert_agree({program.__name__: program}, ROWS)


def test_map() -> None:
    assert_agree({"rows": rows}, ROWS, W)


def test_a_marked_region() -> None:
    assert_agree({"twice": twice_marked}, X)


@pytest.mark.parametrize("length", [1, 7])
def test_sizes_that_change(length: int) -> None:
    function = compiled(lambda x: (*running(x), branch(x[0] + 0, x[:2] + 0)), dynamic=True)
    x = torch.linspace(-1, 1, 4 * length + 4).reshape(length + 1, 4)
    for found, wanted in zip(function(x), (*running(x), branch(x[0], x[:2] + 0)), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)


GRADIENTS: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "cond": (branch, (X, W)),
    "cond, the other": (branch, (-X, W)),
    "nested cond": (nested_branches, (X,)),
    "scan": (lambda x: sum(r.square().sum() for r in running(x)), (ROWS,)),
    "map": (rows, (ROWS, W)),
    "marked": (twice_marked, (X,)),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str) -> None:
    program, arguments = GRADIENTS[name]
    results = []
    for function in (program, compiled(program)):
        given = [a.clone().requires_grad_() for a in arguments]
        function(*given).square().sum().backward()
        results.append([a.grad for a in given])
    for found, wanted in zip(*reversed(results), strict=True):
        torch.testing.assert_close(found, wanted)


def test_a_recurrent_cell_in_a_scan() -> None:
    cell = nn.GRUCell(4, 3)

    def over(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        def step(state: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            after = cell(row.unsqueeze(0), state)
            return after, after.clone()

        return scan(step, torch.zeros(1, 3), x, dim=0)

    with torch.no_grad():
        for found, wanted in zip(compiled(over)(ROWS), over(ROWS), strict=True):
            torch.testing.assert_close(found, wanted)


def test_the_gradient_of_a_loop_has_as_many_steps_as_the_loop() -> None:
    """How often a loop runs is data: what its steps keep for the gradient runs eagerly, and is counted."""

    def program(x: torch.Tensor) -> torch.Tensor:
        start = torch.zeros((), dtype=torch.int64)
        return while_loop(lambda x, n: n < 4, lambda x, n: (x * 1.5 + x.sin(), n + 1), (x, start))[0]

    results = []
    for function in (program, torch.compile(program, backend="neuron", fullgraph=True)):
        x = X.clone().requires_grad_()
        function(x).sum().backward()
        results.append(x.grad)
    torch.testing.assert_close(*results)
    assert "data-dependent size" in {entry.cause for entry in LEDGER.counts("fallback")}


def test_random_numbers_in_a_branch_are_drawn_by_eager() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda a: a + torch.rand_like(a), lambda a: a * 2, (x,))

    function = torch.compile(program, backend="neuron", fullgraph=True)
    results = []
    for call in (function, program):
        torch.manual_seed(0)
        results.append((call(X), call(X), torch.rand(2)))
    for found, wanted in zip(*results, strict=True):
        assert torch.equal(found, wanted)
    assert any("draws random numbers" in entry.cause for entry in LEDGER.counts("fallback"))


def test_nothing_to_scan_is_what_eager_makes_of_it() -> None:
    function = torch.compile(lambda x: map_over(lambda row: row * 2, x), backend="neuron")
    with dynamo_config.patch(suppress_errors=False):
        try:
            wanted: Any = map_over(lambda row: row * 2, ROWS[:0])
        except Exception as fault:
            with pytest.raises(type(fault)):
                function(ROWS[:0])
        else:
            assert torch.equal(function(ROWS[:0]), wanted)
