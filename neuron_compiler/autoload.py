"""The hook that ``import torch`` calls (entry-point group ``torch.backends``): makes our ``TORCH_LOGS`` names known.

Input: nothing. Output: entries in PyTorch's log registry. Invariant: never raises, because PyTorch turns an exception
here into a failed ``import torch``; imports neither jax, networkx nor Dynamo; registers no device and renames none.
"""

from __future__ import annotations


def register() -> None:
    """Make the log names of this package known to PyTorch; warns once where PyTorch's registry has changed."""
