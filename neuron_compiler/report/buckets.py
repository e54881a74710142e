"""The sizes of one build of a graph: which were padded to which bucket, and why others were not."""

from __future__ import annotations

from collections.abc import Mapping

from neuron_compiler.buckets.prove import Refusal
from neuron_compiler.report.table import section, table


def bucket_text(padded: Mapping[str, tuple[int | float, int]], left_out: Mapping[str, Refusal]) -> str:
    """Sizes by name: (true size, bucket) of those that were padded, the refusal of those that were not."""
    blocks = []
    if padded:
        rows = [(name, true, bucket) for name, (true, bucket) in padded.items()]
        blocks.append(
            section("Padded: no result can see it", table(("size", "first", "bucket"), rows, ("first", "bucket")))
        )
    if left_out:
        refused = [(name, r.op, r.cause, r.site) for name, r in left_out.items()]
        blocks.append(section("Exact: padding might reach a result", table(("size", "op", "cause", "site"), refused)))
    return "\n\n".join(blocks or ["no dynamic size"]) + "\n"
