"""``torch.neuron.memory_summary``: the allocator's statistics of one device as a table of text."""

from __future__ import annotations

import torch

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")

ROWS: tuple[tuple[str, str, bool], ...] = (
    ("Allocated memory", "allocated_bytes.all", True),
    ("Active memory", "active_bytes.all", True),
    ("Requested memory", "requested_bytes.all", True),
    ("Reserved memory", "reserved_bytes.all", True),
    ("Allocations", "allocation.all", False),
    ("Active allocations", "active.all", False),
    ("Segments", "segment.all", False),
)
"""Title, name in the statistics, whether it counts bytes."""

COLUMNS = ("current", "peak", "allocated", "freed")


def _in_bytes(count: int) -> str:
    number = float(count)
    for unit in UNITS[:-1]:
        if abs(number) < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} {UNITS[-1]}"


def table(device: int, abbreviated: bool) -> str:
    """A table of what a device holds now, held at most, and was given and gave back in all.

    ``abbreviated`` leaves only the rows of bytes.
    """
    stats = torch.neuron.memory_stats(device)
    rows: list[tuple[str, ...]] = [("", "Current", "Peak", "In all", "Freed in all")]
    for title, name, is_bytes in ROWS:
        if (is_bytes or not abbreviated) and f"{name}.current" in stats:
            numbers = [stats[f"{name}.{column}"] for column in COLUMNS]
            rows.append((title, *(_in_bytes(n) if is_bytes else str(n) for n in numbers)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    head = f"Memory of {torch.neuron.get_device_name(device)}, out of memory {stats.get('num_ooms', 0)} times"
    lines = [" | ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    return "\n".join([head, "=" * len(lines[0]), lines[0], "-" * len(lines[0]), *lines[1:]])
