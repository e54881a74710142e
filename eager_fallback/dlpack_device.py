"""``Tensor.__dlpack_device__`` of device tensors, which ``torch.from_dlpack`` asks first.

In: PyTorch's method, which knows the device only by the name that it had before it was called ``neuron``. Out: the same
method, which answers ``kDLExtDev`` for it. Invariant: all other tensors are answered by PyTorch's own code.

The rest of PyTorch's DLPack code takes the device as it is, so that the memory is shared. NumPy and JAX refuse such a
device, as they refuse CUDA's: a tensor goes to them by ``.cpu()``.
"""

from __future__ import annotations

import functools

import torch


def install() -> None:
    """Have the method know the device; a second call changes nothing."""
    inner = torch.Tensor.__dlpack_device__
    if hasattr(inner, "_without_neuron"):
        return

    @functools.wraps(inner)
    def __dlpack_device__(self: torch.Tensor) -> tuple[int, int]:
        if not self.is_neuron or torch.overrides.has_torch_function_unary(self):
            return inner(self)
        # Whoever asks will read the memory past our kernels: what waits to be written has to be there.
        torch.neuron.synchronize()
        return torch.utils.dlpack.DLDeviceType.kDLExtDev, self.device.index

    __dlpack_device__._without_neuron = inner  # type: ignore[attr-defined]
    torch.Tensor.__dlpack_device__ = __dlpack_device__  # type: ignore[method-assign]
