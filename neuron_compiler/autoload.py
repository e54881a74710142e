"""The hook that ``import torch`` calls (entry-point group ``torch.backends``): ``TORCH_LOGS`` names, device ``neuron``.

Input: nothing. Output: entries in PyTorch's log registry, and the device where its library has been built and there is
no other accelerator. Invariant: never raises, because PyTorch turns an exception here into a failed ``import torch``;
compiles nothing; imports neither jax, networkx nor Dynamo. ``TORCH_DEVICE_BACKEND_AUTOLOAD=0`` keeps PyTorch from
calling it, ``NEURON_COMPILER_DEVICE=0`` keeps it from registering the device.
"""

from __future__ import annotations

import logging

from neuron_compiler import device_library, logs, options

_warned = False
_warned_of_device = False


def register() -> None:
    """Make the log names known and register the device; where that is not possible, say so once and go on."""
    global _warned
    try:
        logs.register_with_torch()
    except Exception as fault:
        # Through logging, not warnings: under `python -W error` a warning would be raised, and torch with it.
        if not _warned:
            _warned = True
            logging.getLogger(logs.PACKAGE).warning(
                "TORCH_LOGS does not know %s, %s: %s: %s",
                logs.ALIAS,
                ", ".join(logs.ARTIFACTS),
                type(fault).__name__,
                fault,
            )
    _register_device()


def _register_device() -> None:
    global _warned_of_device
    try:
        if device_can_be_registered():
            # Registers; that the library is there keeps it from being compiled now.
            import neuron_compiler.eager_fallback  # noqa: F401
    except Exception as fault:
        if not _warned_of_device:
            _warned_of_device = True
            logging.getLogger(logs.PACKAGE).warning(
                "there is no device neuron in this process: %s: %s", type(fault).__name__, fault
            )


def device_can_be_registered() -> bool:
    """Whether the device's library is built, and nothing speaks against registering it without being asked."""
    wanted = options.device_wanted()
    if wanted is False or device_library.find() is None:
        return False
    import torch

    return wanted is True or not torch.accelerator.is_available()
