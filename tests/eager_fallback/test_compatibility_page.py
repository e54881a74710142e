"""docs/compatibility.md says what was measured, with a reason for all that differs; a part of it is tried again."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import compatibility_page
import device_cases
import pytest
import torch
from device_cases import FORWARD, GRADIENT, IN_PLACE, RAISES, RIGHT, SHAPE, VALUES

pytestmark = pytest.mark.filterwarnings("ignore")

RECORD = compatibility_page.load()

TRIED_AGAIN = 40
"""Cases, evenly from all that were measured."""


def test_the_page_is_made_of_the_record() -> None:
    assert compatibility_page.PAGE.read_text() == compatibility_page.render(RECORD), (
        "run python tests/eager_fallback/compatibility_page.py"
    )


def test_all_that_differs_has_a_reason() -> None:
    assert [d for d in RECORD.different if len(d.reason) < 20] == []


def test_counts_and_what_differs_agree() -> None:
    missing = {(d.form, dtype) for d in RECORD.different for dtype in d.dtypes}
    short = {(form, t) for form, row in RECORD.counts.items() for t, (right, whole) in row.items() if right < whole}
    assert short == missing
    assert set(RECORD.counts) == set(device_cases.FORMS) == set(compatibility_page.EXPLAINED)
    assert all(set(row) <= set(compatibility_page.DTYPES) for row in RECORD.counts.values())


def test_it_is_of_the_torch_that_is_tested() -> None:
    pins = (compatibility_page.ROOT / "constraints.txt").read_text()
    assert re.search(r"^torch==(\S+)$", pins, re.M).group(1) == RECORD.torch  # type: ignore[union-attr]


def test_every_operator_of_the_database_was_measured_or_left_out() -> None:
    if not torch.__version__.startswith(RECORD.torch):
        pytest.skip(f"the record is of torch {RECORD.torch}")
    assert RECORD.ops == len(device_cases.records())


def some_cases() -> list[Any]:
    names = sorted(device_cases.records())
    dtypes = [getattr(torch, dtype) for dtype in compatibility_page.DTYPES]
    found = device_cases.cases(names, dtypes)
    return found[:: len(found) // TRIED_AGAIN]


@pytest.mark.parametrize(
    ("name", "dtype", "form"), some_cases(), ids=lambda x: str(x).removeprefix("torch.").replace("=", "")
)
def test_some_cases_again(name: str, dtype: torch.dtype, form: str) -> None:
    outcome = device_cases.judge(device_cases.records()[name], dtype, form)
    if outcome is None:
        pytest.skip("the CPU takes no sample in this form")
    different = any(d.op == name and d.form == form and str(dtype)[6:] in d.dtypes for d in RECORD.different)
    assert (outcome.kind != RIGHT) == different, outcome


@pytest.mark.parametrize("known", RECORD.different, ids=lambda known: f"{known.op}-{known.form}")
def test_what_differs_still_does(known: compatibility_page.Different) -> None:
    outcome = device_cases.judge(device_cases.records()[known.op], getattr(torch, known.dtypes[0]), known.form)
    assert outcome is not None
    assert outcome.kind == known.outcome


@pytest.mark.parametrize("row", compatibility_page.NOT_HELD, ids=lambda row: row.what)
def test_what_is_not_held_raises_and_something_else_works(row: compatibility_page.NotHeld) -> None:
    with pytest.raises((NotImplementedError, RuntimeError, TypeError)) as raised:
        eval(row.raises)
    assert raised.type.__name__ == row.error
    assert eval(row.instead) is not None


def test_types_that_the_cpus_kernels_lack_raise() -> None:
    assert "bfloat16, float16" in RECORD.cuda_only
    with pytest.raises(NotImplementedError):
        torch.nn.functional.avg_pool3d(torch.ones(1, 1, 2, 2, 2, dtype=torch.bfloat16, device="neuron"), 2)


# The judge: records made up here, of ops that treat the device otherwise ---------------------------------------------


def made_up(function: Any) -> Any:
    """A record of an op of one sample."""
    x = torch.arange(4.0).requires_grad_()
    sample = SimpleNamespace(
        input=x, args=(), kwargs={}, broadcasts_input=False, output_process_fn_grad=lambda result: result
    )
    return SimpleNamespace(
        name="made_up",
        full_name="made_up",
        decorators=(),
        sample_inputs=lambda device, dtype, requires_grad: [sample],
        get_op=lambda: function,
        inplace_variant=function,
    )


def there(x: torch.Tensor) -> bool:
    return x.device.type == "neuron"


class OnlyHereDoubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient if there(gradient) else gradient * 2


def written_here(x: torch.Tensor) -> torch.Tensor:
    return x.detach().add_(0 if there(x) else 1).sum() * 0


@pytest.mark.parametrize(
    ("function", "form", "kind"),
    [
        (lambda x: x * 2, FORWARD, RIGHT),
        (torch.rand_like, FORWARD, RIGHT),
        (lambda x: x + there(x) * 0.1, FORWARD, VALUES),
        (lambda x: x.double() if there(x) else x.float(), FORWARD, SHAPE),
        (lambda x: x.clone() if there(x) else x.view(2, 2).view(4), FORWARD, SHAPE),
        (lambda x: x.view(2, 2) + 1 if there(x) else (x.view(2, 2) + 1).t().contiguous().t(), FORWARD, SHAPE),
        (lambda x: (x * 2).cpu(), FORWARD, SHAPE),
        (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.quint8).int_repr(), FORWARD, RAISES),
        (OnlyHereDoubled.apply, FORWARD, RIGHT),
        (OnlyHereDoubled.apply, GRADIENT, VALUES),
        (written_here, IN_PLACE, VALUES),
    ],
    ids=range(11),
)
def test_the_judge_sees_a_difference(function: Any, form: str, kind: str) -> None:
    outcome = device_cases.judge(made_up(function), torch.float32, form)
    assert outcome is not None
    assert outcome.kind == kind, outcome


def test_a_record_survives_its_file(tmp_path: Path) -> None:
    known = compatibility_page.Different("add", "out=", ("bool",), VALUES, "detail", "a reason")
    record = compatibility_page.Record(
        "2.0", 1, {"forward": {"bool": (1, 2)}}, (known,), {"float16": ("mm",)}, {"a": "b"}
    )
    compatibility_page.save(record, tmp_path / "record.json")
    assert compatibility_page.load(tmp_path / "record.json") == record
    assert "| `add` | out= | bool | other values | a reason |" in compatibility_page._different(record.different)
