"""Safetensors, written and read a tensor at a time: a header in JSON, then the bytes.

The format is public (github.com/huggingface/safetensors); files written here are read by other tools. Types that it has
no name for are written as bytes. Invariant: a header is checked whole before a byte is read by it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from neuron_compiler.errors import ArtifactError

NAMES: Mapping[torch.dtype, str] = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
}
DTYPES = {name: dtype for dtype, name in NAMES.items()}
MAX_HEADER_BYTES = 100_000_000
"""What the reference implementation takes at most."""


@dataclass(frozen=True)
class Entry:
    """A tensor in a file: its type and sizes, and where its bytes lie, counted from the end of the header."""

    name: str
    dtype: torch.dtype
    size: tuple[int, ...]
    start: int
    end: int


def data(tensor: torch.Tensor) -> memoryview:
    """Row-major bytes of a dense tensor on the CPU; they belong to it where it is row-major."""
    flat = tensor.detach().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy()) if flat.numel() else memoryview(b"")


def write(
    put: Callable[[bytes | memoryview], Any], tensors: Iterable[tuple[str, Callable[[], torch.Tensor], torch.Tensor]]
) -> None:
    """Write tensors: their names, what gives each on the CPU, and one of the same type and size, which may be fake."""
    header: dict[str, Any] = {}
    order = []
    start = 0
    for name, make, like in tensors:
        end = start + like.numel() * like.element_size()
        header[name] = {"dtype": NAMES[like.dtype], "shape": list(like.shape), "data_offsets": [start, end]}
        order.append(make)
        start = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    put(len(text).to_bytes(8, "little"))
    put(text)
    for make in order:
        put(data(make()))


def read_header(read: Callable[[int], bytes], size: int, what: str) -> list[Entry]:
    """The tensors of a file of ``size`` bytes, in the order in which they lie; ArtifactError where it is none."""

    def fail(why: str) -> ArtifactError:
        return ArtifactError(f"{what} is no safetensors file: {why}", when="load")

    length = int.from_bytes(read(8), "little")
    if size < 8 or not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
        raise fail("its header has no length")
    try:
        header = json.loads(read(length))
    except ValueError as error:
        raise fail(f"its header cannot be read: {error}") from None
    if not isinstance(header, dict):
        raise fail("its header is no table")
    header.pop("__metadata__", None)
    entries = []
    for name, found in header.items():
        try:
            dtype = DTYPES[found["dtype"]]
            shape, (start, end) = tuple(map(int, found["shape"])), map(int, found["data_offsets"])
        except (KeyError, TypeError, ValueError):
            raise fail(f"tensor {name!r} is described as {found!r}") from None
        if any(n < 0 for n in shape) or end - start != prod(shape) * dtype.itemsize:
            raise fail(f"tensor {name!r} has {end - start} bytes for {dtype} of sizes {list(shape)}")
        entries.append(Entry(name, dtype, shape, start, end))
    entries.sort(key=lambda entry: (entry.start, entry.end))
    position = 0
    for entry in entries:
        if entry.start != position:
            raise fail(f"tensor {entry.name!r} lies at byte {entry.start}, not at {position}")
        position = entry.end
    if position != size - 8 - length:
        raise fail(f"it holds {size - 8 - length} bytes of tensors and describes {position}")
    return entries


def read_tensors(entries: Iterable[Entry], fill: Callable[[memoryview], None]) -> dict[str, torch.Tensor]:
    """Tensors in new memory; ``fill`` is given the memory of each, in the order in which they lie in the file."""
    found = {}
    for entry in entries:
        tensor = torch.empty(entry.size, dtype=entry.dtype, device="cpu")
        if entry.end > entry.start:
            fill(memoryview(tensor.reshape(-1).view(torch.uint8).numpy()))
        found[entry.name] = tensor
    return found
