"""State-space models: Mamba."""

from __future__ import annotations

from neuron_compiler.models.decoders import tokens
from neuron_compiler.models.example import Example, Size
from neuron_compiler.models.library import make


def mamba(size: Size) -> Example:
    """Mamba: causal convolution, selective scan. The width is that of Mamba 130M.

    Compiled, the library scans in a logarithmic number of steps instead of a loop over the tokens, which is what it
    does eagerly; both are the same sum in another order.
    """
    full = size is Size.FULL
    small = {"hidden_size": 32, "state_size": 8, "num_hidden_layers": 2, "vocab_size": 128, "time_step_rank": 4}
    settings = {"num_hidden_layers": 4} if full else small
    model = make("MambaForCausalLM", "MambaConfig", use_cache=False, **settings)
    return Example(model, (), {"input_ids": tokens(model.config.vocab_size, 1, 64 if full else 12)})
