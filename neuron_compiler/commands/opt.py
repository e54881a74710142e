"""Run passes on a program from a file, as dumps hold them, and print what they make of it.

The program is checked before the first pass and after each. It goes to standard output (or to OUT); one line for each
pass goes to standard error.

    neuron-compiler opt dumps/0000_graph0_inference/02_input.ir -p canonicalize,dce
    neuron-compiler opt 05_dce.ir -p 'fuse,tile' -o planned.ir
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from neuron_compiler.errors import OptionsError

HELP = "run passes on a dumped program"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of this command."""
    parser.add_argument("file", nargs="?", metavar="FILE.ir", help="a program as text; - reads standard input")
    parser.add_argument("-p", "--passes", default="", help="names between commas, options in braces: fuse,tile{...}")
    parser.add_argument("-o", "--output", metavar="OUT", help="write the program there instead of printing it")
    parser.add_argument("--list", action="store_true", help="list the passes, with their options, and stop")


def run(arguments: argparse.Namespace) -> int:
    """Print the program after the passes."""
    from neuron_compiler.ir import text
    from neuron_compiler.lowering import ops  # noqa: F401  (passes ask the op records)
    from neuron_compiler.passes.base import PassRecord, parse_pipeline, run_pipeline

    if arguments.list:
        print(listing())
        return 0
    if arguments.file is None:
        raise OptionsError("no file to read", hint="name one, or - for standard input; --list lists the passes")
    passes = parse_pipeline(arguments.passes)
    program = text.parse(read(arguments.file))

    def tell(record: PassRecord) -> None:
        what = "changed" if record.changed else "same"
        print(
            f"{record.name}: {what}, {record.ops_before} -> {record.ops_after} ops, {record.groups} groups, "
            f"{record.seconds * 1e3:.1f} ms",
            file=sys.stderr,
        )

    program, records = run_pipeline(program, passes, verify_level="every")
    for record in records:
        tell(record)
    if arguments.output is None:
        print(text.format(program), end="")
    else:
        write(arguments.output, text.format(program))
    return 0


def listing() -> str:
    """A line for each pass: name, options with their defaults, the first sentence of what it does."""
    from neuron_compiler.passes.base import options_of
    from neuron_compiler.passes.pipeline import DEFAULT, REGISTERED
    from neuron_compiler.report.table import table

    default = [p.name for p in DEFAULT]
    rows = []
    for name, made in REGISTERED.items():
        options = ",".join(f"{option}={value}" for option, value in options_of(made).items())
        purpose = (sys.modules[made.__module__].__doc__ or "").strip().splitlines()[0]
        rows.append((name, options, "yes" if name in default else "no", purpose))
    return table(("pass", "options", "default", ""), rows)


def read(name: str) -> str:
    """The text of a file, or of standard input for ``-``; raises OptionsError where it cannot be read."""
    if name == "-":
        return sys.stdin.read()
    try:
        return Path(name).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionsError(f"cannot read {name}: {error}") from error


def write(name: str, content: str) -> None:
    """Write a file; raises OptionsError where it cannot be written."""
    try:
        Path(name).write_text(content)
    except OSError as error:
        raise OptionsError(f"cannot write {name}: {error}") from error
