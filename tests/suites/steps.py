"""A module compiled and compared: one forward call, and one step of training."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import observed
import torch
from torch import nn

from neuron_compiler.measure.difference import difference, size

GRADIENT_FACTOR = 5
"""How many times the limit of a result the error of a gradient may be: it went through twice as many sums."""

GRADIENT_FLOOR = 1e-2
"""Share of the largest gradient's size that the error of any gradient is measured by, at least: others are noise."""


@dataclass(frozen=True)
class Specimen:
    """A module and the arguments of one call of it; ``limit`` is the largest relative RMS error of a result."""

    module: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    limit: float = 1e-3
    note: str = ""

    def observe(self, module: Any) -> observed.Observed:
        """One call of the module, or another in its place, without gradients."""
        return observed.observe(lambda args, kwargs: module(*args, **kwargs), (self.args, dict(self.kwargs)))


def compiled(module: nn.Module) -> Any:
    """The module as a user compiles it."""
    return torch.compile(module, backend="neuron")


def within(limit: float, floor: float = 0.0) -> observed.Near:
    """Whether a tensor is as near as a relative RMS error of ``limit``; integers have to be equal."""

    def near(name: str, got: torch.Tensor, want: torch.Tensor) -> str:
        if want.layout is not torch.strided:
            got, want = got.to_dense(), want.to_dense()
        found = difference([got], [want])
        if found.fault:
            return found.fault.partition(": ")[2]
        if found.rms <= limit or _apart(got, want) <= limit * floor:
            return ""
        return f"relative RMS error {found.rms:.2e}, largest difference {found.largest:.2e}, limit {limit:g}"

    return near


def _apart(got: torch.Tensor, want: torch.Tensor) -> float:
    """Root of the mean squared difference, over what is finite."""
    wide = torch.complex128 if want.is_complex() else torch.float64
    return float((got.to(wide) - want.to(wide))[torch.isfinite(want)].abs().square().mean().sqrt())


def assert_forward(specimen: Specimen) -> None:
    """Compiled, the module in evaluation mode returns what it returns eagerly, and leaves the same buffers behind."""
    ours, theirs = copy.deepcopy(specimen.module).eval(), copy.deepcopy(specimen.module).eval()
    want = specimen.observe(theirs)
    got = specimen.observe(compiled(ours))
    wrong = observed.faults(got, want, within(specimen.limit, _least(want.results)))
    assert not wrong, _report(specimen, wrong)
    _assert_equal_state(specimen, ours, theirs)


def assert_training(specimen: Specimen, prepare: Callable[[nn.Module], None] = lambda module: None) -> None:
    """Compiled, one step of SGD in training mode has eager's results, gradients, parameters and buffers.

    Random numbers are eager's, so dropout stays on.
    """
    ours, theirs = copy.deepcopy(specimen.module).train(), copy.deepcopy(specimen.module).train()
    for module in (ours, theirs):
        prepare(module)
    want = _step(specimen, theirs, theirs)
    assert any(g is not None for g in want.gradients), "eager finds no gradient: this trains nothing"
    got = _step(specimen, ours, compiled(ours))
    gradients = [g for g in want.gradients if g is not None]
    floor = GRADIENT_FLOOR * max(map(size, gradients), default=0.0)
    for_results = within(specimen.limit, _least(want.results))
    for_gradients = within(GRADIENT_FACTOR * specimen.limit, floor)

    def near(name: str, a: torch.Tensor, b: torch.Tensor) -> str:
        return (for_gradients if name.startswith("gradient") else for_results)(name, a, b)

    wrong = observed.faults(got, want, near)
    assert not wrong, _report(specimen, wrong)
    _assert_equal_state(specimen, ours, theirs)


def _step(specimen: Specimen, owner: nn.Module, module: Any) -> observed.Observed:
    """One call, its gradients for parameters and arguments, and a step of SGD on the owner's parameters."""
    optimizer = torch.optim.SGD([p for p in owner.parameters() if p.requires_grad] or [torch.zeros(1)], lr=0.01)
    args, kwargs = observed.copies((specimen.args, dict(specimen.kwargs)))
    for x in observed.tensors((args, kwargs)):
        if x.is_floating_point() and x.is_leaf:
            x.requires_grad_()
    # An argument that asks for gradients may not be written in place.
    call_args, call_kwargs = observed.pytree.tree_map(
        lambda x: x * 1 if isinstance(x, torch.Tensor) and x.requires_grad else x, (args, kwargs)
    )
    torch.manual_seed(1)
    outputs = module(*call_args, **call_kwargs)
    results, structure = observed.pytree.tree_flatten(outputs)
    given = observed.tensors((call_args, call_kwargs))
    shared = observed.sharing([x for x in results if isinstance(x, torch.Tensor)], given)
    roots = observed.differentiable(outputs)
    torch.autograd.backward(roots, observed.cotangents(roots))
    gradients = [p.grad for p in (*owner.parameters(), *observed.tensors((args, kwargs)))]
    optimizer.step()
    return observed.Observed(results, structure, gradients, given, shared)


def _assert_equal_state(specimen: Specimen, ours: nn.Module, theirs: nn.Module) -> None:
    near = within(specimen.limit, _least(list(theirs.state_dict().values())))
    wanted = {**dict(theirs.named_parameters()), **dict(theirs.named_buffers())}
    found = {**dict(ours.named_parameters()), **dict(ours.named_buffers())}
    assert list(found) == list(wanted)
    wrong = {n: w for n, b in wanted.items() if (w := near(n, found[n].detach(), b.detach()))}
    assert not wrong, _report(specimen, [f"{name} afterwards: {text}" for name, text in wrong.items()])


def _least(values: Sequence[Any]) -> float:
    """The size below which a tensor beside these is rounding: a thousandth of the largest."""
    return 1e-3 * max((size(x) for x in values if isinstance(x, torch.Tensor)), default=0.0)


def _report(specimen: Specimen, wrong: Sequence[str]) -> str:
    return "\n".join([f"{type(specimen.module).__name__} {specimen.note}".strip(), *wrong[:12]])
