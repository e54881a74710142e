"""Run-time checks inside rules: XLA clamps a bad index silently, PyTorch raises.

A rule calls ``require(ok, message, error)`` while it is traced. The emitter installs a collector around each group,
returns what was collected from the executable as one error word, and the runtime raises the first that failed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import jax
import jax.numpy as jnp


@dataclass(frozen=True)
class Check:
    """A condition that a run must meet: ``ok`` is a traced 0-dim bool, ``message`` what to say where it is False."""

    ok: jax.Array
    message: str
    error: type[Exception]


_collector: ContextVar[list[Check] | None] = ContextVar("neuron_compiler_checks", default=None)


@contextmanager
def collecting() -> Iterator[list[Check]]:
    """Collect the checks required inside the block."""
    found: list[Check] = []
    token = _collector.set(found)
    try:
        yield found
    finally:
        _collector.reset(token)


def require(ok: jax.Array, message: str, error: type[Exception] = IndexError) -> None:
    """Raise ``error(message)`` after the run unless every element of ``ok`` is True. No-op outside a collector."""
    collector = _collector.get()
    if collector is not None:
        collector.append(Check(jnp.all(ok), message, error))
