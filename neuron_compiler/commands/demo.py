"""Compile GPT-2 (124M) and ResNet-50 with random weights, compare with eager PyTorch and Inductor, show what happened.

Takes three to four minutes on two cores, most of them Inductor's. Nothing is downloaded.
"""

from __future__ import annotations

import argparse

HELP = "compile two well-known models and show what happened"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of this command."""
    parser.add_argument("--dump", metavar="FOLDER", help="where every stage is written (a new temporary folder)")
    parser.add_argument("--small", action="store_true", help="narrow and shallow forms of the models")


def run(arguments: argparse.Namespace) -> int:
    """Run the demonstration; 1 where a result is wrong."""
    import tempfile
    from pathlib import Path

    from neuron_compiler.demo.walk import walk
    from neuron_compiler.models import Size

    folder = Path(arguments.dump or tempfile.mkdtemp(prefix="neuron-demo-"))
    found = walk(folder, size=Size.SMALL if arguments.small else Size.FULL, rounds=10)
    return 0 if all(row.correct for row in found) else 1
