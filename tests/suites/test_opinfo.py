"""PyTorch's op database through ``torch.compile(backend="neuron")``, against eager.

Values within the op's own tolerance, dtypes, shapes, strides, shared memory, arguments changed in place, gradients;
random results to the bit, from the same seed. A value beyond the tolerance is right if it is as far as eager's, times
1.1, from the same computation in double precision: eager's own bfloat16 sums round at every step. A fallback is right.
The summary at the end of the run counts both. float64 and complex64 run where time is not limited.
"""

from __future__ import annotations

from collections.abc import Callable

import observed
import op_cases
import pytest
import torch
from op_cases import Case
from suite_summary import CASES_OF_A_WHOLE_RUN

pytestmark = pytest.mark.filterwarnings("ignore")

CASES = [
    *(pytest.param(case, id=str(case)) for case in op_cases.cases(op_cases.SAMPLED)),
    *(pytest.param(case, id=str(case), marks=pytest.mark.full) for case in op_cases.cases(op_cases.FURTHER)),
]


@pytest.mark.parametrize("case", CASES)
def test_op(case: Case, record_property: Callable[[str, object], None]) -> None:
    record_property(CASES_OF_A_WHOLE_RUN, len(CASES))
    samples = case.samples()
    if not samples:
        pytest.skip("the database has no sample of this dtype that eager accepts")
    program = case.program()
    want = case.observe(program, samples, seed=1)
    # What draws nothing may differ, too: LAPACK's last bits depend on where its arguments lie.
    draws = not torch.equal(torch.get_rng_state(), torch.Generator().manual_seed(1).get_state())
    again = case.observe(program, samples, seed=2)
    random = draws and not _equal(want, again)
    compiled = torch.compile(program, backend="neuron")
    got = case.observe(compiled, samples)
    wrong = observed.faults(got, want, case.near(random))
    if wrong and not random:
        wrong = observed.faults(got, want, case.no_further(case.near(random), program, samples))
        record_property("nearer_than_eager", not wrong)
    assert not wrong, "\n".join([*wrong[:6], *map(op_cases.described, samples)])


def _equal(a: observed.Observed, b: observed.Observed) -> bool:
    return not observed.faults(a, b, lambda name, x, y: "" if _same_bits(x, y) else "differs")


def _same_bits(x: torch.Tensor, y: torch.Tensor) -> bool:
    if x.layout is not torch.strided:
        x, y = x.to_dense(), y.to_dense()
    return x.shape == y.shape and bool(((x == y) | (x.isnan() & y.isnan())).all())


def test_excluded_ops_are_in_the_database() -> None:
    assert set(op_cases.EXCLUDED) <= {info.name for info in op_cases.op_db}
