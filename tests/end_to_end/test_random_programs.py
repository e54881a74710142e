"""Programs at random, compiled, against eager: results and inputs that are written.

A difference counts unless the program itself is at fault: where eager's own result moves as far when its inputs move
by a rounding, no two ways of computing it agree.
"""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, reject, seed, settings
from random_programs import Program, Step, accepted, programs

from neuron_compiler.capture.functions import compile_function

BLOCKS, EACH, FEW = 100, 20, 10
"""2,000 programs in all, in parts that can be run by themselves; a few of them where there is a budget of time."""

REST = pytest.mark.skipif("NEURON_TEST_BUDGET" in os.environ, reason="without a budget alone: make test-all")

TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float32: 1e-4, torch.float64: 1e-7}
ROUNDING = {torch.bfloat16: 4e-3, torch.float16: 1e-3, torch.float32: 2e-7, torch.float64: 1e-15}


BANNED = "functionalization encountered a tensor being mutated that has internal overlap"
"""What PyTorch says of writes through overlapping windows, whatever the backend."""


def away(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Where the values differ beyond the tolerance of their type; NaN is NaN."""
    if not wanted.dtype.is_floating_point and not wanted.dtype.is_complex:
        return found != wanted
    tolerance = TOLERANCE.get(wanted.dtype, 1e-4)
    wide = torch.complex128 if wanted.dtype.is_complex else torch.float64
    return ~torch.isclose(found.to(wide), wanted.to(wide), rtol=tolerance, atol=tolerance, equal_nan=True)


def strides(x: torch.Tensor) -> list[int]:
    """Those of dimensions with more than one element: of others, meta kernels tell others than the CPU's."""
    return [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1]


def moved(program: Program, by: float) -> list[torch.Tensor]:
    """Results and inputs afterwards, of eager, from inputs that are off by a rounding or so."""
    arguments = program.arguments()
    for x in arguments:
        if x.dtype.is_floating_point:
            x.mul_(1 + by * ROUNDING[x.dtype])
    return [*program(*arguments), *arguments]


def check(program: Program) -> None:
    """Raises AssertionError where compiled and eager differ."""
    wanted, arguments = program.arguments(), program.arguments()
    wanted = [*program(*wanted), *wanted]
    try:
        compiled = compile_function(program, arguments)
    except RuntimeError as error:
        if BANNED in str(error):
            reject()
        raise
    found = [*compiled(*arguments), *arguments]
    for place, (got, want) in enumerate(zip(found, wanted, strict=True)):
        meta, wanted_meta = ((t.dtype, t.shape, strides(t)) for t in (got, want))
        assert meta == wanted_meta, f"value {place} of {program}: {meta} for {wanted_meta}"
        wrong = away(got, want)
        if wrong.any():
            # Twice the ways that a rounding can go, and farther: an operator may round where another does not.
            for by in (1, -1, 4, -4, 16):
                wrong &= ~away(moved(program, by)[place], want)
        assert not wrong.any(), f"value {place} of {program}: {got[wrong][:4]} for {want[wrong][:4]}"


@pytest.mark.parametrize("block", [*range(FEW), *(pytest.param(n, marks=REST) for n in range(FEW, BLOCKS))])
def test_compiled_gives_what_eager_gives(block: int) -> None:
    @seed(block)
    @given(programs())
    @settings(
        max_examples=EACH,
        derandomize=False,
        database=None,
        phases=(Phase.generate,),  # shrinking takes minutes: add it to look for the smallest program
        suppress_health_check=list(HealthCheck),
    )
    def differ(program: Program) -> None:
        check(program)

    differ()


def test_a_wrong_value_is_found() -> None:
    steps = [Step("view", 0, 0, 0, (0, 1, 0)), Step("write view", 0, 1, 0, (2, 1, 0))]
    program = accepted([((4, 6), torch.float32)], 0, steps)
    assert len(program.steps) == 2
    check(program)
    other = Program(program.inputs, program.seed, program.steps[:1])
    wanted, found = program.arguments(), program.arguments()
    program(*wanted), other(*found)
    assert away(found[0], wanted[0]).any()
