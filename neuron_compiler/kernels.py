"""Kernels written by hand, on tensors: ``neuron_compiler.run_kernel``."""

from __future__ import annotations

import numpy as np
import torch

from neuron_compiler import dtypes
from neuron_compiler.errors import OptionsError, RuntimeFault
from neuron_compiler.ir import kernel_text
from neuron_compiler.ir.graph import DType
from neuron_compiler.ir.kernel import Kernel, all_buffers
from neuron_compiler.trainium.execute import kernel as execution
from neuron_compiler.trainium.execute.storing import Rounding

ROUNDINGS = ("nearest", "stochastic")
_CARRIED_AS_FLOAT32 = tuple(d for d in DType if d not in dtypes.TORCH.values())


def run_kernel(
    kernel: Kernel | str, *inputs: torch.Tensor, rounding: str = "nearest", seed: int = 0, verify: bool = True
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """Run a kernel instruction by instruction, with the chip's arithmetic, on this host.

    Args:
        kernel: as ``KernelBuilder`` makes it, or its text.
        inputs: one tensor an input, of its shape and dtype. One of a type that PyTorch lacks (``f8e4m3``, ``f8e3m4``,
            ``tf32``) is given and returned as float32, rounded on its way.
        rounding: how engines round what they store in less than fp32: ``"nearest"``, or ``"stochastic"``.
        seed: of stochastic rounding.
        verify: check first that the kernel can run on its target.

    Returns:
        The output, or a tuple of them, on the CPU.

    Raises:
        ParseError: the text is no kernel.
        VerifyError, CapacityError: the kernel cannot run on its target.
        RuntimeFault: a tensor is not what an input is declared as, or an index is out of range.
    """
    if rounding not in ROUNDINGS:
        raise OptionsError(f"rounding cannot be {rounding!r}", hint=f"known: {', '.join(ROUNDINGS)}")
    if isinstance(kernel, str):
        kernel = kernel_text.parse(kernel)
    declared = all_buffers(kernel)
    if len(inputs) != len(kernel.inputs):
        raise RuntimeFault(f"kernel {kernel.name} takes {len(kernel.inputs)} inputs, and {len(inputs)} are given")
    arrays = [_to_array(t, declared[name].dtype, name) for name, t in zip(kernel.inputs, inputs, strict=True)]
    results = execution.run(kernel, arrays, Rounding(rounding == "stochastic", seed), verify=verify)
    made = [_to_tensor(r, declared[name].dtype) for name, r in zip(kernel.outputs, results, strict=True)]
    return made[0] if len(made) == 1 else tuple(made)


def _to_array(tensor: torch.Tensor, dtype: DType, name: str) -> np.ndarray:
    wanted = torch.float32 if dtype in _CARRIED_AS_FLOAT32 else dtypes.to_torch(dtype)
    if tensor.dtype != wanted:
        raise RuntimeFault(f"input %{name} is {dtype.value}, and a tensor of {tensor.dtype} is given")
    # Numpy knows neither bfloat16 nor the 8-bit floats; their bytes go over.
    raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    found = raw.view(dtypes.to_numpy(dtypes.from_torch(wanted))).reshape(tuple(tensor.shape))
    return Rounding()(found, dtype) if dtype in _CARRIED_AS_FLOAT32 else found


def _to_tensor(array: np.ndarray, dtype: DType) -> torch.Tensor:
    if dtype in _CARRIED_AS_FLOAT32:
        array, dtype = array.astype(np.float32), DType.F32
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return torch.from_numpy(raw.copy()).view(dtypes.to_torch(dtype)).reshape(array.shape)
