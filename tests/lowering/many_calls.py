"""Calls collected over a test and checked together at its end, and what run-time checks say of one."""

from __future__ import annotations

from typing import Any

import jax
from against_aten import Call, call, check, to_array

from neuron_compiler.lowering import checks, emit


class Batch:
    """Called as ``against_aten.call`` is; compares all calls with ATen when the block ends."""

    def __init__(self, *, rtol: float | None = None, atol: float | None = None) -> None:
        self.calls: list[Call] = []
        self.tolerance = {"rtol": rtol, "atol": atol}

    def __call__(self, overload: Any, *args: Any, **kwargs: Any) -> None:
        self.calls.append(call(overload, *args, **kwargs))

    def __enter__(self) -> Batch:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            check(*self.calls, **self.tolerance)


def failures(overload: Any, *args: Any, **kwargs: Any) -> list[tuple[type[Exception], str]]:
    """Error type and message of each run-time check of one call that fails, in program order."""
    op, tensors = call(overload, *args, **kwargs).as_op()
    found: list[checks.Check] = []

    def traced(env: dict[str, Any]) -> list[jax.Array]:
        with checks.collecting() as required:
            emit.apply(op, env)
        found[:] = required
        return [check.ok for check in required]

    with emit.tracing_scope():
        oks = jax.jit(traced)({name: to_array(tensor) for name, tensor in tensors.items()})
    return [(check.error, check.message) for check, ok in zip(found, oks, strict=True) if not bool(ok)]
