"""docs/compatibility.md: what PyTorch's operators do on device neuron, from a record of what was measured.

``python tests/eager_fallback/compatibility_page.py measure`` runs the op database on the device (minutes), writes the
record, docs/compatibility.json, and the page; reasons in the record are kept. Without ``measure`` it writes the page.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "docs" / "compatibility.json"
PAGE = ROOT / "docs" / "compatibility.md"

DTYPES = ("float32", "bfloat16", "float16", "float64", "complex64", "int64", "bool")
"""Element types that are measured."""

EXPLAINED = {
    "forward": "results: values, dtype, shape, strides, and what memory they share with arguments",
    "gradient": "gradients of all arguments, of a random weighted sum of the results",
    "strided": "the same as forward, from arguments with gaps between their elements",
    "in place": "the form that writes its first argument, `add_`",
    "out=": "results written to tensors that are given",
    "errors": "a wrong call raises the type of exception that it has to",
}
"""What is compared in each form."""


@dataclass(frozen=True)
class Different:
    """An op that does not do on the device what it does on the CPU, in one form and for one reason."""

    op: str
    form: str
    dtypes: tuple[str, ...]
    outcome: str
    detail: str
    reason: str = ""


@dataclass(frozen=True)
class NotHeld:
    """What the device has no tensors of: an expression that raises, the exception, and one that does not."""

    what: str
    raises: str
    error: str
    instead: str


NOT_HELD = (
    NotHeld(
        "quantized tensors (`torch.quint8` and its like)",
        'torch.quantize_per_tensor(torch.ones(2, device="neuron"), 0.1, 0, torch.quint8)',
        "NotImplementedError",
        'torch.fake_quantize_per_tensor_affine(torch.ones(2, device="neuron"), 0.1, 0, 0, 255)',
    ),
    NotHeld(
        "nested tensors with layout `torch.strided`",
        'torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], device="neuron") * 2',
        "NotImplementedError",
        'torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged, device="neuron") * 2',
    ),
    NotHeld(
        "tensors in oneDNN's own layout",
        'torch.ones(2, 2, device="neuron").to_mkldnn()',
        "NotImplementedError",
        'torch.ones(2, 2, device="neuron").relu()',
    ),
    NotHeld(
        "semi-structured sparse tensors, which only CUDA has",
        'torch.sparse.to_sparse_semi_structured(torch.ones(64, 64, dtype=torch.half, device="neuron"))',
        "RuntimeError",
        'torch.ones(64, 64, dtype=torch.half, device="neuron").to_sparse_csr()',
    ),
    NotHeld(
        "memory that NumPy or another package reads in place",
        'torch.ones(2, device="neuron").numpy()',
        "TypeError",
        'torch.ones(2, device="neuron").cpu().numpy()',
    ),
)


@dataclass(frozen=True)
class Record:
    """What was measured.

    Attributes:
        torch: version of PyTorch.
        ops: how many records of the op database were run.
        counts: by form and element type, how many ops do the same as on the CPU, of how many.
        different: the others.
        cuda_only: by element types, the ops that CUDA has for these and the CPU has not.
        left_out: ops that were not run, with the reason.
    """

    torch: str
    ops: int
    counts: Mapping[str, Mapping[str, tuple[int, int]]]
    different: tuple[Different, ...]
    cuda_only: Mapping[str, tuple[str, ...]]
    left_out: Mapping[str, str]


def load(path: Path = RECORD) -> Record:
    """The record in a file."""
    data = json.loads(path.read_text())
    return Record(
        torch=data["torch"],
        ops=data["ops"],
        counts={
            form: {dtype: (right, whole) for dtype, (right, whole) in row.items()}
            for form, row in data["counts"].items()
        },
        different=tuple(Different(**{**one, "dtypes": tuple(one["dtypes"])}) for one in data["different"]),
        cuda_only={dtypes: tuple(ops) for dtypes, ops in data["cuda_only"].items()},
        left_out=data["left_out"],
    )


def save(record: Record, path: Path = RECORD) -> None:
    """Write a record to a file."""
    path.write_text(json.dumps(asdict(record), indent=1) + "\n")


# Measuring ---------------------------------------------------------------------------------------------------------


def measure(reasons: Mapping[tuple[str, str], str]) -> Record:
    """Run the database on the device; ``reasons`` are by op and form."""
    import device_cases
    import op_cases
    import torch

    import neuron_compiler.eager_fallback  # noqa: F401

    torch.set_num_threads(1)
    torch.neuron.set_fallback_mode("silent")
    counts: dict[str, dict[str, tuple[int, int]]] = {form: {} for form in device_cases.FORMS}
    wrong: dict[tuple[str, str, str], list[tuple[str, str]]] = defaultdict(list)
    names = sorted(device_cases.records())
    for name, dtype, form in device_cases.cases(names, [getattr(torch, dtype) for dtype in DTYPES]):
        outcome = device_cases.judge(device_cases.records()[name], dtype, form)
        if outcome is None:
            continue
        short = str(dtype).removeprefix("torch.")
        right, whole = counts[form].get(short, (0, 0))
        counts[form][short] = (right + (outcome.kind == device_cases.RIGHT), whole + 1)
        if outcome.kind != device_cases.RIGHT:
            wrong[name, form, outcome.kind].append((short, outcome.detail))
    different = tuple(
        Different(op, form, tuple(d for d, _ in found), kind, found[0][1], reasons.get((op, form), ""))
        for (op, form, kind), found in sorted(wrong.items())
    )
    return Record(torch.__version__.partition("+")[0], len(names), counts, different, cuda_only(), op_cases.EXCLUDED)


def cuda_only() -> dict[str, tuple[str, ...]]:
    """What the database says CUDA has and the CPU has not, where the device raises, too: it counts integers itself."""
    import device_cases
    import torch

    on_cpu: dict[str, set[Any]] = defaultdict(set)
    for info in device_cases.records().values():
        on_cpu[info.name] |= set(info.dtypes)
    found: dict[str, set[str]] = defaultdict(set)
    for info in device_cases.records().values():
        for dtype in (getattr(torch, name) for name in DTYPES):
            if dtype in info.dtypesIfCUDA and dtype not in on_cpu[info.name] and device_cases.raises(info, dtype):
                found[info.name].add(str(dtype).removeprefix("torch."))
    rows: dict[str, set[str]] = defaultdict(set)
    for name, dtypes in found.items():
        if "._" not in name:  # functions that are not for users
            rows[", ".join(dtype for dtype in DTYPES if dtype in dtypes)].add(name)
    return {dtypes: tuple(sorted(ops)) for dtypes, ops in sorted(rows.items())}


# The page ----------------------------------------------------------------------------------------------------------

PAGE_TEXT = """\
# Compatibility

What PyTorch's operators do on device `neuron`, called one by one, beside the CPU. Everything runs unless it is on this
page: {right:,} of {whole:,} cases do the same ({share}), in {ops} records of the op database of PyTorch {torch}.

Written by `python tests/eager_fallback/compatibility_page.py` from `docs/compatibility.json`; not by hand.
`tests/eager_fallback/test_compatibility_page.py` holds it to that record, and tries a part again.

## What was compared

A case is an operator in one element type and one form. It is right if every sample is: values within the tolerance that
PyTorch's own tests give the operator, random ones included, since a seed draws the CPU's numbers.

{forms}

{counts}

## What differs

{different}

## What the device does not hold

Dense tensors of all element types are held, sparse ones (COO, CSR, CSC, BSR, BSC) and nested ones with layout
`torch.jagged`. What is not:

{not_held}

## Element types that single operators lack

The device computes with the CPU's kernels, so it has the element types that these have. CUDA has more; a program
written there may have to convert before and after. An operator called with one of these raises:

{cuda_only}

`torch.histc` of integers, which programs ask any accelerator for, is there.

## What was left out

{left_out}

## Compiled code

What `torch.compile(model, backend="neuron")` makes of a model is XLA's arithmetic and not the CPU's kernels. Where its
numbers may differ from the CPU's is in [architecture](architecture.md#where-the-numbers-differ-from-cpu-eager); an
operator without a rule runs on the device as above, [counted and shown](debugging.md).

## Measuring it again

    python tests/eager_fallback/compatibility_page.py measure    # some minutes: the record, and this page

What is new under "What differs" needs a reason, by hand, in `docs/compatibility.json`; then the same without `measure`.
"""


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    lines = [list(head), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def render(record: Record) -> str:
    """The page."""
    total: Counter[str] = Counter()
    for row in record.counts.values():
        for right, whole in row.values():
            total.update(right=right, whole=whole)
    share = total["right"] / max(1, total["whole"])
    return PAGE_TEXT.format(
        right=total["right"],
        whole=total["whole"],
        share="all" if share == 1 else f"{share:.2%}",
        ops=record.ops,
        torch=record.torch,
        forms=table(["form", "compared"], EXPLAINED.items()),
        counts=table(["right, of all", *DTYPES], [_row(form, record.counts[form]) for form in EXPLAINED]),
        different=_different(record.different),
        not_held=table(
            ["what", "raises", "instead"], [[n.what, f"`{n.error}`: `{n.raises}`", f"`{n.instead}`"] for n in NOT_HELD]
        ),
        cuda_only=table(
            ["element types", "operators"],
            [[dtypes, ", ".join(f"`{op}`" for op in ops)] for dtypes, ops in record.cuda_only.items()],
        ),
        left_out=table(["operator", "reason"], [[f"`{op}`", reason] for op, reason in record.left_out.items()]),
    )


def _row(form: str, counts: Mapping[str, tuple[int, int]]) -> list[str]:
    def cell(right: int, whole: int) -> str:
        return f"{right} of {whole}" if right < whole else f"all {whole}"

    return [form, *(cell(*counts[dtype]) if dtype in counts else "" for dtype in DTYPES)]


def _different(different: Iterable[Different]) -> str:
    rows = [[f"`{d.op}`", d.form, ", ".join(d.dtypes), d.outcome, d.reason] for d in different]
    return table(["operator", "form", "element types", "on the device", "reason"], rows) if rows else "Nothing."


def main(measuring: bool) -> None:
    """Write the page, of a record that is measured now or was before."""
    sys.path.append(str(ROOT / "tests" / "suites"))
    if measuring:
        reasons = {(one.op, one.form): one.reason for one in load().different} if RECORD.exists() else {}
        save(measure(reasons))
    PAGE.write_text(render(load()))


if __name__ == "__main__":
    main(measuring=sys.argv[1:] == ["measure"])
