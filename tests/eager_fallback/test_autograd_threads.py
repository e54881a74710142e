"""Autograd has threads for the device from its first use on: until then forked processes run backwards as ever."""

from __future__ import annotations

import pytest
from in_fresh_process import on_device, run

CODE = """
import os, signal, threading

torch.set_num_threads(1)

def backward(device):
    x = torch.ones(2, requires_grad=True, device=device)
    (x * 3).sum().backward()
    return x.grad.tolist()

class Nested(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, depth):
        ctx.depth = depth
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.depth:
            with torch.enable_grad():
                inner = torch.ones(1, requires_grad=True, device=gradient.device)
                Nested.apply(inner, ctx.depth - 1).sum().backward()
        return gradient, None

def nested(device):
    x = torch.ones(1, requires_grad=True, device=device)
    Nested.apply(x, 150).sum().backward()  # deeper than one thread takes
    return x.grad.tolist()

def threads():
    return len(os.listdir("/proc/self/task"))

def in_child(*calls):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        for call, device in calls:
            try:
                print("child", call.__name__, device, call(device), flush=True)
            except RuntimeError as error:
                print("child", call.__name__, device, str(error)[:40], flush=True)
        os._exit(0)
    if status := os.waitpid(child, 0)[1]:
        print("ended with", status)
"""


def test_children_of_a_process_that_uses_no_device() -> None:
    code = """
in_child((backward, "cpu"), (nested, "cpu"))
before = threads()
print(backward("cpu"), threads() <= before)
in_child((backward, "cpu"), (nested, "cpu"))
in_child((backward, "neuron"), (backward, "cpu"), (nested, "neuron"))
print(backward("neuron"), threads() == before + torch.neuron.device_count(), backward("cpu"), nested("neuron"))
"""
    own = ["child backward cpu [3.0, 3.0]", "child nested cpu [1.0]"]
    assert on_device(CODE + code, NEURON_RT_NUM_CORES="3") == [
        *own,
        "[3.0, 3.0] True",
        *own,
        "child backward neuron [3.0, 3.0]",
        "child backward cpu [3.0, 3.0]",
        "child nested neuron [1.0]",
        "[3.0, 3.0] True [3.0, 3.0] [1.0]",
    ]


def test_children_of_a_process_that_used_it() -> None:
    code = """
torch.ones(1, device="neuron")
in_child((backward, "cpu"), (backward, "neuron"))
"""
    assert on_device(CODE + code) == [
        "child backward cpu Unable to handle autograd's threading in",
        "child backward neuron Cannot use device neuron in a forked pro",
    ]


def test_registered_after_a_backward() -> None:
    code = """
print(backward("cpu"))
import neuron_compiler.eager_fallback
print(backward("neuron"), backward("cpu"), torch.accelerator.device_count())
"""
    done = run("import torch\n" + CODE + code, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert done.stdout.splitlines() == ["[3.0, 3.0]", "[3.0, 3.0] [3.0, 3.0] 1"]


@pytest.mark.parametrize("device", ["cpu", "neuron"])
def test_first_used_while_other_threads_run_backwards(device: str) -> None:
    code = f"""
wrong, stop = [], threading.Event()

def work():
    while not stop.is_set():
        if backward("{device}") != [3, 3] or nested("{device}") != [1]:
            wrong.append(1)

workers = [threading.Thread(target=work) for _ in range(4)]
for worker in workers:
    worker.start()
found = [backward("neuron") for _ in range(5)]
stop.set()
for worker in workers:
    worker.join()
print(wrong, found == [[3, 3]] * 5)
"""
    assert on_device(CODE + code, NEURON_RT_NUM_CORES="2") == ["[] True"]


def test_a_process_ends_while_a_backward_runs() -> None:
    """PyTorch aborts it if the thread of the device wants the interpreter afterwards, be it to drop its objects."""
    code = """
begun = threading.Event()

class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        import time
        begun.set()
        for _ in range(300):
            time.sleep(0.001)
        return gradient

def work():
    Slow.apply(torch.ones(1, requires_grad=True, device="neuron")).sum().backward()

threading.Thread(target=work, daemon=True).start()
print(nested("neuron"), begun.wait())
"""
    assert on_device(CODE + code) == ["[1.0] True"]
