"""Fusion of a few lines of IR text, and what came of it as lines to compare."""

from __future__ import annotations

from families import registry

from neuron_compiler.ir import text, verify
from neuron_compiler.ir.plan import Program
from neuron_compiler.passes.fuse import Fuse

FUSE = Fuse(registry=registry())


def fused(body: str, inputs: str, pass_: Fuse = FUSE) -> Program:
    """The program with these lines after fusion, verified."""
    program = pass_(text.parse(f"graph test({inputs}) target=trn2 {{\n{body}\n}}"))
    verify.program(program, when="fuse")
    return program


def groups(program: Program) -> list[str]:
    return [f"{g.name} {g.kind.value} {' '.join(g.ops)}" for g in program.plan.groups]


def barriers(program: Program) -> list[str]:
    return [f"{b.producer} -> {b.consumer} {b.value}: {b.reason}" for b in program.plan.barriers]
