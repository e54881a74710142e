"""Groups to kernels: what the chip's engines would run for a fused region, or the reason why there is no kernel yet."""

from __future__ import annotations

from neuron_compiler.lowering.kernels.group import kernel_of
from neuron_compiler.lowering.kernels.index_maps import NoKernel

__all__ = ["NoKernel", "kernel_of"]
