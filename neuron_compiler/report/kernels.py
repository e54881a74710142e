"""The kernels of a program's groups, as text: what the chip's engines would run for each, or why there is none yet."""

from __future__ import annotations

from collections.abc import Iterator

from neuron_compiler.compile import Compilation
from neuron_compiler.ir.plan import Program
from neuron_compiler.lowering.kernels import NoKernel, kernel_of


def kernels(compilation: Compilation) -> str:
    """One kernel a group, in the order of the groups; a reason stands in a comment."""
    return "\n".join(_texts(compilation.program))


def _texts(program: Program) -> Iterator[str]:
    made = 0
    for group in program.plan.groups:
        try:
            text = str(kernel_of(program, group))
            made += 1
        except NoKernel as reason:
            text = f"# {group.name} has no kernel yet: {reason}\n"
        except Exception as error:  # of a file that is only looked at: no reason to fail the program for
            text = f"# {group.name} has no kernel: {type(error).__name__}: {error}\n".replace("\n", " ") + "\n"
        yield text
    yield f"# {made} of {len(program.plan.groups)} groups have a kernel for {program.target}\n"
