"""Where eager's convolutions of half precisions add up in the half itself.

On processors without instructions for a half, ATen leaves oneDNN for kernels of its own: products of matrices, each
rounded, whose results are added up in the half. Elsewhere sums stay in float32 and are rounded once.
"""

from __future__ import annotations

from functools import cache

import torch

from neuron_compiler.ir.graph import DType

_ASKED = {DType.BF16: "_is_mkldnn_bf16_supported", DType.F16: "_is_mkldnn_fp16_supported"}


@cache
def adds_in_half(dtype: DType) -> bool:
    """Whether eager's convolutions of this type do so on this processor; no, where PyTorch does not tell."""
    asked = getattr(torch.ops.mkldnn, _ASKED[dtype], None) if dtype in _ASKED else None
    return asked is not None and not asked()
