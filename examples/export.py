"""A model exported, compiled, saved to a file and loaded again: what a server would do, without the model's code."""

import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.export import Dim

import neuron_compiler

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10)).eval()
exported = torch.export.export(model, (torch.randn(4, 64),), dynamic_shapes=({0: Dim("batch", min=1, max=128)},))

compiled = neuron_compiler.compile_exported(exported)
expected = compiled(torch.ones(8, 64))

path = Path(tempfile.mkdtemp()) / "model.neuron"
compiled.save(path)

loaded = neuron_compiler.load(path)
print("the same bits:", torch.equal(loaded(torch.ones(8, 64)), expected))
print("a size that was not saved:", tuple(loaded(torch.ones(3, 64)).shape))
try:
    loaded(torch.ones(200, 64))
except RuntimeError as error:
    print(error)
