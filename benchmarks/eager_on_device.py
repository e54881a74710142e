"""What an operator costs more on device neuron than on the CPU, and what that makes of a whole transformer.

One process, short blocks in turn: each block on the device stands beside one on the CPU, and the figure is the median
of the differences within a pair, with the 10th and 90th percentile. ``add`` and the like are of 10 elements, where
nothing counts but the way to the kernel.

    python benchmarks/eager_on_device.py --rounds 41
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

import neuron_compiler.eager_fallback  # noqa: F401

Call = Callable[[], object]


def seconds(call: Call, times: int) -> float:
    begin = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - begin) / times


def paired(cpu: Call, device: Call, times: int, rounds: int) -> list[tuple[float, float]]:
    """Seconds a call on the CPU and on the device, in turn."""
    for call in (cpu, device):
        seconds(call, max(times // 10, 1))
    found = []
    for round_ in range(rounds):
        if round_ % 2:
            found.append((seconds(cpu, times), seconds(device, times)))
        else:
            on_device = seconds(device, times)
            found.append((seconds(cpu, times), on_device))
    return found


def row(name: str, pairs: list[tuple[float, float]]) -> dict[str, object]:
    added = sorted(1e6 * (device - cpu) for cpu, device in pairs)
    ratios = [device / cpu for cpu, device in pairs]
    return {
        "name": name,
        "cpu_us": 1e6 * statistics.median(cpu for cpu, _ in pairs),
        "device_us": 1e6 * statistics.median(device for _, device in pairs),
        "added_us": statistics.median(added),
        "added_us_p10_p90": [added[len(added) // 10], added[-1 - len(added) // 10]],
        "ratio": statistics.median(ratios),
    }


def small(device: str) -> dict[str, Call]:
    """Operators on 10 elements, and a product of 4 x 4."""
    x, y, a = (torch.ones(size, device=device) for size in (10, 10, (4, 4)))
    return {
        "add": lambda: torch.add(x, y),
        "add_": lambda: x.add_(y),
        "mul by a number": lambda: x * 2.0,
        "exp": lambda: torch.exp(x),
        "mm 4": lambda: torch.mm(a, a),
        "view": lambda: x.view(2, 5),
        "empty": lambda: torch.empty(10, device=device),
    }


def product(device: str) -> Call:
    a = torch.randn(1024, 1024, device=device)
    return lambda: torch.mm(a, a)


def transformer(device: str, layers: int) -> Call:
    """Forward and backward of encoder layers, batch 4, 128 tokens, 768 wide."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(768, 12, 3072, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).to(device)
    x = torch.randn(4, 128, 768, device=device)

    def step() -> None:
        model.zero_grad()
        model(x).sum().backward()

    return step


@contextmanager
def counted(on: bool) -> Iterator[None]:
    torch.neuron.set_op_tracking(on)
    try:
        yield
    finally:
        torch.neuron.set_op_tracking(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=41, help="pairs of blocks")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of PyTorch")
    parser.add_argument("--layers", type=int, default=12, help="of the transformer; 0 leaves it out")
    parser.add_argument("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    rows = []
    cpu, device = small("cpu"), small("neuron")
    for on in (False, True):
        with counted(on):
            for name in cpu:
                title = f"{name}, ledger on" if on else name
                rows.append(row(title, paired(cpu[name], device[name], 20_000, arguments.rounds)))
    rows.append(row("mm 1024", paired(product("cpu"), product("neuron"), 4, arguments.rounds)))
    if arguments.layers:
        steps = (transformer("cpu", arguments.layers), transformer("neuron", arguments.layers))
        rows.append(row(f"transformer, {arguments.layers} layers", paired(*steps, 1, max(arguments.rounds // 3, 5))))

    print(f"{'':>26} {'cpu us':>12} {'neuron us':>12} {'added us':>12} {'p10':>10} {'p90':>10} {'ratio':>7}")
    for found in rows:
        low, high = found["added_us_p10_p90"]
        print(
            f"{found['name']:>26} {found['cpu_us']:12.2f} {found['device_us']:12.2f} {found['added_us']:12.2f} "
            f"{low:10.2f} {high:10.2f} {found['ratio']:7.3f}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps({"threads": arguments.threads, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
