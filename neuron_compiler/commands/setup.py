"""Build what is compiled once for this PyTorch: the C++ part of device neuron, into the user's cache."""

from __future__ import annotations

import argparse

from neuron_compiler.errors import DeviceError

HELP = "build device neuron for the PyTorch that is installed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of this command."""
    parser.add_argument(
        "--package",
        action="store_true",
        help="into the package itself: for those who make a wheel that carries the library",
    )


def run(arguments: argparse.Namespace) -> int:
    """Build the library if it is not there, register the device, and compute on it."""
    import torch

    import neuron_compiler.eager_fallback  # noqa: F401  registers the device
    from neuron_compiler import device_library, host_library
    from neuron_compiler.eager_fallback import build, loader

    if arguments.package:
        print(f"built: {build.build(device_library.PREBUILT)}")
        print(f"built: {host_library.build(host_library.PREBUILT)}")
    computed = torch.ones(3, device="neuron").sum().item()
    if computed != 3.0:
        raise DeviceError(f"device neuron computes 1 + 1 + 1 = {computed}")
    print(f"device neuron is ready: {torch.neuron.device_count()} of {torch.neuron.get_device_name()}")
    print(f"library: {loader.loaded().path}")
    return 0
