"""Seconds to the first result and milliseconds a call of eager PyTorch, Inductor and this compiler, model by model.

Each system has a process of its own, started cold: caches are empty and nothing was compiled before. First calls are
made one after the other; then the processes take turns, one call each (or several, of quick models), while the others
wait. Results are compared with eager's; what is wrong is not timed. The closing table holds, for each model, compile
seconds beside Inductor's, and eager : Inductor : neuron with the spread of eager against itself.

    python benchmarks/compile_and_run.py --threads 2 --rounds 15 --json figures.json
    python benchmarks/compile_and_run.py gpt2 resnet50 --dtype bfloat16
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from neuron_compiler.commands.bench import DTYPES, positive
from neuron_compiler.measure import clock, rows, show
from neuron_compiler.measure.systems import EAGER, SYSTEMS, Prepared, prepare
from neuron_compiler.models import CATALOGUE, Entry, Size, find


def worker(arguments: argparse.Namespace) -> int:
    """One system with one model: obeys lines on standard input, answers each by a line of JSON."""
    torch.set_num_threads(arguments.threads)
    example = find(arguments.models[0]).builder(Size.SMALL if arguments.small else Size.FULL)
    if arguments.dtype != "float32":
        example = example.to(getattr(torch, arguments.dtype))
    # Everything that others print goes to standard error: standard output carries the answers.
    answers, sys.stdout = sys.stdout, sys.stderr
    made = Prepared(arguments.worker)
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        answer: dict[str, Any] = {}
        if word == "first":
            made = prepare(arguments.worker, example, train=arguments.train)
            torch.save(list(made.results), rest)
            answer = {
                "absent": made.absent,
                "seconds": made.first_call_seconds,
                "fallbacks": made.fallbacks,
                "executables": len(made.compilations),
            }
        elif word == "float32":
            wide = prepare(EAGER, example.to(torch.float32), train=arguments.train)
            torch.save(list(wide.results), rest)
        elif word == "time" and made.call is not None:
            started = time.perf_counter()
            for _ in range(int(rest)):
                made.call()
            answer = {"seconds": (time.perf_counter() - started) / int(rest)}
        print(json.dumps(answer), file=answers, flush=True)
    return 0


class Worker:
    """The process of one system, and the questions it is asked."""

    def __init__(self, system: str, model: str, arguments: argparse.Namespace) -> None:
        command = [sys.executable, __file__, model, "--worker", system]
        command += ["--threads", str(arguments.threads), "--dtype", arguments.dtype]
        command += ["--train"] * arguments.train + ["--small"] * arguments.small
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE if arguments.quiet else None
        )

    def ask(self, question: str) -> dict[str, Any]:
        """The answer to a line; raises RuntimeError where the process died."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{question}\n".encode())
        self.process.stdin.flush()
        if not (line := self.process.stdout.readline()):
            raise RuntimeError(f"{' '.join(map(str, self.process.args))} ended with code {self.process.wait()}")
        return dict(json.loads(line))

    def stop(self) -> None:
        """End it; its input is closed, which is what it waits for."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def compare(entry: Entry, arguments: argparse.Namespace, progress: show.Progress, folder: Path) -> rows.Row:
    """All systems on one model."""
    workers: dict[str, Worker] = {}
    try:
        prepared: dict[str, Prepared] = {}
        counts: dict[str, dict[str, Any]] = {}
        for system in SYSTEMS:
            progress.tell(f"{entry.name}: {system}: first call")
            workers[system] = Worker(system, entry.name, arguments)
            file = folder / f"{entry.name}_{system}.pt"
            counts[system] = answer = workers[system].ask(f"first {file}")
            ran = not answer["absent"]
            prepared[system] = Prepared(
                system,
                list if ran else None,
                answer["seconds"],
                tuple(torch.load(file)),
                answer["absent"],
                fallbacks=answer["fallbacks"],
            )
        wanted = prepared[EAGER].results
        if arguments.dtype != "float32":
            file = folder / f"{entry.name}_float32.pt"
            workers[EAGER].ask(f"float32 {file}")
            wanted = tuple(torch.load(file))
        found = rows.judge(prepared, wanted, arguments.train)
        seconds = take_turns({s: w for s, w in workers.items() if not found[s].verdict}, arguments.rounds, progress)
    finally:
        for started in workers.values():
            started.stop()
    results = {
        system: rows.Result(
            result.first_call_seconds,
            seconds.get(system, ()),
            result.difference,
            result.verdict,
            result.fallbacks,
            counts[system]["executables"],
        )
        for system, result in found.items()
    }
    return rows.Row(entry.name, entry.title, arguments.dtype, arguments.train, results)


def take_turns(workers: dict[str, Worker], rounds: int, progress: show.Progress) -> dict[str, tuple[float, ...]]:
    """Seconds per call by system, a figure a round, after one round that is not counted."""
    repeats = {
        system: max(1, round(clock.MINIMUM_SECONDS / max(worker.ask("time 1")["seconds"], 1e-9)))
        for system, worker in workers.items()
    }
    seconds: dict[str, list[float]] = {system: [] for system in workers}
    for number in range(1, rounds + 1):
        progress.tell(f"round {number} of {rounds}")
        for system, worker in workers.items():
            seconds[system].append(worker.ask(f"time {repeats[system]}")["seconds"])
    return {system: tuple(figures) for system, figures in seconds.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="names of the catalogue; all without")
    parser.add_argument("--rounds", type=positive, default=15, help="timings of each system (15)")
    parser.add_argument("--threads", type=positive, default=torch.get_num_threads(), help="threads of each system")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of weights and inputs (float32)")
    parser.add_argument("--train", action="store_true", help="forward and backward instead of forward alone")
    parser.add_argument("--small", action="store_true", help="narrow and shallow forms of the models")
    parser.add_argument("--json", metavar="FILE", help="also write everything there")
    parser.add_argument("--quiet", action="store_true", help="drop what the processes write to standard error")
    parser.add_argument("--worker", choices=SYSTEMS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker is not None:
        return worker(arguments)

    entries = [find(name) for name in arguments.models] or list(CATALOGUE)
    found: list[rows.Row] = []
    with tempfile.TemporaryDirectory() as folder, show.progress() as progress:
        for entry in entries:
            found.append(compare(entry, arguments, progress, Path(folder)))
            if arguments.json is not None:
                content = {"settings": vars(arguments), "rows": [rows.to_json(row) for row in found]}
                Path(arguments.json).write_text(json.dumps(content, indent=1) + "\n")
    mode = "forward and backward" if arguments.train else "forward"
    show.tables(
        found, f"{arguments.dtype}, {mode}, {arguments.threads} threads, {arguments.rounds} rounds, a process each"
    )
    return 0 if all(row.correct for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
