"""Programs that ``torch.export`` is given, with their arguments: for tests of compiled exports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional as F


class Convolutions(nn.Module):
    """Convolution, batch norm in training mode, dropout: buffers change, and numbers are drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(8)
        self.last = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.first(x)))
        return self.last(F.dropout(x.mean((2, 3)), 0.3, self.training))


class Attention(nn.Module):
    """A layer of a transformer whose embedding is also its last weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
        self.out = nn.Linear(16, 50, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(self.layer(self.embed(tokens)))


class Nested(nn.Module):
    """Keywords, nested arguments and results, a constant, an argument that is returned, a number and nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.tensor([1.0, 2.0, 3.0])

    def forward(self, x: dict[str, torch.Tensor], pair: Any, *, times: int, unused: Any = None) -> Any:
        a, b = pair
        found = x["a"] * self.scale + torch.tensor(5.0) * times
        return {"sum": (found + a, [b]), "rows": found.shape[0], "nothing": None, "same": x["a"]}


class State(nn.Module):
    """Buffers and arguments that are changed in place; some of it is returned."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("cache", torch.zeros(4, 3), persistent=False)

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> Any:
        self.count += 1
        self.cache.index_add_(0, at, x)
        x.mul_(2)
        return x, self.cache, self.count * 2


class Drawing(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        noise = torch.empty_like(x.t()).bernoulli_(0.3)
        return torch.bernoulli(x.sigmoid()), noise, torch.randn(3), x + torch.rand_like(x)


class Branches(nn.Module):
    """A branch on a value."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos() + 1, (x,))


class DrawingBranches(nn.Module):
    """A branch that eager has to run: a step that holds graphs of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda y: y + torch.rand_like(y), lambda y: y - torch.rand_like(y), (x,))


class Selected(nn.Module):
    """A result whose size depends on values."""

    def forward(self, x: torch.Tensor) -> Any:
        found = x[x > 0]
        return found * 2, x.sum()


class Inverse(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(x) + torch.linalg.eigvalsh(x @ x.mT).sum()


class Looked(nn.Module):
    def forward(self, table: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return table[at] * 2


class Halves(nn.Module):
    """Views of arguments, of empty tensors too."""

    def forward(self, x: torch.Tensor, empty: torch.Tensor) -> Any:
        return x[:, 1:], x.t(), empty + 1, torch.cat([empty, empty]), x.new_zeros(0, 2)


class Low(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.bfloat16()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.linear(x)).to(torch.float32)


@dataclass(frozen=True)
class Case:
    """A module, what it is exported with, and sizes to call it with where they are dynamic."""

    make: Callable[[], nn.Module]
    args: Callable[[], tuple[Any, ...]]
    kwargs: Callable[[], dict[str, Any]] = field(default=dict)
    dynamic: Any = None
    others: tuple[Callable[[], tuple[Any, ...]], ...] = ()
    fallbacks: int = 0


def _image(batch: int) -> Callable[[], tuple[Any, ...]]:
    return lambda: (torch.randn(batch, 3, 8, 8),)


def _tokens(batch: int, length: int) -> Callable[[], tuple[Any, ...]]:
    return lambda: (torch.randint(0, 50, (batch, length)),)


CASES: dict[str, Case] = {
    "convolutions": Case(Convolutions, _image(4)),
    "convolutions_of_any_batch": Case(
        Convolutions, _image(4), dynamic=({0: Dim("batch", min=1)},), others=(_image(2), _image(7))
    ),
    "attention": Case(lambda: Attention().eval(), _tokens(2, 6)),
    "attention_of_any_size": Case(
        lambda: Attention().eval(), _tokens(2, 6), dynamic=({0: Dim.AUTO, 1: Dim.AUTO},), others=(_tokens(3, 5),)
    ),
    "derived_size": Case(
        lambda: Low().eval(),
        lambda: (torch.randn(6, 8).bfloat16(),),
        dynamic=({0: 2 * Dim("half", min=1, max=32)},),
        others=(lambda: (torch.randn(10, 8).bfloat16(),),),
    ),
    "nested": Case(
        Nested,
        lambda: ({"a": torch.randn(2, 3)}, [torch.randn(3), torch.ones(1)]),
        lambda: {"times": 4, "unused": None},
    ),
    "state": Case(State, lambda: (torch.randn(2, 3), torch.tensor([1, 3]))),
    "drawing": Case(Drawing, lambda: (torch.randn(4, 3),)),
    "branches": Case(Branches, lambda: (torch.randn(3),)),
    "drawing branches": Case(DrawingBranches, lambda: (torch.randn(3),), fallbacks=1),
    "selected": Case(Selected, lambda: (torch.tensor([1.0, -2.0, 3.0]),), fallbacks=1),
    "inverse": Case(Inverse, lambda: (torch.randn(4, 4) + 4 * torch.eye(4),)),
    "looked": Case(Looked, lambda: (torch.randn(5, 2), torch.tensor([0, -1, 4]))),
    "halves": Case(Halves, lambda: (torch.randn(3, 4), torch.randn(0, 2))),
    "low": Case(Low, lambda: (torch.randn(3, 8).bfloat16(),)),
}


def export(case: Case) -> torch.export.ExportedProgram:
    """The case's program; the same weights and arguments each time."""
    torch.manual_seed(0)
    return torch.export.export(case.make(), case.args(), case.kwargs(), dynamic_shapes=case.dynamic)


def results(program: Callable[..., Any], case: Case) -> list[Any]:
    """What a program returns for each of the case's arguments, called twice with each, and the arguments after it."""
    found = []
    for number, make in enumerate([case.args, *case.others] * 2):
        torch.manual_seed(number)
        args = make()
        with torch.no_grad():
            found.append((program(*args, **case.kwargs()), args))
    return found
