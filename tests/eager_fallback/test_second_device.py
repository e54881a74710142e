"""Two devices in one process: each use stays on its own, in eager, backward, compiled, saved and copied."""

from __future__ import annotations

import ast

import pytest
from in_fresh_process import on_device

USES: dict[str, tuple[str, object]] = {
    "training": ("train('cpu') == train('neuron:0') == train('neuron:1')", True),
    "a compiled call and its backward": ("compiled('neuron:1')", ("neuron:1", "neuron:1")),
    "the same call on the other": ("compiled('neuron:0')", ("neuron:0", "neuron:0")),
    "a compiled call with both": (
        "where(*torch.compile(lambda a, b: (a + 1, b * 2))(x, zero))",
        ("neuron:1", "neuron:0"),
    ),
    "a compiled move": ("where(torch.compile(lambda a: (a + 1).to('neuron:0') * 2)(x))", ("neuron:0",)),
    "saved": (
        "[where(loaded(w)) for w in (None, 'neuron:0', {'neuron:1': 'cpu'})]",
        [("neuron:1",), ("neuron:0",), ("cpu",)],
    ),
    "copied": ("where(copy.deepcopy(x), pickle.loads(pickle.dumps(x)))", ("neuron:1", "neuron:1")),
    "storages": ("where(x.untyped_storage(), torch.UntypedStorage(3, device=1))", ("neuron:1", "neuron:1")),
    "a generator": ("drawn('neuron:1') == drawn('cpu')", True),
    "streams": ("where(torch.neuron.Stream(1), torch.neuron.current_stream(1))", ("neuron:1", "neuron:1")),
    "threads have a current device each": ("in_thread(), torch.neuron.current_device()", (1, 0)),
    "layers": ("where(nn.LSTM(3, 4).to(x.device)(x)[0], nn.Conv1d(2, 2, 2).to(x.device)(x))", ("neuron:1", "neuron:1")),
    "made like another": ("where(torch.empty_like(x), x.new_zeros(2), x[torch.tensor([0])])", ("neuron:1",) * 3),
    "a copy across": ("zero.clone().copy_(x).tolist()", [[0, 1, 2], [3, 4, 5]]),
    "a backward across": ("across()", ("neuron:0", [2, 2])),
    "fused": ("fused()", ("neuron:1", [[2, 4, 6], [8, 10, 12]])),
    "a default": ("default()", ("neuron:1", "cpu")),
    "by number": (
        "where(x.to(0), x.neuron(0), nn.Linear(1, 1).neuron(1).weight)",
        ("neuron:0", "neuron:0", "neuron:1"),
    ),
    "memory": ("held(0), held(1)", (0, 4000)),
    "dlpack": ("where(torch.from_dlpack(x))", ("neuron:1",)),
    "an index elsewhere": ("refused(lambda: x[torch.tensor([0], device='neuron:0')])", "RuntimeError"),
    "a list of both": ("refused(lambda: torch.cat([x, zero]))", "RuntimeError"),
    "an operator compiled with both": ("refused(lambda: torch.compile(torch.add)(x, zero))", "TorchRuntimeError"),
}

CODE = """
import copy, io, pickle, threading
from torch import nn

x = torch.arange(6.0, device="neuron:1").view(2, 3)
zero = torch.zeros(2, 3, device="neuron:0")

def where(*values):
    return tuple(str(value.device) for value in values)

def train(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.2), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(5):
        loss = model(torch.randn(4, 3, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert {str(p.grad.device) for p in model.parameters()} == {device}
    return loss.item()

function = torch.compile(lambda x, w: (x @ w).relu() + torch.rand(3, device=x.device), backend="neuron")

def compiled(device):
    w = torch.ones(3, 3, device=device, requires_grad=True)
    result = function(x.to(device), w)
    result.sum().backward()
    return where(result, w.grad)

def loaded(map_location):
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file, map_location=map_location)

def drawn(device):
    return torch.randn(2, device=device, generator=torch.Generator(device).manual_seed(1)).tolist()

def in_thread():
    found = []
    def work():
        torch.neuron.set_device(1)
        found.append(torch.ones(1, device="neuron").device.index)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return found[0]

def across():
    leaf = torch.ones(2, device="neuron:0", requires_grad=True)
    (leaf.to("neuron:1") * 2).sum().backward()
    return str(leaf.grad.device), leaf.grad.tolist()

def fused():
    with torch.neuron.eager_mode("fused"):
        results = [(x + 1) * 2 for _ in range(3)]
    return str(results[2].device), results[2].tolist()

def default():
    torch.set_default_device("neuron:1")
    inside = torch.ones(1)
    torch.set_default_device(None)
    return where(inside, torch.ones(1))

def held(index):
    before = [torch.neuron.memory_allocated(0), torch.neuron.memory_allocated(1)]
    kept = torch.empty(1000, device="neuron:1")
    return torch.neuron.memory_allocated(index) - before[index]

def refused(call):
    try:
        call()
    except Exception as error:
        return type(error).__name__

for use in USES:
    try:
        print("found", repr(eval(use)))
    except Exception as error:
        print("found", repr(f"{type(error).__name__}: {error}"))
"""


@pytest.fixture(scope="module")
def found() -> dict[str, object]:
    """What each use gave."""
    lines = on_device(f"USES = {[use for use, _ in USES.values()]!r}\n{CODE}", NEURON_RT_NUM_CORES="2")
    values = [ast.literal_eval(line.removeprefix("found ")) for line in lines if line.startswith("found ")]
    return dict(zip(USES, values, strict=True))


@pytest.mark.parametrize("name", USES)
def test_each_use_stays_on_its_device(found: dict[str, object], name: str) -> None:
    assert found[name] == USES[name][1]
