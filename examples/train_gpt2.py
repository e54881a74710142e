"""Trains a small GPT-2 on sums written out as text: on the CPU or on device neuron, eager or compiled.

The same program prints the same losses on both devices, digit by digit, and within rounding when compiled. With
``--threads 4`` four models train at once, with seeds ``--seed`` and the three after it, each as if it were alone:
PyTorch's default generator is one for all threads, so that every model draws its batches and its dropout from a
generator of its own.
"""

import argparse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn
from torch.nn import functional as F

TEXT = "\n".join(f"{a}+{b}={a + b}" for a in range(60) for b in range(60))
SYMBOLS = sorted(set(TEXT))
KEPT = 0.9  # 1 - dropout


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, noise: torch.Tensor, noise_of_attention: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        future = torch.ones(time, time, dtype=torch.bool, device=x.device).triu(1)
        scores = (q @ k.transpose(2, 3) / q.shape[-1] ** 0.5).masked_fill(future, float("-inf"))
        mixed = (scores.softmax(3) * noise_of_attention @ v).transpose(1, 2).reshape(batch, time, width)
        x = x + self.project(mixed) * noise[0]
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh")) * noise[1]


class GPT2(nn.Module):
    """Tokens and dropout in, logits out; dropout is what values are multiplied by, 0 or 1 / KEPT."""

    def __init__(self, layers: int, width: int, heads: int, time: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(len(SYMBOLS), width), nn.Embedding(time, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.02)

    def forward(self, tokens: torch.Tensor, noise: torch.Tensor, noise_of_attention: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        x = x * noise[0]
        for number, block in enumerate(self.blocks):
            x = block(x, noise[2 * number + 1 : 2 * number + 3], noise_of_attention[number])
        return F.linear(self.norm(x), self.tokens.weight)


def train(model: nn.Module, seed: int, given: argparse.Namespace) -> Iterator[float]:
    """Losses, each when its step is done; every random number comes from a generator of this call."""
    generator = torch.Generator(given.device).manual_seed(seed)
    text = torch.tensor([SYMBOLS.index(symbol) for symbol in TEXT], device=given.device)
    window = torch.arange(given.time + 1, device=given.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def dropout(*shape: int) -> torch.Tensor:
        return torch.empty(shape, device=given.device).bernoulli_(KEPT, generator=generator) / KEPT

    for step in range(given.steps):
        high = len(TEXT) - given.time
        starts = torch.randint(high, (given.batch, 1), generator=generator, device=given.device)
        tokens = text[starts + window]
        noise = dropout(2 * given.layers + 1, given.batch, given.time, given.width)
        noise_of_attention = dropout(given.layers, given.batch, given.heads, given.time, given.time)
        logits = model(tokens[:, :-1], noise, noise_of_attention)
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"seed {seed} step {step} loss {loss.item():.9g}\n", end="")  # one write: threads keep to their lines
        yield loss.item()


def main(arguments: list[str] | None = None) -> dict[int, list[float]]:
    """Losses by seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "neuron"), default="neuron")
    parser.add_argument("--compile", action="store_true", help='run the model by torch.compile(backend="neuron")')
    parser.add_argument("--eager-mode", choices=("each", "fused", "compiled"), help="see docs/device.md")
    sizes = {"steps": 20, "threads": 1, "seed": 0, "batch": 8, "time": 32, "layers": 2, "width": 64, "heads": 2}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{default} unless given")
    given = parser.parse_args(arguments)
    if given.device == "neuron" and not hasattr(torch, "neuron"):
        parser.error("PyTorch has no device neuron here; `neuron-compiler setup` builds it")
    if given.eager_mode:
        torch.neuron.set_eager_mode(given.eager_mode)
    runs, losses = {}, {}
    for seed in range(given.seed, given.seed + given.threads):
        torch.manual_seed(seed)  # weights come from the default generator: one model after the other
        model = GPT2(given.layers, given.width, given.heads, given.time).to(given.device)
        runs[seed] = train(torch.compile(model, backend="neuron") if given.compile else model, seed, given)
        # PyTorch compiles for one thread at a time, and others must not run its optimizers meanwhile.
        losses[seed] = [next(runs[seed])]
    with ThreadPoolExecutor(given.threads) as pool:
        for seed, rest in zip(runs, pool.map(list, runs.values()), strict=True):
            losses[seed] += rest
    return losses


if __name__ == "__main__":
    main()
