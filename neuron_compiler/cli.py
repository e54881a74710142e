"""The command ``neuron-compiler``: reads arguments, calls one of ``commands``, turns errors into text and an exit code.

Exit codes: 0 done, 1 an error that is shown as text, 2 wrong arguments, 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from neuron_compiler import __version__
from neuron_compiler.commands import bench, demo, env, opt, setup
from neuron_compiler.errors import NeuronCompilerError

COMMANDS = {"demo": demo, "bench": bench, "opt": opt, "env": env, "setup": setup}


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    made = argparse.ArgumentParser(
        prog="neuron-compiler",
        description="PyTorch for AWS Trainium on a machine that has no Trainium.",
    )
    made.add_argument("--version", action="version", version=f"neuron-compiler {__version__}")
    subcommands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        sub = subcommands.add_parser(name, help=command.HELP, description=command.__doc__)
        sub.formatter_class = argparse.RawDescriptionHelpFormatter
        command.add_arguments(sub)
        sub.set_defaults(run=command.run)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    chosen = parser().parse_args(arguments)
    try:
        return int(chosen.run(chosen))
    except NeuronCompilerError as error:
        show(error)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def show(error: NeuronCompilerError) -> None:
    """The message and its notes, without a traceback: it says where and what to try by itself."""
    print(f"{type(error).__name__}: {error}", file=sys.stderr)
    for note in getattr(error, "__notes__", ()):
        print(f"\n{note}", file=sys.stderr)
