"""Small networks of many kinds, compiled: what a call returns and leaves behind, and one step of training."""

from __future__ import annotations

import hand_attention
import hand_networks
import hand_operations
import hand_programs
import pytest
import torch
from handwritten import Network
from steps import Specimen, assert_forward, assert_training

NETWORKS: list[type[Network]] = [
    found
    for module in (hand_networks, hand_attention, hand_operations, hand_programs)
    for found in vars(module).values()
    if isinstance(found, type) and issubclass(found, Network) and found.__module__ == module.__name__
]


def build(network: type[Network]) -> Specimen:
    """The network with random weights and its arguments."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = network()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape))
        return Specimen(module, module.inputs(), limit=module.limit)


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.__name__)
def test_forward(network: type[Network]) -> None:
    assert_forward(build(network))


@pytest.mark.parametrize("network", [n for n in NETWORKS if n.trains], ids=lambda network: network.__name__)
def test_training_step(network: type[Network]) -> None:
    assert_training(build(network))
