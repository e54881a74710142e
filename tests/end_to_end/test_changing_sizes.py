"""Models whose batch and sequence change: one trace, as many programs as sizes or buckets, gradients as eager's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.utils import counters

from neuron_compiler import LEDGER, neuron


class Block(nn.Module):
    """A causal transformer block with learned positions."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(11, 8), nn.Embedding(16, 8)
        self.norm, self.mixed = nn.LayerNorm(8), nn.Linear(8, 24)
        self.out, self.head = nn.Linear(8, 8), nn.Linear(8, 11)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        parts = self.mixed(self.norm(x)).view(*ids.shape, 3, 2, 4).permute(2, 0, 3, 1, 4)
        heads = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).reshape(x.shape))
        return self.head(F.gelu(x))


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3), nn.Linear(4, 3)
        self.norm = nn.GroupNorm(2, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(self.norm(self.first(x)).relu()).amax((2, 3)))


def ids(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, 11, (batch, length))


def compiled(model, **options):
    torch._dynamo.reset()
    torch.manual_seed(0)
    return torch.compile(model, backend=neuron, dynamic=True, options=options)


SIZES = ((2, 5), (3, 5), (3, 7), (4, 6), (2, 8))


@pytest.mark.parametrize(("buckets", "programs"), [(None, len(SIZES)), ([4, 8], 2)])
def test_a_transformer_is_traced_once(buckets, programs):
    model = Block().eval()
    run = compiled(model, buckets=buckets)
    with torch.no_grad():
        for batch, length in SIZES:
            x = ids(batch, length)
            torch.testing.assert_close(run(x), model(x))
    assert counters["stats"]["unique_graphs"] == 1
    # One for each size; with buckets, one for each bucket: [4, 8], and [2, 8], whose batch is below every bucket but 4.
    assert LEDGER.total("compile") <= programs
    assert LEDGER.total("fallback") == 0


@pytest.mark.parametrize("buckets", [None, "powers_of_2"])
def test_a_transformer_is_trained_on_any_length(buckets):
    model = Block()
    parameters = list(model.parameters())
    run = compiled(lambda x: F.cross_entropy(model(x).flatten(0, 1), x.flatten()), buckets=buckets)
    for batch, length in ((2, 5), (3, 6), (2, 7)):
        x = ids(batch, length)
        found = torch.autograd.grad(run(x), parameters)
        expected = torch.autograd.grad(F.cross_entropy(model(x).flatten(0, 1), x.flatten()), parameters)
        torch.testing.assert_close(found, expected)
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize(("buckets", "programs"), [(None, 3), ("powers_of_2", 1)])
def test_a_convolutional_network_is_trained_on_any_batch(buckets, programs):
    model = Images()
    parameters = list(model.parameters())
    torch._dynamo.reset()
    torch.manual_seed(0)
    run = torch.compile(lambda x: model(x).pow(2).sum(), backend=neuron, options={"buckets": buckets})
    for n in (5, 6, 7):
        x = torch.randn(n, 2, 6, 6)
        torch._dynamo.mark_dynamic(x, 0)
        found = torch.autograd.grad(run(x), parameters)
        torch.testing.assert_close(found, torch.autograd.grad(model(x).pow(2).sum(), parameters), rtol=1e-4, atol=1e-4)
    assert counters["stats"]["unique_graphs"] == 1
    assert LEDGER.total("compile") == 2 * programs


def test_sizes_as_numbers_need_no_trace():
    def model(x):
        return x.sum(0) / x.shape[0] + x.numel() + torch.full((2,), x.shape[1]).sum(), x.shape[0] * 2

    run = compiled(model)
    for n, m in ((3, 5), (4, 6), (7, 2), (7, 9)):
        x = torch.randn(n, m)
        torch.testing.assert_close(run(x), model(x))
    assert counters["stats"]["unique_graphs"] == 1


def test_sizes_0_and_1_are_traced_apart():
    run = compiled(lambda x: (x * 2).sum(0))
    for n in (3, 0, 1, 4, 0, 1, 5):
        x = torch.randn(n, 4)
        torch.testing.assert_close(run(x), (x * 2).sum(0))
    assert counters["stats"]["unique_graphs"] == 3
