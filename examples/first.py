"""A small model, compiled for Trainium and run here; what became of it is in dumps/0000_graph0_inference/."""

import torch
from torch import nn

import neuron_compiler


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.up = nn.Linear(64, 256)
        self.down = nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = nn.functional.gelu(self.up(self.norm(x)))
        return x + self.down(hidden)


torch.manual_seed(0)
model, x = Block(), torch.randn(32, 64)
compiled = torch.compile(model, backend="neuron", options={"dump": "dumps"})

with torch.no_grad():
    torch.testing.assert_close(compiled(x), model(x))
print("equal to eager; ops that ran eagerly:", neuron_compiler.LEDGER.total("fallback"))
