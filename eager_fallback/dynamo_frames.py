"""Keeps Dynamo from compiling this package's own functions as if they were the user's.

In: modules. Out: marks on their functions' code. PyTorch leaves its own device modules (``torch.cuda``) alone by their
file names; without a mark ours would be traced after a graph break, where ``set_rng_state`` and its like cannot be.
Functions that a traced program calls are still traced into.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator

from torch._C._dynamo import eval_frame


def leave_alone(modules: Iterable[types.ModuleType]) -> None:
    """Mark every function and method that the modules define."""
    for module in modules:
        _mark(_codes(vars(module).values(), module.__name__), "DEFAULT")


def leave_all_alone(*functions: types.FunctionType) -> None:
    """Mark functions with all that they call: those that C++ calls, in the middle of the user's program."""
    _mark((function.__code__ for function in functions), "SKIP")


def _mark(codes: Iterable[types.CodeType], what_they_call: str) -> None:
    # Private, and in C, so that `import torch` need not load Dynamo; where it has moved, frames are traced as others'.
    mark = getattr(eval_frame, "set_code_exec_strategy", None)
    action = getattr(eval_frame, "_FrameAction", None)
    strategy = getattr(eval_frame, "_FrameExecStrategy", None)
    if mark is None or action is None or strategy is None:
        return
    skipped = strategy(action.SKIP, getattr(action, what_they_call))
    for code in codes:
        mark(code, skipped)


def _codes(values: Iterable[object], module: str) -> Iterator[types.CodeType]:
    for value in values:
        if getattr(value, "__module__", None) != module:
            continue
        if isinstance(value, type):
            members = [getattr(m, "__func__", getattr(m, "fget", m)) for m in vars(value).values()]
            yield from _codes((m for m in members if isinstance(m, types.FunctionType)), module)
        elif isinstance(found := getattr(value, "__wrapped__", value), types.FunctionType):
            yield from _code_of(found.__code__)
            if found is not value and isinstance(value, types.FunctionType):
                yield from _code_of(value.__code__)


def _code_of(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function and of those inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code_of(constant)
