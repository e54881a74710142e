"""Networks around one kind of operation: norms, losses, masks, scans, transforms, sorting, precision."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from handwritten import BATCH, LENGTH, WIDTH, Network, images, integers, normal
from torch import nn


class Norms(Network):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.rms = nn.LayerNorm((4, 8), eps=1e-3), nn.RMSNorm(8)
        self.group, self.instance = nn.GroupNorm(3, 6), nn.InstanceNorm2d(6, affine=True, track_running_stats=True)

    def inputs(self) -> tuple[Any, ...]:
        return (normal(BATCH, 6, 4, 8),)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x) + self.rms(x) + self.group(x) + self.instance(x)
        return F.local_response_norm(y, 3) + F.normalize(y, p=3, dim=1)


class Activations(Network):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [
                nn.PReLU(LENGTH),
                nn.CELU(0.7),
                nn.SELU(),
                nn.Softplus(beta=2, threshold=3),
                nn.Hardtanh(-0.5, 0.8),
                nn.LogSigmoid(),
                nn.Tanhshrink(),
                nn.Softshrink(0.3),
                nn.Hardshrink(0.4),
                nn.Softsign(),
                nn.Threshold(0.1, -1.0),
                nn.ReLU6(),
                nn.RReLU(),
                nn.Softmin(-1),
            ]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([*(layer(x) for layer in self.layers), F.glu(torch.cat([x, x.flip(-1)], -1))])


class EmbeddingBags(Network):
    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(20, 6, mode=mode) for mode in ("sum", "mean", "max"))
        self.table = nn.Embedding(20, 6, padding_idx=3, max_norm=None)

    def inputs(self) -> tuple[Any, ...]:
        return integers(20, 14), torch.tensor([0, 4, 4, 9])

    def forward(self, tokens: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return torch.cat([*(bag(tokens, offsets) for bag in self.bags), self.table(tokens[:4])], -1)


class ClassLosses(Network):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, 5)
        self.register_buffer("weight", torch.tensor([0.5, 1.0, 2.0, 1.5, 0.1]))

    def inputs(self) -> tuple[Any, ...]:
        return *super().inputs(), integers(5, BATCH, LENGTH).index_fill(1, torch.tensor([2]), -100)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        logits, known = self.head(x).flatten(0, 1), labels.flatten()
        smooth = F.cross_entropy(logits, known, weight=self.weight, label_smoothing=0.1)
        each = F.cross_entropy(self.head(x).mT, labels, reduction="none")
        likelihood = F.nll_loss(logits.log_softmax(-1), known, reduction="sum")
        soft = F.cross_entropy(logits, logits.detach().roll(1, 0).softmax(-1))
        margin = F.multi_margin_loss(logits, known.clamp(min=0))
        return smooth, each, likelihood, soft, margin


class OtherLosses(Network):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> Any:
        y, target = self.head(x), x.roll(1, 0)
        positive = (target > 0).to(x.dtype)
        return (
            F.binary_cross_entropy_with_logits(y, positive, pos_weight=torch.arange(1.0, 1 + WIDTH)),
            F.binary_cross_entropy(y.sigmoid(), positive, reduction="none"),
            F.smooth_l1_loss(y, target, beta=0.5),
            F.huber_loss(y, target, delta=0.7),
            F.kl_div(y.log_softmax(-1), target.log_softmax(-1), log_target=True, reduction="batchmean"),
            F.poisson_nll_loss(y, positive),
            F.gaussian_nll_loss(y, target, x.square()),
            F.soft_margin_loss(y, positive * 2 - 1),
            F.margin_ranking_loss(y[..., 0], y[..., 1], positive[..., 0] * 2 - 1, margin=0.2),
            F.cosine_embedding_loss(y.flatten(0, 1), target.flatten(0, 1), positive[..., 0].flatten() * 2 - 1),
            F.triplet_margin_loss(y, target, x, swap=True),
            F.l1_loss(y, target, reduction="sum"),
        )


class CtcLoss(Network):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, 6)

    def inputs(self) -> tuple[Any, ...]:
        return *super().inputs(), 1 + integers(5, BATCH, 4)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        likelihoods = self.head(x).log_softmax(-1).transpose(0, 1)
        return F.ctc_loss(likelihoods, labels, torch.full((BATCH,), LENGTH), torch.tensor([4, 2, 3]))


class Masks(Network):
    """Every way to treat the elements that a mask or an index names."""

    def __init__(self) -> None:
        super().__init__()
        self.fill = nn.Parameter(torch.tensor(0.5))

    def inputs(self) -> tuple[Any, ...]:
        return *super().inputs(), integers(2, BATCH, LENGTH, WIDTH).bool()

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> Any:
        filled = x.masked_fill(mask, self.fill)
        chosen = torch.where(mask, x, self.fill * x.square())
        scattered = x.masked_scatter(mask, chosen * 2)
        put = x.index_put(
            (torch.tensor([0, 2, 0]), torch.tensor([1, 1, 1])), self.fill.expand(3, WIDTH), accumulate=True
        )
        mean = (x * mask).sum(1) / mask.sum(1).clamp(min=1)
        return filled + scattered + put, mean, torch.take_along_dim(x, mask.long(), 1)


class Selections(Network):
    """Results whose size the data decides."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, 4)

    def forward(self, x: torch.Tensor) -> Any:
        kept = x[x[..., 0] > 0]
        return self.layer(kept), torch.nonzero(x[0, 0] > 0), torch.masked_select(x, x > 1) * 2


class Einsums(Network):
    def __init__(self) -> None:
        super().__init__()
        self.pair = nn.Bilinear(WIDTH, WIDTH, 5)
        self.core = nn.Parameter(normal(3, 4, 5))

    def forward(self, x: torch.Tensor) -> Any:
        y = x.roll(1, 1)
        low, tall = x[..., :3], x[..., 3:7]
        return (
            self.pair(x, y),
            torch.einsum("bti,btj,ijk->btk", low, tall, self.core),
            torch.einsum("bti,bsi->bts", x, y),
            torch.einsum("tii->ti", x[:, :, :LENGTH]),
            torch.einsum("...i,...i", x, y),
            torch.tensordot(x, y, dims=([1, 2], [1, 2])),
            torch.linalg.multi_dot([x[0], y[0].t(), x[1]]),
            torch.kron(x[0, :2, :2], y[0, :2, :3]),
        )


class FourierMixing(Network):
    """Mixing over both axes by Fourier transforms, and a filter in the space of frequencies."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(normal(LENGTH // 2 + 1, WIDTH, 2))

    def forward(self, x: torch.Tensor) -> Any:
        mixed = torch.fft.fft(torch.fft.fft(x, dim=-1), dim=1).real
        frequencies = torch.fft.rfft(x, dim=1, norm="ortho") * torch.view_as_complex(self.filter)
        return mixed, torch.fft.irfft(frequencies, n=LENGTH, dim=1, norm="ortho"), torch.fft.fftshift(frequencies.abs())


class ComplexNumbers(Network):
    def __init__(self) -> None:
        super().__init__()
        self.phase = nn.Parameter(normal(WIDTH // 2))

    def forward(self, x: torch.Tensor) -> Any:
        z = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
        turned = z * torch.polar(torch.ones_like(self.phase), self.phase)
        product = turned @ turned.mH
        return torch.view_as_real(turned).flatten(-2), product.real + product.imag, turned.angle().sin(), product.abs()


class Scans(Network):
    """Running sums, products and extremes."""

    def __init__(self) -> None:
        super().__init__()
        self.decay = nn.Parameter(normal(WIDTH))

    def forward(self, x: torch.Tensor) -> Any:
        gates = torch.sigmoid(x + self.decay)
        weights = gates.cumprod(1)
        most, place = x.cummax(1)
        summed = (x / weights.clamp(min=1e-3)).cumsum(1) * weights
        return summed, x.logcumsumexp(1), most, place, torch.diff(x, dim=1, prepend=x[:, :1])


class StateSpace(Network):
    """A selective recurrence, one step after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.rates = nn.Parameter(torch.log(torch.arange(1.0, 5.0)).repeat(WIDTH, 1))
        self.project, self.step, self.skip = (
            nn.Linear(WIDTH, 8),
            nn.Linear(WIDTH, WIDTH),
            nn.Parameter(torch.ones(WIDTH)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        enter, leave = self.project(x).chunk(2, -1)
        step = F.softplus(self.step(x))
        decay = torch.exp(-step[..., None] * self.rates.exp())
        drive = (step * x)[..., None] * enter[:, :, None]
        state, found = torch.zeros_like(drive[:, 0]), []
        for t in range(x.shape[1]):
            state = decay[:, t] * state + drive[:, t]
            found.append((state * leave[:, t, None]).sum(-1))
        return torch.stack(found, 1) + self.skip * x


class DeformableSampling(Network):
    """An image read at places that a network moves, and through an affine map."""

    def __init__(self) -> None:
        super().__init__()
        self.offsets = nn.Conv2d(3, 2, 3, padding=1)
        self.map = nn.Parameter(torch.tensor([[1.0, 0.2, 0.1], [-0.1, 0.8, 0.05]]))

    def inputs(self) -> tuple[Any, ...]:
        return (images(3, 8),)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grid = F.affine_grid(self.map.expand(x.shape[0], 2, 3), list(x.shape), align_corners=False)
        moved = grid + 0.1 * torch.tanh(self.offsets(x)).permute(0, 2, 3, 1)
        near = F.grid_sample(x, grid, mode="nearest", padding_mode="border", align_corners=False)
        return F.grid_sample(x, moved, mode="bilinear", padding_mode="reflection", align_corners=False) + near


class Pooling(Network):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 1)

    def inputs(self) -> tuple[Any, ...]:
        return (images(3, 12),)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.layer(x)
        pooled, places = F.max_pool2d(y, 2, return_indices=True)
        return (
            F.max_unpool2d(pooled, places, 2),
            F.avg_pool2d(y, 3, stride=2, padding=1, count_include_pad=False),
            F.lp_pool2d(y.abs(), 3.0, 2),
            F.adaptive_max_pool2d(y, (5, 3)),
            F.fractional_max_pool2d(y, 2, output_size=5),
            F.max_pool1d(y.flatten(2), 5, stride=3, dilation=2, ceil_mode=True),
        )


class Padding(Network):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(normal(3, 1, 1))

    def inputs(self) -> tuple[Any, ...]:
        return (images(3, 6),)

    def forward(self, x: torch.Tensor) -> Any:
        x = x * self.scale
        reflected, repeated, around = (F.pad(x, (2, 1, 0, 3), mode=m) for m in ("reflect", "replicate", "circular"))
        folded = F.fold(F.unfold(x, 3, padding=1, stride=2), (6, 6), 3, padding=1, stride=2)
        return reflected + repeated * around, folded, F.pad(x, (-1, 2), value=0.5), x.unfold(2, 3, 2).sum(-1)


class Sorting(Network):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(normal(WIDTH))

    def forward(self, x: torch.Tensor) -> Any:
        x = x * self.scale
        ordered, places = x.sort(dim=-1, descending=True, stable=True)
        least, where = x.kthvalue(3, dim=-1)
        middle = x.median(1).values
        first = x.gather(-1, x.argsort(-1)[..., :2])
        return ordered, places, least, where, middle, first, x.topk(3, dim=1, largest=False).values, x.quantile(0.3, 1)


class Reductions(Network):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(normal(WIDTH))

    def forward(self, x: torch.Tensor) -> Any:
        x = x * self.scale
        ties = x.round()
        variance, mean = torch.var_mean(x, (0, 2), correction=0)
        return (
            variance,
            mean,
            x.std(1, correction=2),
            ties.amax((0, 1)),
            ties.max(),
            ties.min(1),
            x.prod(-1),
            x.logsumexp((1, 2)),
            torch.linalg.vector_norm(x, 3, dim=1),
            x.norm(),
            (x > 0).any(-1),
            (x > -1).all(1),
            x.argmax(),
            torch.count_nonzero(ties, 2),
            x.nan_to_num().aminmax(dim=1),
        )


class Integers(Network):
    """Whole numbers: hashing, division with signs, shifts, counting."""

    trains = False

    def inputs(self) -> tuple[Any, ...]:
        return integers(1000, BATCH, LENGTH) - 500, integers(6, BATCH, LENGTH) + 1

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        hashed = ((x * 2654435761) ^ (x >> 3)) & 0xFFFF
        divided = x // y, x % y, torch.fmod(x, y), torch.div(x, y, rounding_mode="trunc"), x / y
        narrow = x.to(torch.int8) * 3, (x.to(torch.int32) << 4) | 1, ~y, x.to(torch.uint8)
        counted = F.one_hot(y, 7).sum(1), torch.bincount(y.flatten(), minlength=9), (x == y).sum()
        return hashed, divided, narrow, counted, torch.gcd(x, y), x.clamp(-3, 7), x.cumsum(1)


class Splines(Network):
    """A piecewise linear function with learned heights: searching, gathering, interpolating."""

    def __init__(self) -> None:
        super().__init__()
        self.heights = nn.Parameter(normal(WIDTH, 9))
        self.register_buffer("knots", torch.linspace(-2, 2, 9))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        place = (torch.bucketize(x, self.knots) - 1).clamp(0, 7)
        share = (x - self.knots[place]) / (self.knots[place + 1] - self.knots[place])
        table = self.heights.expand(*x.shape, 9)
        low, high = (table.gather(-1, (place + i)[..., None]).squeeze(-1) for i in (0, 1))
        return torch.lerp(low, high, share)


class LinearAlgebra(Network):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.layer(x)
        gram = y.mT @ y / LENGTH + torch.eye(WIDTH)
        factor = torch.linalg.cholesky(gram)
        solved = torch.linalg.solve_triangular(factor, x.mT, upper=False)
        return (
            factor,
            solved,
            torch.linalg.inv(gram),
            gram.logdet(),
            torch.linalg.eigvalsh(gram),
            torch.matrix_exp(gram / 20),
        )


class MixedPrecision(Network):
    """Products in bfloat16 by autocast, sums in float32."""

    limit = 2e-2

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x + self.leave(F.gelu(self.enter(self.norm(x)))).softmax(-1)


class ManyPrecisions(Network):
    limit = 1e-2

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(normal(WIDTH))

    def forward(self, x: torch.Tensor) -> Any:
        half, brain, double = x.half() * 2, x.bfloat16() + 1, x.double() * self.scale
        return half + 1, brain * half.to(torch.bfloat16), double.mean(1), (half + double).float(), x + torch.tensor(3)
