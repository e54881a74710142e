"""A bucket's executable, called with arguments of a true size: they are padded, and the results cut back.

Padding repeats the last element of its dimension, so that what is computed of it can fail only where the true elements
do. Results are as those of an executable of the true size: fresh memory of the recorded sizes and strides.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from neuron_compiler import dtypes
from neuron_compiler.buckets.extent import Dim, Tensor, extents
from neuron_compiler.buckets.prove import Number, Proof, Valid
from neuron_compiler.runtime import Executable, Layout


class PaddedExecutable:
    """What a Sequence calls instead of an Executable.

    Args:
        executable: of ``proof.graph``.
        proof: for the true sizes of the calls.
        outputs: layout of each result at the true sizes.
    """

    def __init__(self, executable: Executable, proof: Proof, outputs: Sequence[Layout]) -> None:
        self.executable = executable
        self.proof = proof
        self.outputs = tuple(outputs)
        self.added = [argument_of(a) for a in proof.added]

    def __call__(self, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run on tensors of the true sizes, in the order of the true graph's inputs."""
        layouts = self.executable.inputs
        padded = [pad(a, t, layouts[i]) for i, (a, t) in enumerate(zip(arguments, self.proof.inputs, strict=True))]
        results = self.executable([*padded, *self.added])
        return [cut(r, t, o) for r, t, o in zip(results, self.proof.outputs, self.outputs, strict=True)]


def pad(tensor: torch.Tensor, to: Tensor, layout: Layout) -> torch.Tensor:
    """The tensor at the bucket's sizes, laid out as the executable takes it; itself where nothing is padded."""
    if not to.is_padded:
        return tensor
    if not tensor.is_cpu:
        tensor = torch.ops.neuron_compiler.as_cpu.default(tensor)
    tensor = tensor.detach().resolve_conj().resolve_neg()
    stride = layout.stride if layout.dense else torch.empty(layout.size, device="meta").stride()
    found = torch.empty_strided(layout.size, stride, dtype=tensor.dtype, device="cpu")
    filled = [slice(0, size) for size in to.true]
    found[tuple(filled)].copy_(tensor)
    for d in to.padded:
        true, bucket = to.true[d], to.bucket[d]
        last, rest = list(filled), list(filled)
        last[d], rest[d], filled[d] = slice(true - 1, true), slice(true, bucket), slice(0, bucket)
        found[tuple(rest)].copy_(found[tuple(last)])
    return found


def cut(result: torch.Tensor, of: Tensor, layout: Layout) -> torch.Tensor:
    """The true elements of a result, laid out as recorded."""
    if not of.is_padded:
        return result
    factors = [f for dim in of.dims for f in dim]
    split = result.reshape([f.bucket for f in factors])[tuple(slice(0, f.true) for f in factors)]
    logical = split.reshape(layout.size)
    permuted = logical if layout.order is None else logical.permute(layout.order)
    # Always a copy: a view would keep the padding in memory, and show it to who looks at the storage.
    return layout.logical(torch.empty(permuted.shape, dtype=result.dtype, device="cpu").copy_(permuted))


def argument_of(added: Valid | Number) -> torch.Tensor:
    """What is passed for an argument that the proof added."""
    if isinstance(added, Number):
        return torch.tensor(added.value, dtype=dtypes.to_torch(added.dtype), device="cpu")
    return positions(added.dim).reshape(added.shape)


def positions(dim: Dim) -> torch.Tensor:
    """Bool of the bucket's size: which elements of the dimension are true ones."""
    found = torch.ones([f.bucket for f in dim], dtype=torch.bool, device="cpu")
    for d, factor in enumerate(dim):
        found.narrow(d, factor.true, factor.bucket - factor.true).fill_(False)
    return found.reshape(extents(dim)[1])


__all__ = ["PaddedExecutable", "argument_of", "cut", "pad", "positions"]
