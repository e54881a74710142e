"""Compare eager PyTorch, Inductor and this compiler on well-known models with random weights.

The systems are called in turns, A B C A B C, in one process. Results are checked against eager first; what is wrong is
not timed, and the exit code is 1. First calls include compiling, with Inductor's caches off.

    neuron-compiler bench gpt2 resnet50
    neuron-compiler bench --dtype bfloat16 --rounds 20 --json times.json bert
"""

from __future__ import annotations

import argparse
import json
from typing import Any

HELP = "compare eager, Inductor and this compiler"

DTYPES = ("float32", "bfloat16", "float16")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of this command."""
    parser.add_argument("models", nargs="*", metavar="MODEL", help="names, see --list; all without")
    parser.add_argument("--rounds", type=positive, default=10, help="timings of each system (10)")
    parser.add_argument("--threads", type=positive, help="threads of every system; as many as torch uses by itself")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of weights and inputs (float32)")
    parser.add_argument("--train", action="store_true", help="time forward and backward instead of forward alone")
    parser.add_argument("--small", action="store_true", help="narrow and shallow forms of the models")
    parser.add_argument("--json", metavar="FILE", help="also write everything there")
    parser.add_argument("--list", action="store_true", help="list the models and stop")


def positive(text: str) -> int:
    """A whole number from 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not a number from 1")
    return number


def run(arguments: argparse.Namespace) -> int:
    """Measure and show; 1 where a result is wrong."""
    from neuron_compiler.models import CATALOGUE, find

    if arguments.list:
        for entry in CATALOGUE:
            print(f"{entry.name:10} {entry.title}")
        return 0
    entries = [find(name) for name in arguments.models] or list(CATALOGUE)

    import torch

    from neuron_compiler.commands.env import sections
    from neuron_compiler.measure import rows, show
    from neuron_compiler.measure.systems import SYSTEMS, warm_up
    from neuron_compiler.models import Size

    # Before XLA's client is made: it takes torch's number.
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    found: list[rows.Row] = []
    with show.progress() as progress:
        progress.tell("loading")
        warm_up(SYSTEMS)
        for entry in entries:
            found.append(
                rows.measure(
                    entry,
                    size=Size.SMALL if arguments.small else Size.FULL,
                    rounds=arguments.rounds,
                    dtype=getattr(torch, arguments.dtype),
                    train=arguments.train,
                    tell=lambda what, entry=entry: progress.tell(f"{entry.name}: {what}"),  # type: ignore[misc]
                )
            )
            torch._dynamo.reset()
    mode = "forward and backward, dropout off" if arguments.train else "forward"
    show.tables(found, f"{arguments.dtype}, {mode}, {torch.get_num_threads()} threads, {arguments.rounds} rounds")
    if arguments.json is not None:
        settings: dict[str, Any] = {"threads": torch.get_num_threads(), "rounds": arguments.rounds}
        about = {title: dict(lines) for title, lines in sections()}
        content = {"settings": settings, "about": about, "rows": [rows.to_json(row) for row in found]}
        from neuron_compiler.commands.opt import write

        write(arguments.json, json.dumps(content, indent=1) + "\n")
    return 0 if all(row.correct for row in found) else 1
