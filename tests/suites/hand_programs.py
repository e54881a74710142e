"""Networks whose difficulty is the program around the arithmetic: state, mutation, control flow, autograd's tools."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from handwritten import BATCH, LENGTH, WIDTH, Network, normal
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint


class InPlace(Network):
    """Intermediate results and an argument changed in place, through views too."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(normal(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        y = x * self.scale
        y[:, 0] = 0.5
        y[..., ::2].mul_(2).add_(x[..., 1::2])
        y.transpose(0, 1)[3].sub_(y[:, 4])
        y[2].neg_()
        y.tanh_()
        y = y * 2
        row = y[1]
        row.index_fill_(0, torch.tensor([2, 5]), -1.0)
        return y.clamp_(max=3) + row.sum()


class Overwriting(Network):
    """Arguments that are the results: written whole, in part, and by another's element type."""

    trains = False

    def inputs(self) -> tuple[Any, ...]:
        return normal(4, 5), torch.zeros(4, 5), torch.zeros(5, dtype=torch.int64)

    def forward(self, x: torch.Tensor, target: torch.Tensor, counts: torch.Tensor) -> Any:
        torch.mul(x, 2, out=target)
        counts.copy_(x.sum(0) * 10)
        x.t()[1:3].zero_()
        x[0].uniform_(0, 1)
        return target, x[1:], counts + 1


class RunningState(Network):
    """Buffers that move with each call: an average, a counter, a ring."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("average", torch.zeros(WIDTH))
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("ring", torch.zeros(4, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        with torch.no_grad():
            mean = y.detach().mean((0, 1))
            self.average.lerp_(mean, 0.1)
            self.ring[self.calls % 4] = mean
            self.calls += 1
        return y - self.average


class WeightNorm(Network):
    def __init__(self) -> None:
        super().__init__()
        self.first = parametrizations.weight_norm(nn.Linear(WIDTH, 8))
        self.second = parametrizations.spectral_norm(nn.Linear(8, WIDTH))
        self.third = parametrizations.orthogonal(nn.Linear(WIDTH, WIDTH, bias=False), orthogonal_map="cayley")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(self.second(torch.tanh(self.first(x))))


class _Rounded(torch.autograd.Function):
    """Rounds, and lets the gradient through where the value is small."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, scale)
        return torch.round(x / scale) * scale

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        x, scale = ctx.saved_tensors
        through = gradients[0] * (x.abs() < 2)
        return through, (through * torch.sign(x)).sum().reshape(scale.shape)


class CustomFunction(Network):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.3))
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(_Rounded.apply(x, self.scale))


class Checkpointed(Network):
    """Layers computed again in the backward pass, with the same dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(0.2)) for _ in range(3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + checkpoint(layer, x, use_reentrant=False)
        return x


class Branches(Network):
    """Python decides by values of the data, so that there are several graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.high = nn.Linear(WIDTH, 4), nn.Linear(WIDTH, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x)
        y = self.high(y) if y.sum() > 0 else self.low(y)
        scale = float(y.detach().abs().max())
        return y / scale


class Conditions(Network):
    """Control flow as operators: a branch, and a mapped function."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos() * 2, (y,))


class FunctionTransforms(Network):
    """Gradients inside the forward pass, one for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(normal(WIDTH))

    def forward(self, x: torch.Tensor) -> Any:
        def energy(row: torch.Tensor) -> torch.Tensor:
            return (torch.tanh(row) @ self.weight).square().sum()

        forces = torch.func.vmap(torch.func.grad(energy))(x)
        return forces, torch.func.vmap(energy)(x)


class Dropouts(Network):
    """Random draws of many kinds, in the order of the program."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(normal(WIDTH))

    def forward(self, x: torch.Tensor) -> Any:
        y = F.dropout(x * self.scale, 0.5, self.training)
        y = F.alpha_dropout(y, 0.2, self.training) + F.dropout1d(x, 0.3, self.training)
        noise = torch.rand(LENGTH, 1) + torch.normal(torch.zeros(WIDTH), 0.1) + torch.randint(0, 3, (1,))
        mask = torch.bernoulli(torch.full_like(y, 0.7))
        chosen = torch.multinomial(y.detach().flatten(0, 1).softmax(-1), 2)
        return F.feature_alpha_dropout(y + noise, 0.1, self.training) * mask, chosen, torch.randperm(5)


class Gumbel(Network):
    """A hard choice with a soft gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.codes = nn.Linear(WIDTH, 6), nn.Parameter(normal(6, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gumbel_softmax(self.layer(x), tau=0.7, hard=True) @ self.codes


class Outcome(NamedTuple):
    states: torch.Tensor
    first: torch.Tensor


class Containers(Network):
    """Dictionaries, tuples and numbers go in; views, the argument itself and one tensor twice come out."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def inputs(self) -> tuple[Any, ...]:
        return {"x": normal(BATCH, LENGTH, WIDTH), "scale": 0.5, "more": [normal(WIDTH), None]}, (2, "sum")

    def forward(self, given: dict[str, Any], how: tuple[int, str]) -> Any:
        x = given["x"]
        y = self.layer(x) * given["scale"] + given["more"][0]
        if how[1] == "sum":
            y = y * how[0]
        return {
            "named": Outcome(y, y[:, 0]),
            "same": (y, x),
            "turned": x.transpose(1, 2),
            "none": None,
            "number": how[0] + 1,
        }


class SharedWeights(Network):
    """One layer used three times, a table of embeddings used as a matrix, a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.embed = nn.Linear(WIDTH, WIDTH), nn.Embedding(30, WIDTH)
        self.frozen = nn.Parameter(normal(WIDTH), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.relu(self.layer(x)) + self.frozen
        return F.linear(x, self.embed.weight) + x.sum().detach()


class PackedSequences(Network):
    """Sequences of different lengths through a recurrence that skips the padding."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.GRU(WIDTH, 5, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([LENGTH, 7, 2]), batch_first=True)
        states, _ = self.recurrent(packed)
        return nn.utils.rnn.pad_packed_sequence(states, batch_first=True)[0]
