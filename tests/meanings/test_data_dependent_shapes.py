"""Sizes that depend on elements: carried on in one graph where the user asked Dynamo for it, else Dynamo's break."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch._dynamo.config as dynamo_config

from neuron_compiler.ledger import LEDGER

X, Y = torch.tensor([1.0, -2.0, 3.0, -4.0, 5.0]), torch.tensor([-1.0, -2.0, 3.0, -4.0, -5.0, 6.0, 7.0])

PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mask": lambda x: (x[x > 0] * 2).sum() + x.sum(),
    "masked result": lambda x: (x * 3)[x > 0] * 2 + 1,
    "nonzero": lambda x: torch.nonzero(x > 0).float() * x[0],
    "where": lambda x: torch.where(x > 0)[0] + 1,
    "unique": lambda x: torch.unique((x > 0).int()) + 1,
    "product": lambda x: torch.outer(x[x > 0], x).sum(0),
    "cat": lambda x: torch.cat([x[x > 0], x]) * 2,
    "repeat": lambda x: torch.repeat_interleave(x, x.abs().int()) * 2,
    "two masks": lambda x: (x[x > 0] * x[x > 0]).sum() + x[x < 0].sum(),
    "size from an element": lambda x: torch.ones(int(x.abs().sum().item())) * 2,
    "number from an element": lambda x: x * x.sum().item(),
    "written": lambda x: x.clone().index_put_((x > 0,), torch.tensor(7.0)),
}


@pytest.fixture
def asked() -> Iterator[None]:
    with dynamo_config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        yield


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("name", PROGRAMS)
def test_in_one_graph(name: str) -> None:
    program = PROGRAMS[name]
    function = torch.compile(program, backend="neuron", fullgraph=True)
    for x in (X, Y, -X.abs(), X):
        torch.testing.assert_close(function(x), program(x), rtol=0, atol=0)


@pytest.mark.parametrize("name", PROGRAMS)
def test_with_breaks(name: str) -> None:
    program = PROGRAMS[name]
    function = torch.compile(program, backend="neuron")
    for x in (X, Y, -X.abs()):
        torch.testing.assert_close(function(x), program(x), rtol=0, atol=0)


@pytest.mark.usefixtures("asked")
def test_what_has_such_a_size_is_counted() -> None:
    before = LEDGER.total("fallback")
    torch.compile(lambda x: (x * 3)[x > 0] + 1, backend="neuron", fullgraph=True)(X)
    assert LEDGER.total("fallback") > before
    causes = {entry.cause for entry in LEDGER.counts("fallback")}
    assert "data-dependent size" in causes


@pytest.mark.usefixtures("asked")
def test_gradients_flow_through() -> None:
    x = X.clone().requires_grad_()
    torch.compile(lambda x: (x[x > 0] ** 2).sum(), backend="neuron", fullgraph=True)(x).backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 0, 6, 0, 10]


def test_dynamos_settings_are_the_users() -> None:
    before = (dynamo_config.capture_dynamic_output_shape_ops, dynamo_config.capture_scalar_outputs)
    torch.compile(lambda x: x[x > 0] * 2, backend="neuron")(X)
    assert (dynamo_config.capture_dynamic_output_shape_ops, dynamo_config.capture_scalar_outputs) == before
