"""What the installed package adds to ``import torch``, in milliseconds.

The step: PyTorch's last act of ``import torch`` is to call the plug-ins that are installed. A fresh interpreter imports
PyTorch without them, then makes that very call with a clock beside it; the figure is the median over interpreters, and
what ``--limit`` is held against. It includes PyTorch's own scan of the installed entry points, which it does with or
without this package, so it is an upper bound for the hook.

The pairs: whole ``import torch`` with plug-ins and without, in alternating order; the median of the differences within
a pair. On a machine whose clock wanders by hundreds of milliseconds between two interpreters this tells only that
nothing outside the step is slower.

    python benchmarks/import_time.py --rounds 15 --limit 30
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys

WHOLE = """
import time
wall, cpu = time.perf_counter(), time.process_time()
import torch
print(1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - cpu))
"""

STEP = """
import time
import torch
wall, cpu = time.perf_counter(), time.process_time()
torch._import_device_backends()
print(1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - cpu))
"""


def measured(code: str, autoload: bool = False) -> tuple[float, float]:
    """Wall and CPU milliseconds that the code prints, in a fresh interpreter."""
    environ = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": str(int(autoload))}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True, cwd="/"
    )
    wall, cpu = done.stdout.split()
    return float(wall), float(cpu)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="interpreters for each figure")
    parser.add_argument("--limit", type=float, help="exit with 1 if the step takes more milliseconds of wall time")
    arguments = parser.parse_args()

    measured(WHOLE, True), measured(WHOLE, False)  # the files come from the disk only once
    steps, pairs = [], []
    for round_ in range(arguments.rounds):
        order = (True, False) if round_ % 2 else (False, True)
        times = {autoload: measured(WHOLE, autoload) for autoload in order}
        pairs.append((times[True], times[False]))
        steps.append(measured(STEP))

    print(f"{arguments.rounds} rounds, median ms    step   with  without  with - without")
    step = []
    for index, clock in enumerate(("wall", "CPU")):
        step.append(statistics.median(one[index] for one in steps))
        with_us = statistics.median(pair[0][index] for pair in pairs)
        without = statistics.median(pair[1][index] for pair in pairs)
        added = statistics.median(pair[0][index] - pair[1][index] for pair in pairs)
        print(f"{clock:>20} {step[-1]:10.1f} {with_us:6.0f} {without:8.0f} {added:+15.1f}")
    return int(arguments.limit is not None and step[0] > arguments.limit)


if __name__ == "__main__":
    sys.exit(main())
