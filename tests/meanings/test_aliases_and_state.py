"""Who shares memory with whom, and what modules keep: results, arguments, weights, buffers, constants."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from agreement import assert_agree, compiled
from torch import nn


def pointer(x: torch.Tensor) -> int:
    return x.untyped_storage().data_ptr()


def test_results_that_are_arguments_or_views_of_them() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x, y.t(), x[0], x.view(-1), x.detach(), (x + 1), y.expand(2, *y.shape)

    x, y = torch.arange(4.0).reshape(2, 2), torch.ones(3, 2)
    same, turned, row, flat, detached, new, wide = compiled(program)(x, y)
    assert same is x
    assert [pointer(a) == pointer(x) for a in (row, flat, detached, new)] == [True, True, True, False]
    assert pointer(turned) == pointer(wide) == pointer(y)
    x[0, 1] = 50
    assert flat.tolist() == [0, 50, 2, 3]
    assert row.tolist() == [0, 50]
    y[2, 0] = 7
    assert turned[0, 2] == wide[1, 2, 0] == 7


def test_results_that_are_views_of_one_another() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return y, y[0], y.t(), y

    y, row, turned, again = compiled(program)(torch.arange(4.0).reshape(2, 2))
    assert pointer(y) == pointer(row) == pointer(turned)
    assert again is y
    y.zero_()
    assert row.abs().sum() == turned.abs().sum() == 0


def test_a_written_argument_returned_as_it_was_and_as_it_is() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        before = x + 0
        view = x[1:]
        x.mul_(10)
        return before, view, x, x[0]

    assert_agree({"all": program}, torch.arange(3.0))
    x = torch.arange(3.0)
    before, view, after, _ = compiled(program)(x)
    assert after is x
    assert pointer(view) == pointer(x)
    assert before.tolist() == [0, 1, 2]
    assert view.tolist() == [10, 20]


def test_arguments_that_overlap() -> None:
    def program(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        b.mul_(2)
        return a + b

    for function in (program, torch.compile(program, backend="neuron")):
        base = torch.arange(6.0)
        result = function(base[:4], base[2:])
        assert base.tolist() == [1, 2, 6, 8, 8, 10]
        assert result.tolist() == [7, 10, 14, 18]


def test_one_tensor_given_twice() -> None:
    def program(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return a * b

    x, y = torch.arange(3.0), torch.arange(3.0)
    function = torch.compile(program, backend="neuron")
    assert function(x, x).tolist() == [1, 4, 9]
    # The same code, called with two.
    assert function(y, x).tolist() == [1, 4, 9]
    assert (x.tolist(), y.tolist()) == ([1, 2, 3], [1, 2, 3])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.embedding(i)))


def test_tied_weights_get_one_gradient_and_stay_tied() -> None:
    torch.manual_seed(0)
    eager = Tied()
    model = copy.deepcopy(eager)
    assert model.head.weight is model.embedding.weight
    function = torch.compile(model, backend="neuron")
    i = torch.tensor([1, 2, 2, 6])
    optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in (eager, model)]
    for _ in range(3):
        for call, optimizer in zip((eager, function), optimizers, strict=True):
            optimizer.zero_grad()
            F.cross_entropy(call(i), i).backward()
            optimizer.step()
    torch.testing.assert_close(model.head.weight, eager.head.weight, rtol=1e-5, atol=1e-6)
    assert model.head.weight is model.embedding.weight
    assert len(list(model.parameters())) == 1


@pytest.mark.parametrize("momentum", [0.1, None])
def test_batch_norm_counts_and_averages(momentum: float | None) -> None:
    torch.manual_seed(0)
    eager = nn.BatchNorm1d(3, momentum=momentum)
    model = copy.deepcopy(eager)
    function = torch.compile(model, backend="neuron")
    for step in range(4):
        x = torch.randn(8, 3) * (step + 1) + step
        torch.testing.assert_close(function(x), eager(x), rtol=1e-5, atol=1e-5)
        assert model.num_batches_tracked == step + 1
        torch.testing.assert_close(model.running_mean, eager.running_mean, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(model.running_var, eager.running_var, rtol=1e-5, atol=1e-6)
    model.eval(), eager.eval()
    before = copy.deepcopy(model.state_dict())
    torch.testing.assert_close(function(x), eager(x), rtol=1e-5, atol=1e-5)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values(), strict=True))


def test_buffers_written_under_no_grad() -> None:
    class Running(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))
            self.register_buffer("cache", torch.zeros(4, 3))
            self.register_buffer("count", torch.tensor(0))
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.mean.mul_(0.5).add_(x.mean(0) * 0.5)
                self.cache[1:3] = x[:2]
                self.count += 1
            return (x - self.mean) * self.scale

    eager, model = Running(), Running()
    function = torch.compile(model, backend="neuron")
    for step in range(3):
        x = torch.arange(6.0).reshape(2, 3) + step
        got, want = function(x), eager(x)
        assert torch.equal(got, want)
        got.sum().backward()
        want.sum().backward()
    for name, buffer in eager.named_buffers():
        assert torch.equal(getattr(model, name), buffer), name
    assert torch.equal(model.scale.grad, eager.scale.grad)  # type: ignore[arg-type]


def test_constants_are_not_spoiled_by_the_caller() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        table = torch.tensor([1.0, 2.0, 3.0])
        return x + table, table

    function = torch.compile(program, backend="neuron")
    _, table = function(torch.zeros(3))
    table.fill_(99)
    result, again = function(torch.zeros(3))
    assert result.tolist() == again.tolist() == [1, 2, 3]
    outside = torch.tensor([1.0, 2.0])
    reads = torch.compile(lambda x: x * outside, backend="neuron")
    assert reads(torch.ones(2)).tolist() == [1, 2]
    outside.add_(1)
    assert reads(torch.ones(2)).tolist() == [2, 3]


def test_a_changed_parameter_is_noticed() -> None:
    model = nn.Linear(2, 2, bias=False).requires_grad_(False)
    function = torch.compile(model, backend="neuron")
    x = torch.eye(2)
    changes: list[Any] = [
        lambda: model.weight.fill_(2),
        lambda: model.weight.data.mul_(3),
        lambda: model.load_state_dict({"weight": torch.full((2, 2), 7.0)}),
        lambda: setattr(model.weight, "data", torch.full((2, 2), 8.0)),
        lambda: setattr(model, "weight", nn.Parameter(torch.full((2, 2), 9.0), requires_grad=False)),
    ]
    for change, value in zip(changes, (2, 6, 7, 8, 9), strict=True):
        function(x)
        change()
        assert function(x).tolist() == [[value] * 2] * 2


def test_strides_of_results() -> None:
    x = torch.arange(2 * 3 * 4 * 4.0).reshape(2, 3, 4, 4)
    last = x.to(memory_format=torch.channels_last)
    programs = {
        "pointwise": lambda x: x + 1,
        "permuted": lambda x: x.permute(0, 2, 3, 1) * 2,
        "transposed": lambda x: x.transpose(1, 3).abs(),
        "expanded": lambda x: x[:, :1].expand(2, 3, 4, 4) + x,
        "clone": lambda x: (x.clone(), x.permute(3, 1, 0, 2).clone(), x.contiguous()),
        "channels last": lambda x: x.to(memory_format=torch.channels_last),
        "empty_like": lambda x: torch.zeros_like(x.permute(1, 0, 3, 2)),
        "sum": lambda x: (x.sum(1), x.sum(1, keepdim=True), x.mean((2, 3))),
        "cat": lambda x: torch.cat([x, x], 1),
        "pool": lambda x: F.max_pool2d(x, 2),
        "interpolate": lambda x: F.interpolate(x, scale_factor=2),
        "sliced": lambda x: x[:, ::2, 1:] * 1,
        "sort": lambda x: x.permute(0, 3, 1, 2).sort(stable=True, dim=1),
        "reshape": lambda x: x.permute(0, 2, 3, 1).reshape(8, 12),
        "expanded result": lambda x: x[:1, :1].expand(5, 3, 4, 4),
    }
    fitting = {name: programs[name] for name in programs if name not in ("reshape", "expanded", "expanded result")}
    for given in (x, last, x.transpose(2, 3)):
        assert_agree(programs, given)
    assert_agree(fitting, x[:, :, ::2])


def test_empty_and_0_dim_tensors() -> None:
    empty, scalar = torch.empty(0, 3), torch.tensor(2.5)
    of_empty = {
        "pointwise": lambda x: x * 2 + 1,
        "sum": lambda x: (x.sum(), x.sum(0), x.sum(1), x.prod(), x.mean(0)),
        "any": lambda x: (x.any(), x.all()),
        "product": lambda x: (x @ torch.ones(3, 2), x.t() @ x),
        "cat": lambda x: torch.cat([x, torch.ones(1, 3), torch.empty(0)]),
        "index": lambda x: (x[:, 1], x[:, [0, 2]]),
        "view": lambda x: (x.view(3, 0), x.flatten(), x.t(), x[None]),
        "softmax": lambda x: (x.softmax(0), x.softmax(1)),
        "cumsum": lambda x: x.cumsum(0),
        "sort": lambda x: x.sort(0),
        "linear": lambda x: F.linear(x, torch.ones(4, 3)),
        "norm": lambda x: F.layer_norm(x, (3,)),
        "convolution": lambda x: F.conv1d(x[:, :, None], torch.ones(2, 3, 1)),
        "pad": lambda x: F.pad(x, (1, 1)),
    }
    assert_agree(of_empty, empty)
    of_scalar = {
        "pointwise": lambda x: x * 2 + 1,
        "reductions": lambda x: (x.sum(), x.sum(0), x.max(), x.argmax(), x.softmax(0), x.cumsum(0)),
        "sort": lambda x: (x.sort(), x.topk(1)),
        "views": lambda x: (x[None], x.view(1), x.expand(2, 3), x.reshape(1, 1), x.squeeze(), x.t()),
        "index": lambda x: (x[...], x[()], x[None, None]),
        "stack": lambda x: torch.stack([x, x]),
        "where": lambda x: torch.where(x > 0, x, 0.0),
        "gather": lambda x: (x.gather(0, torch.tensor(0)), x.index_select(0, torch.tensor([0]))),
    }
    assert_agree(of_scalar, scalar)
