"""The hook that ``import torch`` calls (entry-point group ``torch.backends``): makes our ``TORCH_LOGS`` names known.

Input: nothing. Output: entries in PyTorch's log registry. Invariant: never raises, because PyTorch turns an exception
here into a failed ``import torch``; imports neither jax, networkx nor Dynamo; registers no device and renames none.
``TORCH_DEVICE_BACKEND_AUTOLOAD=0`` keeps PyTorch from calling it.
"""

from __future__ import annotations

import logging

from neuron_compiler import logs

_warned = False


def register() -> None:
    """Make the log names of this package known to PyTorch; where that is not possible, say so once and go on."""
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
