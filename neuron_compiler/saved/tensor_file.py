"""Tensors in the safetensors format, written and read by its library.

In: tensors by name. Out: bytes; and back, in memory of PyTorch's own, which programs take without a copy. Types that
older readers have no name for are for the caller to write as bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from neuron_compiler.errors import ArtifactError

NAMED = frozenset(
    {
        torch.bool,
        *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
        *(torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16, torch.float32, torch.float64),
    }
)
"""Element types that the format has a name for."""


def content(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """A file of dense tensors on the CPU, no two of which share memory."""
    from safetensors.torch import save

    return save({name: tensor.detach().contiguous() for name, tensor in tensors.items()})


def parsed(data: bytes, what: str) -> dict[str, torch.Tensor]:
    """The tensors of a file's bytes; ArtifactError, with ``what`` it is, where they are none."""
    from safetensors.torch import load

    return _own(lambda: load(data), what)


def read(path: str) -> dict[str, torch.Tensor]:
    """The tensors of a file; OSError where it cannot be read, ArtifactError where it is no such file."""
    from safetensors.torch import load_file

    with Path(path).open("rb"):  # the library's own error has no number
        pass
    return _own(lambda: load_file(path), path)


def _own(load: Callable[[], dict[str, torch.Tensor]], what: str) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError

    try:
        # The library's tensors lie wherever the file has them; XLA would copy those at every call.
        return {name: tensor.clone() for name, tensor in load().items()}
    except SafetensorError as error:
        raise ArtifactError(f"{what} is no safetensors file: {error}", when="load") from None
