"""The demonstration: GPT-2 and ResNet-50, random weights, compiled, compared with eager and Inductor, and dumped.

In: models of the catalogue and a folder for dumps. Out: tables on standard output; the rows. Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from neuron_compiler.compile import Compilation
from neuron_compiler.measure import rows, show
from neuron_compiler.measure.difference import RMS_LIMIT
from neuron_compiler.measure.systems import INDUCTOR, SYSTEMS, warm_up
from neuron_compiler.models import Size, find
from neuron_compiler.passes.tile import sbuf_peak_bytes
from neuron_compiler.trainium import target

MODELS = ("gpt2", "resnet50")


def walk(folder: Path, models: Sequence[str] = MODELS, size: Size = Size.FULL, rounds: int = 10) -> list[rows.Row]:
    """Compile the models, each with a dump in ``folder``, and print what happened.

    Args:
        folder: where dumps are written.
        models: names in the catalogue.
        size: how large they are built.
        rounds: of timing.
    """
    import torch

    out = show.console()
    out.print(f'torch.compile(model, backend="neuron") on {torch.get_num_threads()} threads, random weights, float32')
    found: list[rows.Row] = []
    with show.progress() as progress:
        progress.tell("loading PyTorch, JAX and Inductor")
        warm_up(SYSTEMS)
        for name in models:
            entry = find(name)
            row = rows.measure(
                entry,
                size=size,
                rounds=rounds,
                options={"dump": str(folder)},
                tell=lambda what, entry=entry: progress.tell(f"{entry.title}: {what}"),  # type: ignore[misc]
            )
            found.append(row)
            torch._dynamo.reset()
    show.tables(found, f"forward, {rounds} rounds; the first call of neuron includes writing the dump")
    out.print(anatomy(found))
    out.print(after_words(found, folder), markup=False)
    return found


def anatomy(found: Sequence[rows.Row]) -> Table:
    """What each graph became: ops, groups, tiles, memory on the chip, seconds by stage."""
    table = Table(title="What became of them", caption="SBUF peak: of one tile, as planned for the target")
    for column in ("model", "target"):
        table.add_column(column)
    for column in (
        "ops",
        "after passes",
        "groups",
        "tiled",
        "tiles",
        "SBUF peak",
        "passes, s",
        "lowering, s",
        "XLA, s",
    ):
        table.add_column(column, justify="right")
    for row in found:
        for compilation in row.compilations:
            table.add_row(row.model, compilation.program.target, *_cells(compilation))
    return table


def _cells(compilation: Compilation) -> list[str]:
    program, seconds = compilation.program, compilation.seconds
    plan = program.plan
    peak, capacity = sbuf_peak_bytes(plan), target.by_name(program.target).sbuf_bytes
    return [
        str(len(compilation.captured.graph.ops)),
        str(len(program.graph.ops)),
        str(len(plan.groups)),
        str(len(plan.tiles)),
        f"{sum(tile.count for tile in plan.tiles.values()):,}",
        f"{peak / 2**20:.1f} of {capacity / 2**20:.0f} MiB",
        *(f"{seconds.get(stage, 0.0):.1f}" for stage in ("passes", "lower", "xla")),
    ]


def after_words(found: Sequence[rows.Row], folder: Path) -> str:
    """The outcome in words, and where to look next."""
    lines = []
    for row in found:
        own = row.results["neuron"]
        verdict = own.verdict or "equal to eager within the bound"
        lines.append(
            f"{row.title}: largest difference from eager {own.difference.largest:.1e}, "
            f"relative RMS {own.difference.rms:.1e} (bound {RMS_LIMIT:.0e}): {verdict}; "
            f"{own.fallbacks} ops fell back to eager"
        )
        if (missing := row.results.get(INDUCTOR)) is not None and missing.first_call_seconds is None:
            lines.append(f"  the inductor column is empty: {missing.verdict}")
    lines.append(
        f"Every stage of both is in {folder}: the FX graph, the program after each pass, StableHLO, XLA's HLO,"
    )
    lines.append("groups, tiles, and a repro. Start with summary.txt.")
    return "\n".join(lines)
