"""Build what is compiled once for this PyTorch: the C++ part of device neuron, into the user's cache."""

from __future__ import annotations

import argparse

HELP = "build device neuron for the PyTorch that is installed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """This command has no arguments."""


def run(arguments: argparse.Namespace) -> int:
    """Build the library if it is not there, register the device, and compute on it."""
    import torch

    import neuron_compiler.eager_fallback
    from neuron_compiler.eager_fallback import loader

    computed = torch.ones(3, device="neuron").sum().item()
    if computed != 3.0:
        raise neuron_compiler.errors.DeviceError(f"device neuron computes 1 + 1 + 1 = {computed}")
    print(f"device neuron is ready: {torch.neuron.device_count()} of {torch.neuron.get_device_name()}")
    print(f"library: {loader.loaded().path}")
    return 0
