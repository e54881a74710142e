"""The loaded library and its C functions, with their types.

In: a path. Out: a ``Shim``. Invariant: loaded once, and never unloaded: PyTorch keeps pointers into it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from neuron_compiler import device_library
from neuron_compiler.errors import DeviceError

OBSERVER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p)
"""Told of an op by its name; a number other than 0 makes the op raise."""

RUNNER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
"""Runs queued operators: their ticket, the number of their mode, and room for the message of the error that it returns
the number of."""

PREPARE = ctypes.CFUNCTYPE(None)
"""Called once, before the first operator is queued."""

MISSED = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
"""Told of an operator by its name."""

SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "neuron_initialize": (ctypes.c_int, (ctypes.c_int, ctypes.c_int64)),
    "neuron_error": (ctypes.c_char_p, ()),
    "neuron_is_forked": (ctypes.c_int, ()),
    "neuron_is_used": (ctypes.c_int, ()),
    "neuron_use": (None, ()),
    "neuron_rest": (None, (ctypes.c_int,)),
    "neuron_set_memory_limit": (None, (ctypes.c_int, ctypes.c_int64)),
    "neuron_memory_limit": (ctypes.c_int64, (ctypes.c_int,)),
    "neuron_count_calls": (None, (ctypes.c_int,)),
    "neuron_record_count": (ctypes.c_int, ()),
    "neuron_record": (ctypes.c_char_p, (ctypes.c_int, ctypes.POINTER(ctypes.c_uint64))),
    "neuron_clear_records": (None, ()),
    "neuron_set_notice": (None, (ctypes.c_char_p, ctypes.c_int)),
    "neuron_set_observer": (None, (OBSERVER,)),
    "neuron_set_runner": (None, (RUNNER,)),
    "neuron_set_prepare": (None, (PREPARE,)),
    "neuron_set_queued": (None, (ctypes.c_char_p, ctypes.c_int)),
    "neuron_set_missed": (None, (MISSED,)),
    "neuron_queue_by_default": (None, (ctypes.c_int64, ctypes.c_int)),
    "neuron_enter_queue": (ctypes.c_uint64, (ctypes.c_int64, ctypes.c_int)),
    "neuron_leave_queue": (ctypes.c_uint64, (ctypes.c_uint64,)),
    "neuron_close_queue": (None, (ctypes.c_uint64,)),
    "neuron_queue_is_empty": (ctypes.c_int, ()),
}


class Call(NamedTuple):
    """What the ledger knows of one operator: its name with overload, and sums over its calls."""

    name: str
    calls: int
    nanoseconds: int
    bytes: int


class Shim:
    """The C functions of the library."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.devices = 0
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise DeviceError(
                f"{path} cannot be loaded: {error}",
                when="loading device neuron",
                hint="remove the file; it is built again by `neuron-compiler setup`",
            ) from error
        self._callbacks: dict[str, object] = {}
        for name, (result, arguments) in SIGNATURES.items():
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, list(arguments)

    def initialize(self, devices: int, limit: int) -> None:
        """Register the device with PyTorch's core, under the name it has there; raises DeviceError."""
        if self._library.neuron_initialize(devices, limit) != 0:
            raise DeviceError(self._library.neuron_error().decode(), when="registering device neuron")
        self.devices = devices

    def is_forked(self) -> bool:
        """Whether this process was forked off one that had used the device."""
        return bool(self._library.neuron_is_forked())

    def is_used(self) -> bool:
        """Whether memory of the device has been allocated."""
        return bool(self._library.neuron_is_used())

    def use(self) -> None:
        """Register what is registered at the first allocation."""
        self._library.neuron_use()

    def rest(self) -> None:
        """Wait until autograd's threads of the devices have dropped what Python objects they hold, at most 2 s."""
        self._library.neuron_rest(2000)

    def memory_limit(self, index: int) -> int:
        """Bytes that the device may hold."""
        return int(self._library.neuron_memory_limit(index))

    def set_memory_limit(self, index: int, limit: int) -> None:
        """Set the bytes that the device may hold."""
        self._library.neuron_set_memory_limit(index, limit)

    def count_calls(self, on: bool) -> None:
        """Switch the counts per operator on or off."""
        self._library.neuron_count_calls(int(on))

    def clear_calls(self) -> None:
        """Set all counts to 0."""
        self._library.neuron_clear_records()

    def calls(self) -> list[Call]:
        """Operators that were called while counts were on."""
        counts = (ctypes.c_uint64 * 3)()
        found = []
        for place in range(self._library.neuron_record_count()):
            name = self._library.neuron_record(place, counts)
            if counts[0]:
                found.append(Call(name.decode(), *counts))
        return found

    def names(self) -> list[str]:
        """Operators that have counts, called or not: all that the library has a kernel for."""
        counts = (ctypes.c_uint64 * 3)()
        return [
            self._library.neuron_record(place, counts).decode() for place in range(self._library.neuron_record_count())
        ]

    def set_notice(self, name: str, notice: int) -> None:
        """Whether the observer is told before operator ``name`` runs: 0 never, 1 at its next call only, 2 always."""
        self._library.neuron_set_notice(name.encode(), notice)

    def observe(self, observer: Callable[[bytes], int] | None) -> None:
        """Set who is told; None tells nobody."""
        self._hand_over("neuron_set_observer", OBSERVER(observer) if observer is not None else OBSERVER())

    def _hand_over(self, setter: str, callback: object) -> None:
        getattr(self._library, setter)(callback)
        self._callbacks[setter] = callback  # C does not keep it; the one before is not called any more

    def set_runner(self, runner: Callable[[int, int, int, int], int]) -> None:
        """Set who runs queued operators."""
        self._hand_over("neuron_set_runner", RUNNER(runner))

    def set_prepare(self, prepare: Callable[[], None]) -> None:
        """Set who says which operators may be queued; called once, when the first would be."""
        self._hand_over("neuron_set_prepare", PREPARE(prepare))

    def set_queued(self, name: str, queues: int) -> None:
        """Which queues take an operator: 0 none, 1 those of one operator, 2 all; 4 more with numbers for tensors."""
        self._library.neuron_set_queued(name.encode(), queues)

    def set_missed(self, told: Callable[[bytes], None]) -> None:
        """Set who is told of operators that a queue of one operator did not take."""
        self._hand_over("neuron_set_missed", MISSED(told))

    def queue_by_default(self, limit: int, mode: int) -> None:
        """Queue up to ``limit`` operators, 0 for none, in threads that enter no queue; the runner is given ``mode``."""
        self._library.neuron_queue_by_default(limit, mode)

    def enter_queue(self, limit: int, mode: int) -> int:
        """Queue up to ``limit`` operators, 0 for none, of this thread; returns a number to leave the queue by."""
        return int(self._library.neuron_enter_queue(limit, mode))

    def leave_queue(self, number: int) -> int:
        """Leave a queue, from whichever thread; returns the ticket of what is still in it, or 0."""
        return int(self._library.neuron_leave_queue(number))

    def close_queue(self, ticket: int) -> None:
        """Say that a ticket's operators have been run."""
        self._library.neuron_close_queue(ticket)

    def queue_is_empty(self) -> bool:
        """Whether nothing waits in any thread."""
        return bool(self._library.neuron_queue_is_empty())


def _built() -> Path:
    # Not loaded where there is nothing to build.
    from neuron_compiler.eager_fallback import build

    return build.build()


_shim: Shim | None = None


def load() -> Shim:
    """The library, built if need be; raises DeviceError where it cannot be built or loaded."""
    global _shim
    if _shim is None:
        _shim = Shim(device_library.find() or _built())
    return _shim


def loaded() -> Shim:
    """The library that is in use; raises DeviceError where none is."""
    if _shim is None:
        raise DeviceError("device neuron is not registered", hint="import neuron_compiler.eager_fallback")
    return _shim
