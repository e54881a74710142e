"""The systems that are compared: eager PyTorch, this compiler, Inductor. One example, ready to be called by each.

In: an Example. Out: a ``Prepared`` per system: a function that runs one call or training step, and the seconds of the
first. Invariant: what cannot run says why, and the others go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from neuron_compiler import compile as driver
from neuron_compiler.capture import neuron
from neuron_compiler.compile import Compilation
from neuron_compiler.ledger import LEDGER
from neuron_compiler.models.example import Example

EAGER, NEURON, INDUCTOR = "eager", "neuron", "inductor"
SYSTEMS = (EAGER, INDUCTOR, NEURON)

Call = Callable[[], list[torch.Tensor]]


@dataclass(frozen=True)
class Prepared:
    """One system with one example.

    Attributes:
        system: its name.
        call: runs once, gives the results: the model's tensors or, in training, loss and gradients; None if it cannot.
        first_call_seconds: wall seconds of the first call, compiling included.
        results: of the first call.
        absent: why it cannot run.
        compilations: what this compiler made of each graph.
        fallbacks: ops that ran eagerly in the first call; 0 where there is nothing to fall back from.
    """

    system: str
    call: Call | None = None
    first_call_seconds: float = 0.0
    results: tuple[torch.Tensor, ...] = ()
    absent: str = ""
    compilations: tuple[Compilation, ...] = ()
    fallbacks: int = 0


def prepare(
    system: str, example: Example, *, train: bool = False, options: Mapping[str, Any] | None = None
) -> Prepared:
    """Compile the example's module with one system and make its first call.

    Args:
        system: one of ``SYSTEMS``.
        example: what to run; its module is used as it is.
        train: forward and backward, instead of forward without gradients.
        options: of this compiler.
    """
    if system == INDUCTOR and (reason := why_no_inductor()):
        return Prepared(system, absent=reason)
    before = LEDGER.total("fallback")
    cold = _cold_inductor() if system == INDUCTOR else nullcontext()
    with cold, driver.recording() as compilations:
        started = time.perf_counter()
        try:
            call = _call(example, _compiled(system, example.module, options), train)
            results = tuple(call())
        except Exception as error:
            if system != INDUCTOR:
                raise
            # Of somebody else's compiler only the column is at stake: a missing header, a broken C++ compiler.
            return Prepared(system, absent=_first_line(error))
        seconds = time.perf_counter() - started
    own = system == NEURON
    return Prepared(
        system,
        call,
        seconds,
        results,
        compilations=tuple(compilations) if own else (),
        fallbacks=LEDGER.total("fallback") - before if own else 0,
    )


def _compiled(system: str, module: torch.nn.Module, options: Mapping[str, Any] | None) -> Any:
    if system == EAGER:
        return module
    if system == NEURON:
        return torch.compile(module, backend=neuron, fullgraph=True, options=dict(options or {}))
    return torch.compile(module, backend="inductor", fullgraph=True)


def _call(example: Example, module: Any, train: bool) -> Call:
    if train:
        return lambda: _step(example, module)

    def forward() -> list[torch.Tensor]:
        with torch.no_grad():
            return example.call(module)

    return forward


def _step(example: Example, module: Any) -> list[torch.Tensor]:
    """Loss and gradients of one forward and backward: the loss is the mean square of the results."""
    example.module.zero_grad(set_to_none=True)
    loss = mean_square(example.call(module))
    loss.backward()
    gradients = [p.grad for p in example.module.parameters() if p.grad is not None]
    return [loss.detach(), *gradients]


def mean_square(results: Sequence[torch.Tensor]) -> torch.Tensor:
    """A loss that every floating-point result takes part in, in float32."""
    return torch.stack([r.float().square().mean() for r in results if r.is_floating_point()]).sum()


def why_no_inductor() -> str:
    """Why Inductor cannot compile here; empty if it can as far as is known."""
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        get_cpp_compiler()
    except Exception as error:
        return f"no C++ compiler: {_first_line(error)}"
    return ""


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip().splitlines()[0]


@contextmanager
def _cold_inductor() -> Iterator[None]:
    """First calls are compiles: without what an earlier process left in Inductor's caches."""
    from torch._inductor.utils import fresh_cache

    with fresh_cache():
        yield


def warm_up(systems: Sequence[str]) -> None:
    """Load what each system loads once per process, so that the first model does not pay for all."""
    probe = Example(torch.nn.Linear(2, 2).eval(), (torch.zeros(1, 2),))
    for system in systems:
        prepare(system, probe)
