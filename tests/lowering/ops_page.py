"""docs/ops.md: every operator of ATen, and what the compiler does with it, from the registry and PyTorch's dispatcher.

``python tests/lowering/ops_page.py`` writes the page; ``test_ops_page.py`` holds that it is up to date.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch

import neuron_compiler
from neuron_compiler.lowering import decompositions
from neuron_compiler.opdef import REGISTRY

PAGE = Path(__file__).parents[2] / "docs" / "ops.md"
LOWERING = Path(neuron_compiler.__file__).parent / "lowering"

HEAD = """# Operators

What the compiler does with each operator of ATen, as PyTorch {torch} has them. Written by
`python tests/lowering/ops_page.py`; not by hand.

In short, in overloads (`add.Tensor` and `add.Scalar` are two):

| | overloads |
|---|---:|
{summary}
"""

ABOUT = {
    "rule": "A rule of ours computes them in JAX. The file is in `lowering/ops/`.",
    "decomposed": "They are written as other operators while the graph is traced: by PyTorch's table, or by one of "
    "ours, whose file is in `lowering/`.",
    "composite": "PyTorch itself calls other operators for them, before anything is captured.",
    "in place": "They write to an argument. AOTAutograd puts the operator without the underscore, or without `out=`, "
    "in their place, and the result is written to the argument after the program has run.",
    "drawn": "They draw random numbers: ATen draws, from the user's generator and in program order, and the program "
    "is given the numbers. The ledger counts them as `random`.",
    "eager": "They run by PyTorch's kernel between two executables, counted as `fallback` with the reason; an error "
    "under `strict=True`. A size or a value that is data makes Dynamo break the graph there, unless its capture flags "
    "are set.",
    "not captured": "They never stand in a graph: memory, autograd and dispatch, or tensors of another layout or "
    "backend, which Dynamo or AOTAutograd leaves to eager PyTorch.",
}
TITLES = {
    "rule": "Rules",
    "decomposed": "Decompositions",
    "composite": "Composites",
    "in place": "In place and `out=`",
    "drawn": "Random draws",
    "eager": "Eager, with the reason",
    "not captured": "Not captured",
}

HIGHER_ORDER = "higher_order"

OTHERS = (
    "Operators that a package registers with `torch.library`, and for which there is a rule of ours. Those of any "
    "other package run eagerly."
)
OF_PYTORCH = ("aten", "prims", "neuron_compiler", HIGHER_ORDER)

HIGHER_ORDER_OPS = (
    "Branches, loops and marked regions are part of the executable, with all that is in them. Where something in them "
    "is not compiled (a random draw, a size that is data, an operator without a rule), the whole operator runs eagerly "
    "and is counted. `flex_attention` is written as attention, `associative_scan` and activation checkpointing are "
    "traced through; other higher-order operators run eagerly."
)

ELSEWHERE = (
    (("mkldnn", "xnnpack"), "another library's layout"),
    (("cudnn", "cuda", "miopen", "cutlass", "mps", "cslt", "hipdnn", "nnpack"), "another backend"),
    (
        ("sparse", "_csr", "_coo", "coalesce", "ccol", "crow", "_bsr", "to_dense", "_indices", "_values"),
        "sparse layout",
    ),
    (("nested", "jagged"), "nested layout"),
    (("quantize", "fbgemm", "qscheme", "q_", "int_repr", "affine", "weight_int", "dyn_quant"), "quantized"),
)
CORE = frozenset(
    [
        "_conj",
        "_neg_view",
        "_copy_from",
        "_copy_from_and_resize",
        "_reshape_alias",
        "alias",
        "as_strided",
        "detach",
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_quantized",
        "empty_strided",
        "lift",
        "lift_fresh",
        "new_empty",
        "new_empty_strided",
        "record_stream",
        "set_data",
        "_fw_primal",
        "_make_dual",
        "_unpack_dual",
        "_has_same_storage_numel",
        "is_pinned",
        "pin_memory",
        "_pin_memory",
        "_local_scalar_dense",
        "sym_size",
        "sym_stride",
        "sym_numel",
        "sym_storage_offset",
        "sym_constrain_range",
        "_assert_tensor_metadata",
        "is_set_to",
        "_version",
        "is_same_size",
        "_lazy_clone",
        "from_file",
        "_print",
        "output_nr",
        "_backward",
        "retains_grad",
        "result_type",
    ]
)


class Row(NamedTuple):
    """One overload: what is done with it, and the words of its table's second column."""

    overload: str
    status: str
    detail: str


def overloads() -> list[Any]:
    """Every overload of ATen."""
    found = []
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        if name.startswith("aten::"):
            operator, _, overload = name.removeprefix("aten::").partition(".")
            try:
                found.append(getattr(getattr(torch.ops.aten, operator), overload or "default"))
            except AttributeError:  # of TorchScript, which Python does not reach
                continue
    return found


def _place(function: Any) -> str:
    code = getattr(function, "__code__", None)
    path = Path(code.co_filename) if code is not None else None
    return f"`{path.name}`" if path is not None and LOWERING.name in path.parts else "PyTorch"


def row(overload: Any) -> Row:
    """What is done with an overload."""
    name = str(overload)
    plain = name.removeprefix("aten.").removesuffix(".default")
    if (record := REGISTRY.get(name)) is not None:
        return Row(plain, "rule", f"{record.kind.value} in `{Path(record.source.rpartition(':')[0]).name}`")
    if overload in decompositions.table():
        return Row(plain, "decomposed", _place(decompositions.table()[overload]))
    schema = overload._schema
    if schema.is_mutable:
        return Row(plain, "in place", "")
    operator = plain.partition(".")[0]
    for words, layout in ELSEWHERE:
        if any(word in operator for word in words) and "fake_quantize" not in operator:
            return Row(plain, "not captured", layout)
    if operator in CORE or overload.is_view:
        return Row(plain, "not captured", "views and memory")
    if operator.startswith("_test_") or operator == "_foobar":
        return Row(plain, "not captured", "for PyTorch's own tests")
    dispatched = torch._C._dispatch_has_kernel_for_dispatch_key
    if dispatched(overload.name(), "CompositeImplicitAutograd"):
        return Row(plain, "composite", "")
    if torch.Tag.nondeterministic_seeded in overload.tags:
        return Row(plain, "drawn", "")
    if not any("Tensor" in str(value.type) for value in (*schema.arguments, *schema.returns)):
        return Row(plain, "not captured", "no tensor: arithmetic of TorchScript")
    if torch.Tag.dynamic_output_shape in overload.tags:
        return Row(plain, "eager", "its size depends on values")
    if torch.Tag.data_dependent_output in overload.tags:
        return Row(plain, "eager", "its value is a number of the program")
    if not any(dispatched(overload.name(), key) for key in ("CPU", "CompositeExplicitAutograd")):
        return Row(plain, "not captured", "no kernel for the CPU")
    return Row(plain, "eager", "no rule")


def by_operator(rows: Iterable[Row]) -> list[tuple[str, str]]:
    """(operator with its overloads, detail), a line for each operator."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for one in rows:
        operator, _, overload = one.overload.partition(".")
        found[operator, one.detail].append(overload)
    lines = []
    for (operator, detail), names in sorted(found.items()):
        named = ", ".join(name or "default" for name in sorted(names))
        lines.append((f"`{operator}`" + (f" ({named})" if names != [""] else ""), detail))
    return lines


def page() -> str:
    """The whole page."""
    rows = [row(overload) for overload in overloads()]
    parts = []
    for status, title in TITLES.items():
        chosen = [one for one in rows if one.status == status]
        parts.append(f"## {title}\n\n{ABOUT[status]}\n")
        if any(one.detail for one in chosen):
            by_detail: dict[str, list[str]] = defaultdict(list)
            for operator, detail in by_operator(chosen):
                by_detail[detail].append(operator)
            parts.append("| | operators |\n|---|---|")
            parts.extend(f"| {detail} | {', '.join(names)} |" for detail, names in sorted(by_detail.items()))
            parts.append("")
        else:
            parts.append(", ".join(operator for operator, _ in by_operator(chosen)) + ".\n")
    parts.append(f"## Higher-order operators\n\n{HIGHER_ORDER_OPS}\n\n| | operators |\n|---|---|")
    compiled = [name.partition(".")[2] for name in REGISTRY.names() if name.startswith(f"{HIGHER_ORDER}.")]
    parts.append(f"| compiled in `control_flow.py` | {', '.join(f'`{name}`' for name in compiled)} |\n")
    parts.append(f"## Of other packages\n\n{OTHERS}\n\n| | operators |\n|---|---|")
    for name in REGISTRY.names():
        package, _, operator = name.removesuffix(".default").partition(".")
        if package not in OF_PYTORCH:
            parts.append(f"| {package} | `{operator}` |")
    summary = "\n".join(
        f"| [{title}](#{_anchor(title)}) | {sum(one.status == status for one in rows)} |"
        for status, title in TITLES.items()
    )
    head = HEAD.format(torch=torch.__version__.partition("+")[0], summary=summary)
    return head + "\n" + "\n".join(parts).rstrip() + "\n"


def _anchor(title: str) -> str:
    kept = [letter for letter in title.lower() if letter.isalnum() or letter in " -"]
    return "".join(kept).replace(" ", "-")


if __name__ == "__main__":
    PAGE.write_text(page())
