"""Networks by what they are made of: dense, convolutional, recurrent, graph, experts, generative."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from handwritten import BATCH, LENGTH, WIDTH, Network, images, integers, normal
from torch import nn


class Perceptron(Network):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Dropout(0.2), nn.Linear(32, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class ConvolutionalClassifier(Network):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 12, 3, stride=2),
            nn.BatchNorm2d(12, momentum=None),
            nn.LeakyReLU(0.1),
            nn.AdaptiveAvgPool2d(2),
        )
        self.head = nn.Linear(48, 5)

    def inputs(self) -> tuple[Any, ...]:
        return (images(),)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x).flatten(1))


class SqueezeAndExcite(Network):
    """Depthwise separable convolution, channels weighted by their mean, and a residual sum."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(8, 8, 5, padding=2, groups=8)
        self.pointwise = nn.Conv2d(8, 8, 1)
        self.norm = nn.BatchNorm2d(8)
        self.squeeze = nn.Conv2d(8, 2, 1)
        self.excite = nn.Conv2d(2, 8, 1)

    def inputs(self) -> tuple[Any, ...]:
        return (images(8).to(memory_format=torch.channels_last),)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.hardswish(self.norm(self.pointwise(self.depthwise(x))))
        weight = F.hardsigmoid(self.excite(F.relu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        return x + y * weight


class UNet(Network):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU())
        self.down = nn.Sequential(nn.Conv2d(8, 16, 4, stride=2, padding=1), nn.GroupNorm(4, 16), nn.SiLU())
        self.bottom = nn.Conv2d(16, 16, 3, padding=2, dilation=2)
        self.up = nn.ConvTranspose2d(16, 8, 3, stride=2, padding=1, output_padding=1)
        self.leave = nn.Conv2d(16, 2, 1)

    def inputs(self) -> tuple[Any, ...]:
        return (images(),)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        high = self.enter(x)
        low = self.bottom(self.down(high))
        joined = torch.cat([high, self.up(low)], 1)
        return self.leave(joined) + F.interpolate(low[:, :2], scale_factor=2, mode="bilinear", align_corners=False)


class SuperResolution(Network):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 12, 3, padding=1, padding_mode="reflect")

    def inputs(self) -> tuple[Any, ...]:
        return (images(3, 7),)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bicubic = F.interpolate(x, size=(14, 14), mode="bicubic", align_corners=True)
        return F.pixel_shuffle(self.layer(x), 2) + bicubic


class CausalConvolution(Network):
    """Dilated convolutions over time that see the past alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(WIDTH, WIDTH, 2, dilation=2**i) for i in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.transpose(1, 2)
        for i, layer in enumerate(self.layers):
            x = x + torch.tanh(layer(F.pad(x, (2**i, 0))))
        return x.transpose(1, 2)


class Volume(Network):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv3d(2, 4, 3, padding=(0, 1, 1), groups=2)
        self.norm = nn.BatchNorm3d(4, affine=False)

    def inputs(self) -> tuple[Any, ...]:
        return (normal(2, 2, 6, 8, 8),)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.max_pool3d(F.elu(self.norm(self.layer(x))), 2) - F.adaptive_avg_pool3d(
            x.repeat(1, 2, 1, 1, 1), (2, 4, 4)
        )


class BidirectionalLstm(Network):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(WIDTH, 6, num_layers=2, bidirectional=True, batch_first=True, dropout=0.1)
        self.head = nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> Any:
        states, (hidden, cell) = self.recurrent(x)
        return self.head(states), hidden[-1] + cell[0]


class Gru(Network):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, WIDTH, padding_idx=0)
        self.recurrent = nn.GRU(WIDTH, 8)

    def inputs(self) -> tuple[Any, ...]:
        return integers(20, LENGTH, BATCH), normal(1, BATCH, 8)

    def forward(self, tokens: torch.Tensor, state: torch.Tensor) -> Any:
        return self.recurrent(self.embed(tokens), state)


class Cells(Network):
    """A recurrence written as a loop over cells, with the states collected in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LSTMCell(WIDTH, 8)
        self.second = nn.GRUCell(8, 8)
        self.third = nn.RNNCell(8, 8, nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = c = g = r = x.new_zeros(x.shape[0], 8)
        found = []
        for step in x.unbind(1)[:4]:
            h, c = self.first(step, (h, c))
            g = self.second(h, g)
            r = self.third(g, r)
            found.append(r + h)
        return torch.stack(found, dim=1)


class Mixer(Network):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.tokens = nn.Sequential(nn.Linear(LENGTH, 12), nn.GELU(approximate="tanh"), nn.Linear(12, LENGTH))
        self.channels = nn.Sequential(nn.Linear(WIDTH, 24), nn.Mish(), nn.Linear(24, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.tokens(self.norms[0](x).mT).mT
        return x + self.channels(self.norms[1](x))


class MessagePassing(Network):
    """Two rounds over a graph's edges: messages are summed, averaged and maximised by target."""

    def __init__(self) -> None:
        super().__init__()
        self.message = nn.Linear(2 * WIDTH, WIDTH)
        self.update = nn.Linear(4 * WIDTH, WIDTH)

    def inputs(self) -> tuple[Any, ...]:
        return normal(12, WIDTH), integers(12, 2, 30)

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges
        for _ in range(2):
            message = torch.tanh(self.message(torch.cat([nodes[source], nodes[target]], -1)))
            total = torch.zeros_like(nodes).index_add(0, target, message)
            index = target[:, None].expand_as(message)
            mean = torch.zeros_like(nodes).scatter_reduce(0, index, message, "mean", include_self=False)
            most = torch.zeros_like(nodes).scatter_reduce(0, index, message, "amax", include_self=False)
            nodes = nodes + self.update(torch.cat([nodes, total, mean, most], -1))
        return nodes


class MixtureOfExperts(Network):
    """Each token goes to two of four experts, weighted; every expert computes and a one-hot mask selects."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 4, bias=False)
        self.enter = nn.Parameter(normal(4, WIDTH, 24) / 4)
        self.leave = nn.Parameter(normal(4, 24, WIDTH) / 5)

    def forward(self, x: torch.Tensor) -> Any:
        scores = self.gate(x).softmax(-1)
        weights, chosen = scores.topk(2, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        mask = F.one_hot(chosen, 4).to(x.dtype) * weights[..., None]
        hidden = F.silu(torch.einsum("btd,edf->betf", x, self.enter))
        outputs = torch.einsum("betf,efd->betd", hidden, self.leave)
        balance = (mask.sum(2).mean((0, 1)) * scores.mean((0, 1))).sum() * 4
        return torch.einsum("betd,btke->btd", outputs, mask), balance


class GatheredExperts(Network):
    """The same choice, made by gathering each token's expert weights."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 4)
        self.experts = nn.Parameter(normal(4, WIDTH, WIDTH) / 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(0, 1)
        weight, chosen = self.gate(flat).sigmoid().max(-1)
        return (torch.bmm(flat[:, None], self.experts[chosen]).squeeze(1) * weight[:, None]).view_as(x)


class VariationalAutoencoder(Network):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(WIDTH, 8)
        self.decode = nn.Linear(4, WIDTH)

    def forward(self, x: torch.Tensor) -> Any:
        mean, log_variance = self.encode(x).chunk(2, -1)
        latent = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
        divergence = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum(-1)
        return self.decode(latent), divergence


class VectorQuantiser(Network):
    """The nearest entry of a codebook, with the gradient passed straight through."""

    def __init__(self) -> None:
        super().__init__()
        self.codebook = nn.Parameter(normal(12, WIDTH))

    def forward(self, x: torch.Tensor) -> Any:
        flat = x.reshape(-1, WIDTH)
        chosen = torch.cdist(flat, self.codebook).argmin(-1)
        found = F.embedding(chosen, self.codebook).view_as(x)
        return x + (found - x).detach(), F.mse_loss(found, x.detach()), chosen


class Hypernetwork(Network):
    """A network whose weights another one makes, one set for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.make = nn.Linear(4, WIDTH * 3 + 3)

    def inputs(self) -> tuple[Any, ...]:
        return normal(BATCH, LENGTH, WIDTH), normal(BATCH, 4)

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        weight, bias = self.make(condition).split([WIDTH * 3, 3], -1)
        return torch.baddbmm(bias[:, None], x, weight.view(-1, WIDTH, 3), alpha=0.5)


class Diffusion(Network):
    """A denoising step: sinusoidal time embedding, feature-wise scale and shift."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 16))
        self.enter, self.leave = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 3, padding=1)
        self.register_buffer("alphas", torch.linspace(0.99, 0.5, 20).cumprod(0))

    def inputs(self) -> tuple[Any, ...]:
        return images(), integers(20, 2)

    def forward(self, x: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        frequencies = torch.exp(-torch.arange(4) * 2.0)
        angles = steps[:, None] * frequencies
        scale, shift = self.time(torch.cat([angles.sin(), angles.cos()], -1))[..., None, None].chunk(2, 1)
        noise = self.leave(F.silu(F.group_norm(self.enter(x), 4) * (1 + scale) + shift))
        alpha = self.alphas[steps][:, None, None, None]
        return (x - (1 - alpha).sqrt() * noise) / alpha.sqrt()
