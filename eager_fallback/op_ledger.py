"""The ledger of eager operators: how often each ran on the device, for how long, over how many bytes, and where.

In: the counts of the loaded library, and its calls before operators that Trainium's software would run on the CPU. Out:
``OpLedger``. Invariants: nothing is counted unless asked, as counting costs time on every operator; an operator of the
fallback class is noted at its first call whether anything is counted or not; nothing is printed, only logged.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

from neuron_compiler import options
from neuron_compiler.eager_fallback import loader
from neuron_compiler.eager_fallback.op_classes import FALLBACK_OVERLOADS, OpClass, op_class
from neuron_compiler.errors import OptionsError

# The compiled graphs' fallbacks are logged here too: one name shows both.
logger = logging.getLogger("neuron_compiler.fallbacks")

NEVER, NEXT_CALL, EVERY_CALL = 0, 1, 2


class OpRow(NamedTuple):
    """One operator, by name with overload: calls, their time in microseconds, bytes of its tensors, class, where."""

    op: str
    calls: int
    time_us: float
    bytes: int
    op_class: OpClass
    site: str = ""


class OpLedger(NamedTuple):
    """Operators that ran on the device, those that took longest first."""

    rows: tuple[OpRow, ...]
    tracking: bool

    def of_class(self, op_class: OpClass) -> tuple[OpRow, ...]:
        """Rows of one class."""
        return tuple(row for row in self.rows if row.op_class == op_class)

    def to_json(self) -> str:
        """The rows as a JSON document."""
        return json.dumps({"tracking": self.tracking, "ops": [row._asdict() for row in self.rows]}, indent=2)

    def __rich__(self) -> Any:
        from rich.table import Table

        caption = "" if self.tracking else "calls are counted only inside torch.neuron.track_ops()"
        table = Table(title="eager operators on device neuron", caption=caption)
        table.add_column("operator")
        for name in ("calls", "us", "bytes"):
            table.add_column(name, justify="right")
        table.add_column("runs on")
        table.add_column("first called at")
        for row in self.rows:
            table.add_row(row.op, str(row.calls), f"{row.time_us:.1f}", str(row.bytes), row.op_class, row.site)
        return table

    def __str__(self) -> str:
        import io

        from rich.console import Console

        text = io.StringIO()
        Console(file=text, width=160, color_system=None).print(self)
        return text.getvalue().rstrip()


_lock = threading.Lock()
_mode = "warn"
_tracking = False
_all_sites = False
_sites: dict[str, str] = {}
_warned: set[str] = set()


def get_fallback_mode() -> str:
    """What an operator of the fallback class does: ``silent``, ``warn`` or ``error``."""
    return _mode


def set_fallback_mode(mode: str) -> None:
    """Let operators that Trainium's software runs on the CPU pass (``silent``), be logged once each (``warn``), or
    raise NotImplementedError (``error``).
    """
    global _mode
    if mode not in options.FALLBACK_MODES:
        raise OptionsError(f"the fallback mode is {mode!r}; it takes one of {', '.join(options.FALLBACK_MODES)}")
    _mode = mode
    shim = loader.loaded()
    shim.observe(_called)
    _notice_fallbacks()


def _notice_fallbacks() -> None:
    shim = loader.loaded()
    for name in FALLBACK_OVERLOADS:
        shim.set_notice(name, EVERY_CALL if _mode == "error" else NEXT_CALL)


def _called(name: bytes) -> int:
    """What the library calls before an operator runs; must not raise, as C++ could not tell. 1 refuses the call."""
    op = name.decode()
    falls_back = op_class(op) == "cpu fallback"
    if falls_back and _mode == "error":
        return 1
    where = site()
    with _lock:
        _sites.setdefault(op, where)
        said = op in _warned
        if falls_back and _mode == "warn":
            _warned.add(op)
    if falls_back and _mode == "warn" and not said:
        logger.warning("%s would run on the CPU, not on the chip (%s)", op, where or "no source line")
    return 0


def site() -> str:
    """The user's ``file:line`` in this thread: of the innermost frame outside PyTorch and this package."""
    # A thread of PyTorch's has no frames above ours.
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.split(".")[0] not in ("torch", "neuron_compiler", "contextlib"):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def set_op_tracking(enabled: bool, sites: bool = False) -> None:
    """Switch the counts on or off; with ``sites``, the first call of every operator from here is noted too."""
    global _tracking, _all_sites
    shim = loader.loaded()
    if (enabled and sites) or _all_sites:
        _all_sites = enabled and sites
        for name in set(shim.names()).difference(FALLBACK_OVERLOADS):
            shim.set_notice(name, NEXT_CALL if _all_sites else NEVER)
    _tracking = enabled
    shim.count_calls(enabled)


@contextmanager
def track_ops(sites: bool = False) -> Iterator[None]:
    """Context in which calls of operators are counted."""
    before = _tracking, _all_sites
    set_op_tracking(True, sites or _all_sites)
    try:
        yield
    finally:
        set_op_tracking(*before)


def ledger() -> OpLedger:
    """What was counted since the start or the last ``clear_op_tracking``."""
    with _lock:
        sites = dict(_sites)
    rows = [
        OpRow(call.name, call.calls, call.nanoseconds / 1000, call.bytes, op_class(call.name), sites.get(call.name, ""))
        for call in loader.loaded().calls()
    ]
    return OpLedger(tuple(sorted(rows, key=lambda row: (-row.time_us, row.op))), _tracking)


def get_fallback_ops() -> list[str]:
    """Operators of the fallback class that were called, whether calls were counted or not."""
    with _lock:
        return sorted(op for op in _sites if op_class(op) == "cpu fallback")


def get_executed_ops() -> list[str]:
    """Operators whose calls were counted, but for those of the fallback class."""
    return sorted(row.op for row in ledger().rows if row.op_class != "cpu fallback")


def clear_op_tracking() -> None:
    """Forget counts, operators and sites; what was logged is not logged again."""
    with _lock:
        _sites.clear()
    loader.loaded().clear_calls()
    _notice_fallbacks()
