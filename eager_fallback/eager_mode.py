"""How operators run that nobody has compiled: each at once by its kernel, fused in programs, or each compiled.

In: a mode, for all threads or within a context. Out: queues in the library, whose programs are run here. Invariants: a
program that cannot be compiled runs operator by operator and says so once; a program that comes only once is never
compiled, as that would take longer than to run it; whatever happens, nothing stays queued.
"""

from __future__ import annotations

import _thread
import ctypes
import logging
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ContextDecorator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from neuron_compiler import options as options_module
from neuron_compiler.eager_fallback import dynamo_frames, loader, op_ledger, queued_program
from neuron_compiler.errors import OptionsError, UnsupportedOp
from neuron_compiler.ledger import LEDGER, Entry

logger = logging.getLogger("neuron_compiler.fallbacks")

QUEUE_LIMIT = 256
"""Operators of one fused program at most: compiling takes time that grows with them."""
COMPILED_KEPT = 512
ONCE_KEPT = 64
"""Programs that came once: one that comes again later than that is taken for new."""
INTERRUPT_AGAIN_AFTER = 0.02
"""Seconds."""

Run = Callable[..., Sequence[torch.Tensor]]


@dataclass(frozen=True)
class EagerMode:
    """A mode by name, and with which options programs are compiled."""

    name: str = "each"
    limit: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def compiles_at_once(self) -> bool:
        """Whether a program is compiled when it comes for the first time, and not for the second."""
        return self.name == "compiled"


@dataclass
class _Known:
    """A program, and what it was compiled to if it was."""

    program: queued_program.QueuedProgram
    compiled: Run | None = None


_lock = threading.RLock()
_modes: list[EagerMode] = [EagerMode()]
"""By the number that the library hands back; a mode in use must not move."""
_default = _modes[0]
_here = threading.local()
_compiled_programs: OrderedDict[tuple[int, str], _Known] = OrderedDict()
_once: OrderedDict[tuple[int, str], _Known] = OrderedDict()
_last: queued_program.QueuedProgram | None = None
"""The program that ran last, for whoever looks for a fault."""
_ready = False


def _mode(name: str, limit: int | None, options: Mapping[str, Any] | None) -> EagerMode:
    if name not in options_module.EAGER_MODES:
        raise OptionsError(
            f"the eager mode is {name!r}; it takes one of {', '.join(map(repr, options_module.EAGER_MODES))}"
        )
    if name != "fused" and limit is not None:
        raise OptionsError(f"a limit is for mode 'fused', which alone has operators wait; the mode is {name!r}")
    if name == "each" and options:
        raise OptionsError("mode 'each' compiles nothing and takes no options")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise OptionsError(f"the limit of operators that wait is a whole number from 1, not {limit!r}")
    options_module.from_call(options=options)  # raises for what it does not know
    return EagerMode(name, {"each": 0, "compiled": 1}.get(name, limit or QUEUE_LIMIT), dict(options or {}))


def get_eager_mode() -> str:
    """The mode of this thread: ``each``, ``fused`` or ``compiled``."""
    stack: list[tuple[int, EagerMode]] = getattr(_here, "stack", [])
    return (stack[-1][1] if stack else _default).name


def set_eager_mode(mode: str, *, limit: int | None = None, options: Mapping[str, Any] | None = None) -> None:
    """Choose how operators on the device run in all threads that do not choose themselves.

    ``each``, the default, runs every operator at once by PyTorch's kernel. ``fused`` lets operators wait, up to
    ``limit`` of them, until a value is needed (print, ``item``, ``cpu``, a branch, an operator that cannot wait), and
    runs them as one compiled program from the second time that the same ones come. ``compiled`` runs every operator at
    once, by the rules that compiled graphs are made of. The last two take ``options`` of ``torch.compile``. What waits
    is done by ``torch.neuron.synchronize()``. Raises OptionsError.
    """
    chosen = _mode(mode, limit, options)
    if chosen.limit:
        _prepare()
    _set_default(chosen)
    synchronize()


def start_in(mode: str) -> None:
    """Choose the mode for all threads, as ``set_eager_mode``, but load what it needs only when it is needed."""
    chosen = _mode(mode, None, None)
    if chosen.limit:
        loader.loaded().set_prepare(_prepare)
    _set_default(chosen)


def _set_default(mode: EagerMode) -> None:
    global _default
    with _lock:
        _default = mode
        loader.loaded().queue_by_default(mode.limit, _number(mode))


class _Context(ContextDecorator):
    """A mode for the thread that enters it. Contexts may be left in any order, and in any thread."""

    def __init__(self, mode: EagerMode) -> None:
        self.mode = mode
        self._entered: list[tuple[list[tuple[int, EagerMode]], int]] = []

    def _recreate_cm(self) -> _Context:
        return _Context(self.mode)  # of a decorated function, one per call

    def __enter__(self) -> None:
        if self.mode.limit:
            _prepare()
        stack = _here.__dict__.setdefault("stack", [])
        with _lock:
            known_as = _number(self.mode)
        number = loader.loaded().enter_queue(self.mode.limit, known_as)
        stack.append((number, self.mode))
        self._entered.append((stack, number))

    def __exit__(self, *raised: object) -> None:
        stack, number = self._entered.pop()
        stack.remove((number, self.mode))
        if ticket := loader.loaded().leave_queue(number):
            torch.ops.neuron_compiler.run_queue(ticket)


def eager_mode(
    mode: str, *, limit: int | None = None, options: Mapping[str, Any] | None = None
) -> AbstractContextManager[None]:
    """Context in which this thread's operators, and those of backward passes it starts, run in a mode."""
    return _Context(_mode(mode, limit, options))


def synchronize() -> None:
    """Run what waits, in all threads."""
    if not loader.loaded().queue_is_empty():
        torch.accelerator.synchronize()


def _number(mode: EagerMode) -> int:
    if mode not in _modes:
        _modes.append(mode)
    return _modes.index(mode)


# Which operators wait ------------------------------------------------------------


def _prepare() -> None:
    """Tell the library which operators may wait, and who runs them."""
    global _ready
    with _lock:
        if _ready:
            return
        from neuron_compiler.eager_fallback import queued_ops

        shim = loader.loaded()
        shim.use()
        for name in shim.names():
            shim.set_queued(name, queued_ops.queues(name) | queued_ops.numbers(name))
        shim.set_runner(_run)
        shim.set_missed(_missed)
        _ready = True


def _missed(name: bytes) -> None:
    """Count an operator of mode ``compiled`` that ran by its kernel; must not raise, as C++ could not tell."""
    from neuron_compiler.eager_fallback import queued_ops

    op = name.decode()
    if op not in queued_ops.NOTHING_TO_COMPILE:
        LEDGER.record(Entry("fallback", op, "eager mode 'compiled' has no program for this call", op_ledger.site()))


# Running ------------------------------------------------------------

_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (IndexError, 2),
    (NotImplementedError, 4),
    (ValueError, 3),
    (TypeError, 5),
    (torch.linalg.LinAlgError, 6),
)


def _run(ticket: int, mode: int, message: int, size: int) -> int:
    """What the library calls, from any thread, to have a ticket's operators run; returns what it is to raise."""
    try:
        # Another thread may be running them: they are done when the lock is free.
        with _lock, torch.inference_mode(False), torch.no_grad(), _disable_current_modes(), _no_functions():
            try:
                text, inputs, outputs = torch.ops.neuron_compiler.take_queue(ticket)
                if text:
                    _execute(text, inputs, outputs, mode)
            finally:
                loader.loaded().close_queue(ticket)
    except KeyboardInterrupt:
        # C++ raises errors alone, so the interrupt comes again: when contexts have been left, which it would prevent.
        threading.Timer(INTERRUPT_AGAIN_AFTER, _thread.interrupt_main).start()
        return _say("interrupted; tensors that were waiting have no values", message, size, 1)
    except BaseException as error:
        code = next((code for kind, code in _CODES if isinstance(error, kind)), 1)
        logger.debug("queued operators failed", exc_info=True)
        return _say(str(error), message, size, code)
    return 0


def _no_functions() -> Any:
    return torch._C.DisableTorchFunction()


def _say(text: str, message: int, size: int, code: int) -> int:
    written = text.encode()[: size - 1]
    ctypes.memmove(message, written + b"\0", len(written) + 1)
    return code


def _execute(text: str, inputs: list[torch.Tensor], outputs: list[torch.Tensor], mode: int) -> None:
    global _last
    known = _find((mode, text), inputs)
    _last = known.program
    with queued_program.default_dtype(known.program.default_dtype):
        results, error = _results(known, inputs)
    as_cpu = torch.ops.neuron_compiler.as_cpu.default
    for output, result in zip(outputs, results, strict=True):
        if result is not None:
            as_cpu(output).copy_(as_cpu(result))
    if error is not None:
        raise error


def _find(key: tuple[int, str], inputs: list[torch.Tensor]) -> _Known:
    """The program of a mode's number and a text, compiled if it has come before."""
    if (found := _compiled_programs.get(key)) is not None:
        _compiled_programs.move_to_end(key)
        return found
    mode, text = _modes[key[0]], key[1]
    before = _once.pop(key, None)
    found = before or _Known(queued_program.parse(text))
    kept, most = _once, ONCE_KEPT
    if before is not None or mode.compiles_at_once:
        with queued_program.default_dtype(found.program.default_dtype):
            found.compiled = _compiled(found.program, inputs, mode)
        kept, most = _compiled_programs, COMPILED_KEPT
    kept[key] = found
    if len(kept) > most:
        kept.popitem(last=False)
    return found


def _results(known: _Known, inputs: list[torch.Tensor]) -> tuple[Sequence[torch.Tensor | None], Exception | None]:
    """What the program gives; where an operator fails, what the others give, and the error."""
    if known.compiled is None:
        return known.program.as_far_as_possible(inputs)
    write_epochs = torch.ops.neuron_compiler.write_epochs.default
    before = write_epochs(inputs)
    try:
        return known.compiled(*inputs), None
    except Exception as error:
        if write_epochs(inputs) != before:
            raise
        return known.program.as_far_as_possible(inputs)[0], error


def _compiled(program: queued_program.QueuedProgram, inputs: list[torch.Tensor], mode: EagerMode) -> Run:
    from neuron_compiler.capture.functions import compile_function

    try:
        return compile_function(program, inputs, mode.options)
    except UnsupportedOp:
        raise  # strict
    except Exception as error:
        logger.warning(
            "%d queued operators run one by one: compiling them raised %s: %s",
            len(program.calls),
            type(error).__name__,
            error,
        )
        return program


dynamo_frames.leave_alone([sys.modules[__name__]])
dynamo_frames.leave_all_alone(_prepare, _missed, _run, _Context.__enter__, _Context.__exit__)
