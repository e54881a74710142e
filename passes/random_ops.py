"""Ops whose result is drawn: two of them are never one, and none is computed ahead of its time.

Those that ATen tags ``nondeterministic_seeded``, under their functional names. Attention and recurrent nets are among
them for their dropout.
"""

from __future__ import annotations

from neuron_compiler.ir.graph import Op

_DRAWS = (
    "bernoulli binomial cauchy exponential geometric log_normal multinomial normal normal_functional poisson random"
)
_CREATES = "rand rand_like randint randint_like randn randn_like randperm uniform _sample_dirichlet _standard_gamma"
_DROPS = "alpha_dropout dropout feature_alpha_dropout feature_dropout native_dropout _fused_dropout"
_DROPS_ON_CUDA = "_cudnn_init_dropout_state"
_LEAKS = "rrelu rrelu_with_noise rrelu_with_noise_functional"
_RECURS = "gru lstm rnn_relu rnn_tanh _cudnn_rnn miopen_rnn _lstm_mps"
_ATTENDS = (
    "scaled_dot_product_attention _scaled_dot_product_attention_math _scaled_dot_product_attention_math_for_mps",
    "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward",
    "_scaled_dot_product_fused_attention_overrideable _efficient_attention_forward _flash_attention_forward",
    "_flash_attention_forward_no_dropout_inplace _cudnn_attention_forward _cudnn_attention_backward",
    "_triton_scaled_dot_attention _fused_sdp_choice _nested_tensor_softmax_with_shape",
)

RANDOM = frozenset(
    f"aten.{name}"
    for line in (_DRAWS, _CREATES, _DROPS, _DROPS_ON_CUDA, _LEAKS, _RECURS, *_ATTENDS)
    for name in line.split()
) | {"prims.normal", "prims.uniform"}


def is_random(op: Op) -> bool:
    """Whether the op draws its result."""
    return op.kind.rpartition(".")[0] in RANDOM
