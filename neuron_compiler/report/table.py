"""Columns of plain text, as wide as what stands in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[object]], numbers: Sequence[str] = ()) -> str:
    """Rows below a header, two spaces apart; no text ends in spaces.

    Args:
        header: names of the columns.
        rows: a cell for each column; a None is a dash.
        numbers: names of the columns that are set flush right.
    """
    lines = [list(header), *([_cell(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    right = [name in numbers for name in header]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if flush else cell.ljust(width)
            for cell, width, flush in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


def _cell(value: object) -> str:
    return "-" if value is None or value == "" else str(value)


def section(title: str, body: str) -> str:
    """A titled block; the body is set in by two spaces."""
    return f"{title}\n" + "\n".join(f"  {line}" if line else "" for line in body.splitlines())


def tsv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Tab-separated lines for scripts."""
    return "".join("\t".join(map(str, line)) + "\n" for line in (header, *rows))
