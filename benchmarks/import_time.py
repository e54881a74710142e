"""What the installed package adds to ``import torch``, in milliseconds.

Pairs of fresh interpreters, one with PyTorch's plug-in loading and one without, in alternating order; the figure is
the median of the differences within a pair, so that what both share cancels. It includes PyTorch's own scan of the
installed entry points, which it does with or without this package, so it is an upper bound for the hook.

    python benchmarks/import_time.py --rounds 15 --limit 30
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys

CODE = """
import time
wall, cpu = time.perf_counter(), time.process_time()
import torch
print(1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - cpu))
"""


def import_torch(autoload: bool) -> tuple[float, float]:
    """Wall and CPU milliseconds of ``import torch`` in a fresh interpreter."""
    environ = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": str(int(autoload))}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=environ, capture_output=True, text=True, check=True, cwd="/"
    )
    wall, cpu = done.stdout.split()
    return float(wall), float(cpu)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="pairs of interpreters")
    parser.add_argument("--limit", type=float, help="exit with 1 if more milliseconds than this are added")
    arguments = parser.parse_args()

    import_torch(True), import_torch(False)  # the files come from the disk only once
    pairs = []
    for round_ in range(arguments.rounds):
        order = (True, False) if round_ % 2 else (False, True)
        times = {autoload: import_torch(autoload) for autoload in order}
        pairs.append((times[True], times[False]))

    print(f"{arguments.rounds} pairs, median ms   with   without   added")
    added = []
    for index, clock in enumerate(("wall", "CPU")):
        with_us = statistics.median(pair[0][index] for pair in pairs)
        without = statistics.median(pair[1][index] for pair in pairs)
        added.append(statistics.median(pair[0][index] - pair[1][index] for pair in pairs))
        print(f"{clock:>20} {with_us:8.1f} {without:9.1f} {added[-1]:7.1f}")
    return int(arguments.limit is not None and added[0] > arguments.limit)


if __name__ == "__main__":
    sys.exit(main())
