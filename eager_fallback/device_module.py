"""``torch.neuron``: what PyTorch and its users call on a device's module, by the names that CUDA's has.

Every call on the device has ended when it returns: streams run in order with the caller, and synchronizing waits for
nothing but what eager mode ``fused`` has queued. Random numbers come from one stream for the CPU and all devices.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, NamedTuple

import torch

from neuron_compiler import options
from neuron_compiler.eager_fallback import loader
from neuron_compiler.eager_fallback.op_ledger import (  # noqa: F401
    clear_op_tracking,
    get_executed_ops,
    get_fallback_mode,
    get_fallback_ops,
    ledger,
    set_fallback_mode,
    set_op_tracking,
    track_ops,
)
from neuron_compiler.errors import OptionsError

Device = torch.device | str | int | None

TYPE = "neuron"


def _index(device: Device) -> int:
    """Index of a device of ours; that of the current one where none is given. Raises ValueError for another's."""
    if device is None:
        return current_device()
    if isinstance(device, int):
        return device
    if isinstance(device, str):
        device = torch.device(device)
    if device.type != TYPE:
        raise ValueError(f"expected a device neuron, not {device}")
    return current_device() if device.index is None else device.index


def _checked_index(device: Device) -> int:
    index = _index(device)
    if not 0 <= index < device_count():
        raise ValueError(f"there is no device neuron:{index}; there are {device_count()}, counted from 0")
    return index


# Devices ------------------------------------------------------------


def init() -> None:
    """Nothing is left to initialize; raises RuntimeError in a process forked off one that used the device."""
    if _is_in_bad_fork():
        raise RuntimeError(
            "Cannot use device neuron in a forked process: its parent has used the device already. "
            "To use it with multiprocessing, take the 'spawn' start method."
        )


def is_initialized() -> bool:
    """Whether the device can be used in this process."""
    return not _is_in_bad_fork()


def _is_in_bad_fork() -> bool:
    return loader.loaded().is_forked()


def is_available() -> bool:
    """Whether there is a device: always, as it is emulated."""
    return device_count() > 0


def device_count() -> int:
    """How many devices there are."""
    return loader.loaded().devices


def current_device() -> int:
    """Index of the device that new tensors of this thread go to."""
    return torch._C._accelerator_getDeviceIndex()


def set_device(device: Device) -> None:
    """Make a device this thread's current one; raises ValueError if there is no such."""
    torch._C._accelerator_setDeviceIndex(_checked_index(device))


class device:
    """Context in which another device is the current one."""

    def __init__(self, device: Device) -> None:
        self.index = _checked_index(device)
        self._previous = -1

    def __enter__(self) -> device:
        self._previous = current_device()
        set_device(self.index)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        set_device(self._previous)


class device_of(device):
    """Context in which a tensor's device is the current one; a tensor elsewhere changes nothing."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor.device if tensor.device.type == TYPE else None)


class DeviceProperties(NamedTuple):
    """What a device is: the chip that is emulated, and the memory that one device may hold, in bytes."""

    name: str
    total_memory: int


def get_device_properties(device: Device = None) -> DeviceProperties:
    """Properties of a device."""
    return DeviceProperties(_chip(), loader.loaded().memory_limit(_checked_index(device)))


def get_device_name(device: Device = None) -> str:
    """The device as PyTorch writes it, ``neuron:0``."""
    return f"{TYPE}:{_checked_index(device)}"


def _chip() -> str:
    return options.from_environment().target


# Streams and events ------------------------------------------------------------


class _OnNeuron(type):
    """Type of the two below: PyTorch's C++ code takes its own classes alone, and no subclass of them."""

    made: type

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.made) and instance.device.type == TYPE


class Stream(metaclass=_OnNeuron):
    """A stream, a ``torch.Stream``: its work is done in the order of the calls, and done when a call returns."""

    made = torch.Stream

    def __new__(cls, device: Device = None, priority: int = 0, **identity: Any) -> torch.Stream:
        if identity:
            return torch.Stream(**identity)
        return torch.Stream(device=torch.device(TYPE, _index(device)), priority=priority)


class Event(metaclass=_OnNeuron):
    """A point in time between calls, a ``torch.Event``: ``elapsed_time`` is in milliseconds of the host."""

    made = torch.Event

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> torch.Event:
        return torch.Event(device=TYPE, enable_timing=enable_timing, blocking=blocking, interprocess=interprocess)


def synchronize(device: Device = None) -> None:
    """Wait until what was asked of a device is done: it is, but for operators that wait in eager mode ``fused``."""
    torch.accelerator.synchronize(_checked_index(device))


def current_stream(device: Device = None) -> torch.Stream:
    """The stream that calls of this thread go to."""
    return torch.accelerator.current_stream(torch.device(TYPE, _index(device)))


def default_stream(device: Device = None) -> torch.Stream:
    """The stream that calls go to where none was set."""
    index = _checked_index(device)
    return torch.Stream(stream_id=0, device_index=index, device_type=torch._C._autograd.DeviceType.PrivateUse1.value)


def set_stream(stream: torch.Stream | None) -> None:
    """Make a stream the current one of its device in this thread; None changes nothing."""
    if stream is not None:
        torch._C._accelerator_setStream(stream)


class stream:
    """Context in which another stream is the current one; None changes nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self._previous: torch.Stream | None = None

    def __enter__(self) -> stream:
        if self.stream is not None:
            self._previous = current_stream(self.stream.device)
            set_stream(self.stream)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        set_stream(self._previous)


def wait_stream(stream: torch.Stream) -> None:
    """Let the current stream wait for another."""
    current_stream(stream.device).wait_stream(stream)


def wait_event(event: torch.Event) -> None:
    """Let the current stream wait for an event."""
    current_stream().wait_event(event)


def record_event(event: torch.Event | None = None) -> torch.Event:
    """Record an event, a new one where none is given, in the current stream."""
    return current_stream().record_event(event)


def query(device: Device = None) -> bool:
    """Whether all that was asked of the current stream is done."""
    return current_stream(device).query()


def _sleep(cycles: int) -> None:
    """Accepted, and nothing is done, as on the chip."""


# Random numbers ------------------------------------------------------------


def manual_seed(seed: int) -> None:
    """Seed the stream of random numbers, which the CPU shares."""
    torch.default_generator.manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """The same: all devices share one stream."""
    manual_seed(seed)


def seed() -> int:
    """Seed with a number that nobody chose; returns it."""
    return torch.default_generator.seed()


def seed_all() -> None:
    """The same."""
    seed()


def initial_seed() -> int:
    """The last seed."""
    return torch.default_generator.initial_seed()


def get_rng_state(device: Device = TYPE) -> torch.Tensor:
    """State of the stream of random numbers, a CPU tensor of bytes."""
    _checked_index(device)
    return torch.default_generator.get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """The state, once per device."""
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state(new_state: torch.Tensor, device: Device = TYPE) -> None:
    """Set the state of the stream of random numbers."""
    _checked_index(device)
    torch.default_generator.set_state(new_state)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Set the state; of several, the last holds."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


# Memory ------------------------------------------------------------


def memory_stats(device: Device = None) -> OrderedDict[str, Any]:
    """Statistics of the allocator by name, as ``torch.accelerator.memory_stats`` has them."""
    return torch.accelerator.memory_stats(_checked_index(device))


def memory_allocated(device: Device = None) -> int:
    """Bytes in tensors."""
    return torch.accelerator.memory_allocated(_checked_index(device))


def max_memory_allocated(device: Device = None) -> int:
    """The most bytes that were in tensors at once, since the start or the last reset."""
    return torch.accelerator.max_memory_allocated(_checked_index(device))


def memory_reserved(device: Device = None) -> int:
    """Bytes taken from the host: those in tensors, as nothing is cached."""
    return torch.accelerator.memory_reserved(_checked_index(device))


def max_memory_reserved(device: Device = None) -> int:
    """The most bytes that were taken from the host at once."""
    return torch.accelerator.max_memory_reserved(_checked_index(device))


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """A table of what a device holds now, held at most, and was given and gave back in all."""
    from neuron_compiler.eager_fallback import memory_summary

    return memory_summary.table(_checked_index(device), abbreviated)


def reset_peak_memory_stats(device: Device = None) -> None:
    """Let peaks count from here."""
    torch.accelerator.reset_peak_memory_stats(_checked_index(device))


def reset_max_memory_allocated(device: Device = None) -> None:
    """Let peaks count from here."""
    reset_peak_memory_stats(device)


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Let sums count from here."""
    torch.accelerator.reset_accumulated_memory_stats(_checked_index(device))


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Bytes free and in all."""
    limit = loader.loaded().memory_limit(_checked_index(device))
    return max(limit - memory_allocated(device), 0), limit


def set_per_process_memory_fraction(fraction: float, device: Device = None) -> None:
    """Let a device hold this share, above 0 and up to 1, of the memory that it has by default."""
    if not 0 < fraction <= 1:
        raise OptionsError(f"a share of memory lies above 0 and up to 1, not at {fraction}")
    from neuron_compiler.eager_fallback import register

    loader.loaded().set_memory_limit(_checked_index(device), int(register.memory_limit() * fraction))


def empty_cache() -> None:
    """Give back memory that is held for later: there is none."""


# Compiled graphs ------------------------------------------------------------


def get_dynamo_metrics() -> list[dict[str, Any]]:
    """One record per graph compiled so far: names, number of ops, and the times of its stages in microseconds."""
    from neuron_compiler import compile_metrics

    return compile_metrics.records()


def reset_dynamo_metrics() -> None:
    """Forget the records."""
    from neuron_compiler import compile_metrics

    compile_metrics.clear()


# How operators run ------------------------------------------------------------


def set_eager_mode(mode: str, *, limit: int | None = None, options: Mapping[str, Any] | None = None) -> None:
    """Choose how operators run that nobody has compiled: ``each`` at once by its kernel, ``fused`` together in compiled
    programs when a value is needed, or ``compiled`` each at once by the compiler's rules.

    ``limit`` is the number of operators that may wait, for ``fused``; ``options`` are those of ``torch.compile``.
    Raises OptionsError.
    """
    from neuron_compiler.eager_fallback import eager_mode

    eager_mode.set_eager_mode(mode, limit=limit, options=options)


def get_eager_mode() -> str:
    """How operators of this thread run: ``each``, ``fused`` or ``compiled``."""
    from neuron_compiler.eager_fallback import eager_mode

    return eager_mode.get_eager_mode()


def eager_mode(
    mode: str, *, limit: int | None = None, options: Mapping[str, Any] | None = None
) -> AbstractContextManager[None]:
    """Context in which operators of this thread, and of its backward passes, run as ``set_eager_mode`` says."""
    from neuron_compiler.eager_fallback import eager_mode

    return eager_mode.eager_mode(mode, limit=limit, options=options)


def _start_in_eager_mode(mode: str) -> None:
    """The mode for all threads, set before any of it is needed."""
    from neuron_compiler.eager_fallback import eager_mode

    eager_mode.start_in(mode)


# Types ------------------------------------------------------------


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Types that ``torch.autocast("neuron")`` takes; it asks whenever it is entered, also before any allocation."""
    loader.loaded().use()
    return [torch.float32, torch.float16, torch.bfloat16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether the device computes in bfloat16: yes."""
    return True


# What `torch._dynamo.assume_constant_result` sets, without importing Dynamo: calls of C++ that it could not trace.
for _function in (is_available, device_count, current_device, _is_in_bad_fork, get_device_properties):
    _function._dynamo_marked_constant = True  # type: ignore[attr-defined]
