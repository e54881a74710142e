"""What is used over and over is given back: the device's statistics and the process's size end where they were."""

from __future__ import annotations

import json

import pytest
from in_fresh_process import on_device

CYCLES = """
def use(number):
    made = torch.ones(500 + number % 1000, device="neuron", requires_grad=True)
    (made * 2).relu_().sum().backward()
    other = torch.cat([made.detach(), made.grad]).view(2, -1).t().contiguous()
    other.cpu().to("neuron").resize_(10)
    torch.UntypedStorage(1000, device="neuron").resize_(2000)
    torch.ones(8).pin_memory()

warm, count = 2000, 10_000
"""

COMPILED = """
run = torch.compile(lambda x, w: torch.relu(x @ w).sum(), backend="neuron")
x = torch.ones(16, 16, device="neuron")
w = torch.ones(16, 16, device="neuron", requires_grad=True)

def use(number):
    run(x, w).backward()
    w.grad = None
    with torch.no_grad():
        run(x + number, w)

warm, count = 300, 1000
"""

FUSED = """
torch.neuron.set_eager_mode("fused")
x = torch.ones(16, 16, device="neuron")

def use(number):
    y = (x * 3).relu() @ x
    if number % 3 == 0:
        y.sum().item()
    elif number % 3 == 1:
        torch.neuron.synchronize()

warm, count = 300, 3000
"""

MEASURE = """
import gc, json, os

def look():
    torch.neuron.synchronize()
    gc.collect()
    stats = torch.neuron.memory_stats()
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    current = {name: value for name, value in stats.items() if name.endswith(".current")}
    return current, stats["num_device_alloc"] - stats["num_device_free"], stats["num_device_alloc"], resident

for number in range(warm):
    use(number)
before = look()
for number in range(count):
    use(number)
print(json.dumps([count, before, look()]))
"""


@pytest.mark.parametrize("uses", [CYCLES, COMPILED, FUSED], ids=["ten thousand cycles", "compiled calls", "fused"])
def test_nothing_is_kept(uses: str) -> None:
    count, before, after = json.loads(on_device(uses + MEASURE, OMP_NUM_THREADS="1")[-1])
    assert after[:2] == before[:2]
    assert after[2] - before[2] >= count, "the device was used"
    assert after[3] <= before[3] * 1.02
