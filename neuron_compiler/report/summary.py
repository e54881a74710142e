"""The summary of one compiled graph: passes, groups with their tiles, barriers, and what to know about its numbers.

The same program and options give the same text: no time and no address is in it. Times are ``timings``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from neuron_compiler.compile import Compilation
from neuron_compiler.ir.graph import DType, TensorType, TupleType
from neuron_compiler.ir.plan import Program, Tile
from neuron_compiler.passes.base import PassRecord
from neuron_compiler.report.eager import count
from neuron_compiler.report.table import section, table, tsv

WIDE = {
    DType.F64: "float64 is computed as such on this host; Trainium has no float64",
    DType.C128: "complex128 is computed as such on this host; Trainium has no float64",
    DType.I64: "int64 is computed in 64 bits on this host; Trainium does so only where its compiler is asked to",
    DType.U64: "uint64 is computed in 64 bits on this host; Trainium does so only where its compiler is asked to",
}
"""What is said of element types that the chip treats in its own way."""


def summary(compilation: Compilation) -> str:
    """Everything about one executable but its times."""
    program = compilation.program
    blocks = [
        _head(compilation),
        section("Passes", passes(compilation.passes)),
        section("Groups", groups(program)),
        section("Barriers: edges that were not fused", barriers(program)),
        section("Notes", "\n".join(_notes(compilation)) or "none"),
    ]
    return "\n\n".join(blocks) + "\n"


def _head(compilation: Compilation) -> str:
    before, after = compilation.captured.graph, compilation.program.graph
    inputs = sum(i.type.nbytes for i in after.inputs)
    outputs = sum(after.tensor_type(name).nbytes for name in after.outputs)
    return "\n".join(
        [
            f"{after.name} for {compilation.program.target}",
            f"  {count(len(before.ops), 'op')} captured, {count(len(after.ops), 'op')} after the passes, "
            f"in {count(len(compilation.program.plan.groups), 'group')}",
            f"  {count(len(after.inputs), 'argument')} of {size(inputs)}, "
            f"{count(len(after.outputs), 'result')} of {size(outputs)}, "
            f"{count(len(after.constants), 'constant')}",
        ]
    )


def passes(records: Sequence[PassRecord]) -> str:
    """What each pass did."""
    rows = [(r.name, "changed" if r.changed else "same", r.ops_before, r.ops_after, r.groups) for r in records]
    return table(("pass", "", "ops before", "after", "groups"), rows, ("ops before", "after", "groups"))


def groups(program: Program) -> str:
    """Each fused group: what it is built around, its ops and how it is cut."""
    graph, plan = program.graph, program.plan
    rows = []
    for group in plan.groups:
        kinds = Counter(_short(graph.defs[name].kind) for name in group.ops)
        ops = " ".join(kind if n == 1 else f"{kind}*{n}" for kind, n in kinds.items())
        rows.append((group.name, group.kind.value, *_cut(plan.tiles.get(group.name)), len(group.ops), ops))
    header = ("group", "kind", "tile", "tiles", "SBUF KiB", "PSUM KiB", "ops", "of")
    return table(header, rows, ("tiles", "SBUF KiB", "PSUM KiB", "ops"))


def _short(kind: str) -> str:
    """``aten.add.Tensor`` as ``add.Tensor``, ``aten.mm.default`` as ``mm``."""
    return kind.removeprefix("aten.").removesuffix(".default")


def _cut(tile: Tile | None) -> tuple[object, object, object, object]:
    """Cells for a tile: partition x free, x contraction where there is one; and what it takes of on-chip memory."""
    if tile is None:
        return (None, None, None, None)
    extents = (tile.partition, tile.free, tile.contraction) if tile.contraction else (tile.partition, tile.free)
    return ("x".join(map(str, extents)), tile.count, _kib(tile.sbuf_bytes), _kib(tile.psum_bytes))


def _kib(nbytes: int) -> str:
    return f"{nbytes / 1024:.1f}"


def barriers(program: Program) -> str:
    """Edges between groups that stayed apart, with the reasons."""
    rows = [(b.producer, b.consumer, f"%{b.value}", b.reason) for b in program.plan.barriers]
    return table(("from", "to", "value", "reason"), rows) if rows else "none"


def _notes(compilation: Compilation) -> Iterator[str]:
    used = Counter(dtype for op in compilation.program.graph.ops for dtype in set(_dtypes(op.type)))
    for dtype, sentence in WIDE.items():
        if number := used[dtype]:
            yield f"{sentence} ({count(number, 'op')})"
    for (message, error), number in Counter(compilation.module.faults).items():
        yield f"checked in each run, {error.__name__}: {message} ({count(number, 'place')})"
    for what, layouts in (("argument", compilation.executable.inputs), ("result", compilation.executable.outputs)):
        gapped = [index for index, layout in enumerate(layouts) if not layout.dense]
        if gapped:
            yield f"copied in each call, for their strides have gaps or repeats: {what} {', '.join(map(str, gapped))}"
    if compilation.emulated:
        yield f"run tile by tile: {', '.join(compilation.emulated)}"
    for group, reason in compilation.not_emulated.items():
        yield f"not run tile by tile: {group}: {reason}"


def _dtypes(type_: TensorType | TupleType) -> Iterator[DType]:
    elements = type_.elements if isinstance(type_, TupleType) else (type_,)
    yield from (e.dtype for e in elements if e is not None)


def size(nbytes: int) -> str:
    """Bytes in the unit that leaves one to four digits."""
    amount, units = float(nbytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount, units = amount / 1024, units[1:]
    return f"{amount:.0f} {units[0]}" if units[0] == "B" else f"{amount:.1f} {units[0]}"


def timings(compilation: Compilation) -> str:
    """Wall seconds of each pass and stage, tab-separated."""
    rows = [("pass", r.name, f"{r.seconds:.6f}") for r in compilation.passes]
    rows += [("stage", name, f"{seconds:.6f}") for name, seconds in compilation.seconds.items()]
    return tsv(("what", "name", "seconds"), rows)
