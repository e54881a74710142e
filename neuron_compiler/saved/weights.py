"""The weights of a program in a file: which memory is written, how it becomes tensors again, and which are taken.

In: tensors by name. Out: a table of what each is and where it lies, memory that several share written once; and back,
with the strides and the sharing that there were. Weights that are given from outside are checked against the table.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from neuron_compiler.errors import ArtifactError
from neuron_compiler.runtime import Layout
from neuron_compiler.saved import tensor_file, values
from neuron_compiler.saved.program import WeightInfo

ALIGNMENT = 16
"""Bytes that pieces of memory begin at a multiple of: the largest element."""

PLAIN = (torch.Tensor, torch.nn.Parameter)


@dataclass(frozen=True)
class Piece:
    """One tensor of the file: its name there, and what gives it on the CPU."""

    name: str
    make: Callable[[], torch.Tensor]


def table(
    infos: Mapping[str, WeightInfo], tensors: Mapping[str, torch.Tensor], is_written: Callable[[WeightInfo], bool]
) -> tuple[dict[str, Any], list[Piece]]:
    """What each weight is, for the manifest, and the pieces to be written.

    ``is_written`` says which weights the file holds; the others are to be given when it is loaded.
    """
    described: dict[str, Any] = {}
    pieces: list[Piece] = []
    for group in _by_memory(tensors):
        first = group[0]
        written = [name for name in group if is_written(infos[name])]
        start, end = _extent([tensors[name] for name in written])
        alone = bool(written) and all(_geometry(tensors[n]) == _geometry(tensors[written[0]]) for n in written)
        alone = alone and tensors[written[0]].dtype in tensor_file.NAMED and _is_dense(tensors[written[0]])
        if written:
            pieces.append(_whole(written[0], tensors) if alone else _memory(written[0], tensors, start, end))
        for name in group:
            info, tensor = infos[name], tensors[name]
            found: dict[str, Any] = {
                "kind": info.kind,
                "persistent": info.persistent,
                "dtype": values.dtype_name(tensor.dtype),
                "size": list(tensor.shape),
                "stride": list(tensor.stride()),
                "device": str(info.device),
            }
            same = next((n for n in group if _geometry(tensors[n]) == _geometry(tensor)), first)
            if same != name:
                found["same_as"] = same
            if name in written:
                found["tensor"] = written[0]
                if not alone:
                    found["offset"] = (tensor.storage_offset() * tensor.element_size() - start) // tensor.element_size()
            described[name] = found
    return described, pieces


def _geometry(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset()


def _by_memory(tensors: Mapping[str, torch.Tensor]) -> list[list[str]]:
    """Names of tensors that share memory, together."""
    groups: dict[Any, list[str]] = {}
    for name, tensor in tensors.items():
        if type(tensor) not in PLAIN or tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
            raise ArtifactError(
                f"weight {name!r} is a {type(tensor).__name__} of layout {tensor.layout}, which has no form in a file",
                when="save",
                hint='save with weights="reference" and give the weights when loading',
            )
        memory = tensor.untyped_storage()
        # Empty memory has no address, and nothing is shared in it.
        lies = (tensor.device, memory.data_ptr()) if memory.nbytes() else name
        groups.setdefault((lies, tensor.is_conj(), tensor.is_neg()), []).append(name)
    return list(groups.values())


def _extent(tensors: list[torch.Tensor]) -> tuple[int, int]:
    """The bytes of their memory that they cover, from an aligned start."""
    starts, ends = [], []
    for tensor in tensors:
        start = tensor.storage_offset() * tensor.element_size()
        last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        starts.append(start)
        ends.append(start + (last + 1) * tensor.element_size() if tensor.numel() else start)
    start = min(starts, default=0) // ALIGNMENT * ALIGNMENT
    return start, max(ends, default=start)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements are its memory, none twice and none left out between them."""
    return Layout.of(tensor.shape, tensor.stride()).dense


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().resolve_neg().cpu()


def _whole(name: str, tensors: Mapping[str, torch.Tensor]) -> Piece:
    tensor = tensors[name]
    return Piece(name, lambda: _on_cpu(tensor))


def _memory(name: str, tensors: Mapping[str, torch.Tensor], start: int, end: int) -> Piece:
    """The memory that a group of tensors looks at, as bytes."""
    tensor = tensors[name]
    size = -(-(end - start) // ALIGNMENT) * ALIGNMENT

    def make() -> torch.Tensor:
        if tensor.is_conj() or tensor.is_neg():
            raise ArtifactError(f"weight {name!r} is a lazy conjugate that shares memory", when="save")
        bytes_ = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        bytes_.set_(tensor.untyped_storage(), start, (end - start,), (1,))
        found = torch.zeros(size, dtype=torch.uint8, device="cpu")
        found[: end - start].copy_(bytes_)
        return found

    return Piece(name, make)


def restored(described: Mapping[str, Any], pieces: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights that the file holds, as they lay."""
    found: dict[str, torch.Tensor] = {}
    placed: dict[Any, torch.Tensor] = {}
    for name, info in described.items():
        if "tensor" not in info:
            continue
        dtype, device = values.dtype(info["dtype"]), values.device(info["device"])
        size, stride = tuple(info["size"]), tuple(info["stride"])
        piece = pieces.get(info["tensor"])
        if piece is None:
            raise ArtifactError(
                f"weight {name!r} lies in {info['tensor']!r}, which the file does not hold", when="load"
            )
        if "offset" in info:
            place = (info["tensor"], "memory")
            memory = placed.setdefault(place, piece if place in placed else _moved(piece, device))
            last = sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if prod(size) else 0
            if (info["offset"] + last) * dtype.itemsize >= max(memory.numel(), 1) or min(
                info["offset"], *stride, 0
            ) < 0:
                raise ArtifactError(f"weight {name!r} does not lie in the memory that the file holds", when="load")
            found[name] = memory.view(dtype).as_strided(size, stride, info["offset"])
            continue
        if piece.dtype != dtype or tuple(piece.shape) != size:
            raise ArtifactError(f"weight {name!r} is {info}, and the file holds {piece.dtype}{size}", when="load")
        place = (info["tensor"], size, stride)
        if place not in placed:
            laid = (
                piece
                if tuple(piece.stride()) == stride
                else torch.empty_strided(size, stride, dtype=dtype).copy_(piece)
            )
            placed[place] = _moved(laid, device)
        found[name] = placed[place]
    return found


def _moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    try:
        return tensor.to(device)
    except (RuntimeError, AssertionError) as error:
        raise ArtifactError(
            f"the program's weights lie on device {device}, which this process does not have: {error}",
            when="load",
            hint="neuron-compiler setup builds device neuron",
        ) from error


def given(weights: Any) -> dict[str, torch.Tensor]:
    """Tensors by name of a module, a mapping such as its ``state_dict``, or a safetensors file."""
    if isinstance(weights, torch.nn.Module):
        return {
            **dict(weights.named_parameters(remove_duplicate=False)),
            **dict(weights.named_buffers(remove_duplicate=False)),
        }
    if isinstance(weights, Mapping):
        return dict(weights)
    if isinstance(weights, str | os.PathLike):
        return _from_file(os.fspath(weights))
    raise ArtifactError(
        f"weights are a module, a mapping of names to tensors, or a path; not {type(weights).__name__}", when="load"
    )


def _from_file(path: str) -> dict[str, torch.Tensor]:
    try:
        return tensor_file.read(path)
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror}", when="load") from error
    except ArtifactError as error:
        if path.endswith((".pt", ".pth", ".bin")):
            error.suggest("weights=torch.load(path) where you trust the file")
        raise


def chosen(
    described: Mapping[str, Any], held: Mapping[str, torch.Tensor], outside: Mapping[str, torch.Tensor] | None
) -> dict[str, torch.Tensor]:
    """The weights to run with: those given from outside before those that the file holds.

    Raises ArtifactError for a weight that is nowhere, or is of another type, size or device.
    """
    found = {**held, **{n: t for n, t in (outside or {}).items() if n in described}}
    if missing := [name for name in described if name not in found]:
        where = "the file holds no values of it, and none were given" if outside is None else "is not among those given"
        raise ArtifactError(
            f"weight {missing[0]!r} {where}" + (f", nor {len(missing) - 1} others" if len(missing) > 1 else ""),
            when="load",
            hint="neuron_compiler.load(path, weights=module) or weights=module.state_dict()",
        )
    for name, info in described.items():
        _check(name, found[name], info)
    for name, info in described.items():
        if (same := info.get("same_as")) is not None and not _equal(found[name], found[same]):
            raise ArtifactError(
                f"weights {name!r} and {same!r} were one tensor when the program was compiled, and differ now",
                when="load",
                hint="tie them again, or export and compile the program with the weights apart",
            )
    return {name: found[name] for name in described}


def _check(name: str, tensor: Any, info: Mapping[str, Any]) -> None:
    wanted = f"{info['dtype']}{info['size']} on {info['device']}"
    if not isinstance(tensor, torch.Tensor):
        raise ArtifactError(f"weight {name!r} is {type(tensor).__name__}, not a tensor {wanted}", when="load")
    dtype = values.dtype_name(tensor.dtype)
    if dtype != info["dtype"] or list(tensor.shape) != info["size"] or tensor.layout is not torch.strided:
        raise ArtifactError(
            f"weight {name!r} is {dtype}{list(tensor.shape)}; the program was compiled for {wanted}", when="load"
        )
    if tensor.device != values.device(info["device"]):
        raise ArtifactError(
            f"weight {name!r} lies on {tensor.device}; the program was compiled for {wanted}",
            when="load",
            hint=f"move the weights: module.to({info['device']!r})",
        )


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a is b or (a.data_ptr() == b.data_ptr() and a.stride() == b.stride()):
        return True
    same = (a == b) | ((a != a) & (b != b))
    return bool(same.all())
