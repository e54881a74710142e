"""PyTorch's op database on the device, beside the CPU: an op in one dtype, called in one form, and what came of it.

In: a record of the database. Out: an ``Outcome``, or None where the CPU takes no sample in that form. Both sides start
from the same seed and run the same kernels, so random results are compared like all others.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import observed
import op_cases
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import noncontiguous_like
from torch.utils import _pytree as pytree

DEVICE = "neuron"

FORWARD, GRADIENT, STRIDED, IN_PLACE, OUT, ERRORS = "forward", "gradient", "strided", "in place", "out=", "errors"
FORMS = (FORWARD, GRADIENT, STRIDED, IN_PLACE, OUT, ERRORS)

SAMPLES = {FORWARD: 12, GRADIENT: 6, STRIDED: 3, IN_PLACE: 3, OUT: 3, ERRORS: 12}
"""Samples of a case, evenly from all that the CPU takes in that form."""
LOOK_AT = 400

ON_CPU = frozenset(("tensor_split",))
"""Ops that want some of their tensors on the CPU, whatever the device."""

RIGHT, VALUES, SHAPE, RAISES, SILENT = "equal", "other values", "other shape or memory", "raises", "does not raise"


@dataclass(frozen=True)
class Outcome:
    """What a case did on the device; ``detail`` says more where it is not right."""

    kind: str
    detail: str = ""


@cache
def records() -> dict[str, Any]:
    """The database, by full name."""
    return {info.full_name: info for info in op_db if info.name not in op_cases.EXCLUDED}


def forms(info: Any, dtype: torch.dtype) -> list[str]:
    """The forms in which the CPU can be called in this dtype."""
    if dtype not in info.supported_dtypes("cpu"):
        return []
    differentiable = info.supports_autograd and dtype in info.supported_backward_dtypes("cpu")
    possible = {
        FORWARD: True,
        GRADIENT: differentiable and (dtype.is_floating_point or dtype.is_complex),
        STRIDED: True,
        IN_PLACE: info.inplace_variant is not None,
        OUT: info.supports_out,
        ERRORS: info.error_inputs_func is not None,
    }
    return [form for form in FORMS if possible[form]]


def judge(info: Any, dtype: torch.dtype, form: str) -> Outcome | None:
    """What an op does on the device in one dtype and form; None where nothing can be said."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcomes = _errors(info.full_name) if form == ERRORS else _samples(info, dtype, form)
    return next((outcome for outcome in outcomes if outcome.kind != RIGHT), outcomes[0] if outcomes else None)


# Errors ------------------------------------------------------------------------------------------------------------


@cache
def _errors(name: str) -> list[Outcome]:
    """Of wrong calls, which do not depend on the dtype."""
    info = records()[name]
    pairs = zip(info.error_inputs(DEVICE), info.error_inputs("cpu"), strict=False)
    found = (_error(info, here, there) for there, here in itertools.islice(pairs, SAMPLES[ERRORS]))
    return [outcome for outcome in found if outcome is not None]


def _error(info: Any, here: Any, there: Any) -> Outcome | None:
    if not isinstance(_raised(info, here.sample_input), here.error_type):
        return None  # meant for another form of the op
    error = _raised(info, there.sample_input)
    if error is None:
        return Outcome(SILENT, f"no {there.error_type.__name__}")
    if not isinstance(error, there.error_type):
        return Outcome(RAISES, f"not {there.error_type.__name__} but {_line(error)}")
    return Outcome(RIGHT)


def _raised(info: Any, sample: Any) -> Exception | None:
    try:
        info(sample.input, *sample.args, **sample.kwargs)
    except Exception as error:
        return error
    return None


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"


# Values ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """What a call did; ``arguments`` are those tensors after the call."""

    results: Any
    arguments: list[torch.Tensor]
    gradients: list[torch.Tensor | None]
    sharing: list[tuple[str, int] | None]


def _samples(info: Any, dtype: torch.dtype, form: str) -> list[Outcome]:
    torch.manual_seed(0)
    made = info.sample_inputs("cpu", dtype, requires_grad=form == GRADIENT)
    samples = [sample for sample in itertools.islice(made, LOOK_AT) if _fits(sample, form)]
    found = (_sample(info, dtype, form, sample) for sample in op_cases.spread(samples, SAMPLES[form]))
    return [outcome for outcome in found if outcome is not None]


def _fits(sample: Any, form: str) -> bool:
    return form != IN_PLACE or (isinstance(sample.input, torch.Tensor) and not sample.broadcasts_input)


def _sample(info: Any, dtype: torch.dtype, form: str, sample: Any) -> Outcome | None:
    if not any(_is_placed(x) for x in pytree.tree_leaves((sample.input, tuple(sample.args), dict(sample.kwargs)))):
        return None  # a new tensor, of no device in particular
    try:
        want = _call(info, form, sample, "cpu")
    except op_cases.Refusal:
        return None
    if form == OUT and not _same_values(want.results, _call(info, FORWARD, sample, "cpu").results):
        return None  # the CPU itself leaves something else there, or nothing: fft.ihfft2
    try:
        got = _call(info, form, sample, DEVICE)
    except Exception as error:
        return Outcome(RAISES, _line(error))
    rtol, atol = op_cases.tolerance(info, dtype)
    values = info.name.removeprefix("_").split(".")[-1] not in op_cases.UNSPECIFIED
    return _compare(got, want, (rtol, atol) if values else None)


def _same_values(some: Any, others: Any) -> bool:
    ours, theirs = pytree.tree_leaves(some), pytree.tree_leaves(others)
    return len(ours) == len(theirs) and all(
        torch.allclose(a.to_dense(), b.to_dense(), equal_nan=True)
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
        else a is b
        for a, b in zip(ours, theirs, strict=True)
    )


def _call(info: Any, form: str, sample: Any, device: str) -> Seen:
    first, args, kwargs = _moved(sample, device, keep=info.name in ON_CPU, strided=form == STRIDED)
    given = observed.tensors((first, args, kwargs))
    target: Callable[..., Any] = info.inplace_variant if form == IN_PLACE else info.get_op()
    if form == OUT:
        kwargs["out"] = _places(target, sample, device)
        given += observed.tensors(kwargs["out"])
    torch.manual_seed(1)
    with torch.set_grad_enabled(form == GRADIENT):
        results = target(first, *args, **kwargs)
    gradients: list[torch.Tensor | None] = []
    if form == GRADIENT:
        roots = observed.differentiable(sample.output_process_fn_grad(results))
        factors = [factor.to(device) for factor in observed.cotangents(roots)]
        leaves = observed.leaves((first, args, kwargs))
        gradients = list(torch.autograd.grad(roots, leaves, factors, allow_unused=True)) if roots and leaves else []
    return Seen(results, given, gradients, observed.sharing(observed.tensors(results), given))


def raises(info: Any, dtype: torch.dtype) -> bool:
    """Whether the device refuses one of an op's first samples in a dtype."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in itertools.islice(info.sample_inputs("cpu", dtype), SAMPLES[FORWARD]):
            try:
                _call(info, FORWARD, sample, DEVICE)
            except Exception:
                return True
    return False


def _is_placed(x: Any) -> bool:
    return isinstance(x, torch.Tensor) or (isinstance(x, torch.device | str) and str(x) in ("cpu", "cpu:0"))


def _moved(sample: Any, device: str, keep: bool, strided: bool) -> tuple[Any, Any, Any]:
    """Input, arguments and keywords with fresh leaves on a device; what was one tensor stays one."""
    made: dict[int, torch.Tensor] = {}

    def move(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            if id(x) not in made:
                copy = x.detach().clone().to(device)
                if strided and x.layout is torch.strided and x.numel() > 1:
                    copy = noncontiguous_like(copy)
                made[id(x)] = copy.requires_grad_(x.requires_grad)
            return made[id(x)]
        return torch.device(device) if _is_placed(x) else x

    args = tuple(sample.args)
    moved = pytree.tree_map(move, (sample.input, () if keep else args, dict(sample.kwargs)))
    return moved[0], args if keep else moved[1], moved[2]


def _places(target: Callable[..., Any], sample: Any, device: str) -> Any:
    """Where ``out=`` may write: tensors like the results, of undefined values."""
    first, args, kwargs = _moved(sample, "cpu", keep=False, strided=False)
    results = target(first, *args, **kwargs)
    leaves = pytree.tree_leaves(results)
    if not all(isinstance(x, torch.Tensor) and x.layout is torch.strided for x in leaves):
        raise TypeError("results without a place to write them to")
    places = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device) for x in leaves]
    return places[0] if isinstance(results, torch.Tensor) else tuple(places)


def _compare(got: Seen, want: Seen, near: tuple[float, float] | None) -> Outcome:
    ours, theirs = pytree.tree_leaves(got.results), pytree.tree_leaves(want.results)
    if len(ours) != len(theirs) or len(got.gradients) != len(want.gradients):
        return Outcome(SHAPE, f"{len(ours)} results instead of {len(theirs)}")
    if got.sharing != want.sharing:
        return Outcome(SHAPE, f"memory shared with {got.sharing} instead of {want.sharing}")
    named = [
        *((f"result {i}", *pair) for i, pair in enumerate(zip(ours, theirs, strict=True))),
        *((f"gradient {i}", *pair) for i, pair in enumerate(zip(got.gradients, want.gradients, strict=True))),
        *((f"argument {i}", *pair) for i, pair in enumerate(zip(got.arguments, want.arguments, strict=True))),
    ]
    found = (_compare_leaves(name, a, b, near) for name, a, b in named)
    return next((outcome for outcome in found if outcome.kind != RIGHT), Outcome(RIGHT))


def _compare_leaves(name: str, got: Any, want: Any, near: tuple[float, float] | None) -> Outcome:
    if type(got) is not type(want):
        return Outcome(SHAPE, f"{name}: {type(got).__name__} instead of {type(want).__name__}")
    if not isinstance(want, torch.Tensor):
        same = got == want or got != got
        return Outcome(RIGHT) if same or near is None else Outcome(VALUES, f"{name}: {got!r} instead of {want!r}")
    if got.device.type != DEVICE and not (name.startswith("argument") and got.device == want.device):
        return Outcome(SHAPE, f"{name}: on {got.device}")
    for what in ("dtype", "layout", "shape"):
        if getattr(got, what) != getattr(want, what):
            return Outcome(SHAPE, f"{name}: {what} {getattr(got, what)} instead of {getattr(want, what)}")
    if want.layout is torch.strided and want.numel() and _steps(got) != _steps(want):
        return Outcome(SHAPE, f"{name}: strides {got.stride()} instead of {want.stride()}")
    if near is None:
        return Outcome(RIGHT)
    try:
        torch.testing.assert_close(
            got.detach().cpu(), want.detach(), rtol=near[0], atol=near[1], equal_nan=True, check_stride=False
        )
    except AssertionError as error:
        return Outcome(VALUES, f"{name}: {' '.join(str(error).split())[:200]}")
    return Outcome(RIGHT)


def _steps(x: torch.Tensor) -> list[int]:
    return [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1]


def cases(names: Sequence[str], dtypes: Sequence[torch.dtype]) -> list[tuple[str, torch.dtype, str]]:
    """Every op, dtype and form of these."""
    return [(name, dtype, form) for name in names for dtype in dtypes for form in forms(records()[name], dtype)]
