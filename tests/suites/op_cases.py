"""PyTorch's op database as cases: an op, a dtype, and a phase (forward, gradient, in place); its samples and limits."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import observed
import torch
from torch.testing._comparison import get_tolerances
from torch.testing._internal.common_device_type import toleranceOverride
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

SAMPLED = (torch.float32, torch.int64, torch.bfloat16, torch.bool)
FURTHER = (torch.float64, torch.complex64)
FORWARD, GRADIENT, IN_PLACE = "forward", "gradient", "inplace"

SAMPLES = 2
"""Samples of a case, evenly from the first ``LOOK_AT`` that eager accepts; they are compiled as one function."""
LOOK_AT = 16

EXCLUDED = {
    "jiterator_unary": "compiles CUDA source when it is called",
    "jiterator_binary": "compiles CUDA source when it is called",
    "jiterator_binary_return_by_ref": "compiles CUDA source when it is called",
    "jiterator_2inputs_2outputs": "compiles CUDA source when it is called",
    "jiterator_4inputs_with_extra_args": "compiles CUDA source when it is called",
}
"""Ops without cases, and why."""

UNSPECIFIED = frozenset(
    (
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "resize_as_",
    )
)
"""Ops whose results hold whatever their memory held: only what is not an element is compared."""

ROUNDED_AFTER_DRAW = frozenset(("nn.functional.scaled_dot_product_attention", "pca_lowrank", "svd_lowrank"))
"""Ops that add up numbers which depend on a draw: near, but not equal to the bit."""

TIES_OPEN = frozenset(("argsort", "kthvalue", "msort", "sort", "topk"))
"""Ops whose positions of equal elements PyTorch leaves open: eager's depend on the processor. Samples have none."""

Refusal = (RuntimeError, ValueError, TypeError, AssertionError, NotImplementedError, IndexError)
"""What eager raises for a sample that is not meant for this dtype, form or device."""


@dataclass(frozen=True)
class Case:
    """One test: ``info`` is the op's record in the database."""

    info: Any
    dtype: torch.dtype
    phase: str

    def __str__(self) -> str:
        return f"{self.info.full_name}-{str(self.dtype).removeprefix('torch.')}-{self.phase}"

    @property
    def target(self) -> Callable[..., Any]:
        """What is called with a sample."""
        found: Callable[..., Any] = self.info.inplace_variant if self.phase == IN_PLACE else self.info.get_op()
        return found

    @property
    def draws_exactly(self) -> bool:
        """Whether a result that depends on a seed has to be equal to the bit."""
        return self.info.name not in ROUNDED_AFTER_DRAW

    def samples(self) -> list[Any]:
        """The samples that eager accepts; empty where the database has none."""
        torch.manual_seed(0)
        accepted: list[Any] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = self.info.sample_inputs("cpu", self.dtype, requires_grad=self.phase == GRADIENT)
            for sample in itertools.islice(made, LOOK_AT):
                if self._is_accepted(sample):
                    accepted.append(sample)
        return spread(accepted, SAMPLES)

    def _is_accepted(self, sample: Any) -> bool:
        if self.phase == IN_PLACE and (sample.broadcasts_input or not isinstance(sample.input, torch.Tensor)):
            return False
        if self.info.name in TIES_OPEN and sample.input.unique().numel() < sample.input.numel():
            return False
        try:
            self.observe(self.program(), [sample])
        except Refusal:
            return False
        return True

    def program(self) -> Callable[..., Any]:
        """The function that is compiled: the op, called with each sample."""
        target = self.target

        def run(*calls: Any) -> list[Any]:
            return [target(first, *args, **kwargs) for first, args, kwargs in calls]

        return run

    def observe(self, program: Callable[..., Any], samples: Sequence[Any], seed: int = 1) -> observed.Observed:
        """What the program, compiled or not, does with the samples."""

        def wanted_of(outputs: Any) -> list[Any]:
            return [sample.output_process_fn_grad(output) for sample, output in zip(samples, outputs, strict=True)]

        calls = [(sample.input, tuple(sample.args), dict(sample.kwargs)) for sample in samples]
        gradient = self.phase == GRADIENT
        return observed.observe(program, calls, gradients=gradient, wanted_of=wanted_of, seed=seed)

    def near(self, random: bool) -> observed.Near:
        """How near an element has to be; ``random`` results are equal to the bit."""
        if self.info.name.removeprefix("_").split(".")[-1] in UNSPECIFIED:
            return lambda name, got, want: ""
        exact = random and self.draws_exactly

        def near(name: str, got: torch.Tensor, want: torch.Tensor) -> str:
            rtol, atol = (0.0, 0.0) if exact else tolerance(self.info, want.dtype)
            try:
                torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True, check_stride=False)
            except AssertionError as error:
                return " ".join(str(error).split())
            return ""

        return near

    def no_further(self, near: observed.Near, program: Callable[..., Any], samples: Sequence[Any]) -> observed.Near:
        """``near``, or else an RMS distance from the answer in double precision of at most 1.1 times eager's."""
        try:
            exact = self.observe(program, [sample.transform(_in_double) for sample in samples])
        except Refusal:
            return near
        precise = {
            **{f"result {i}": x for i, x in enumerate(exact.results)},
            **{f"argument {i} after the call": x for i, x in enumerate(exact.arguments)},
            **{f"gradient {i}": x for i, x in enumerate(exact.gradients)},
        }

        def judged(name: str, got: torch.Tensor, want: torch.Tensor) -> str:
            wrong = near(name, got, want)
            return wrong if wrong and not _no_further(got, want, precise.get(name)) else ""

        return judged


def _in_double(x: Any) -> Any:
    if not isinstance(x, torch.Tensor) or not (x.is_floating_point() or x.is_complex()):
        return x
    wide = x.detach().to(torch.complex128 if x.is_complex() else torch.float64)
    return wide.requires_grad_(x.requires_grad)


AS_EXACT = 1.1
"""How far off a result may be, of what eager's is off, whose distance is that of one way of rounding among others."""


def _no_further(got: torch.Tensor, want: torch.Tensor, exact: Any) -> bool:
    if not isinstance(exact, torch.Tensor) or exact.shape != want.shape:
        return False
    if not (want.is_floating_point() or want.is_complex()) or exact.dtype not in (torch.float64, torch.complex128):
        return False
    finite = torch.isfinite(want)
    if not torch.equal(torch.isfinite(got), finite) or not torch.equal(torch.isfinite(exact), finite):
        return False
    ours, theirs = ((x.to(exact.dtype) - exact.detach())[finite].abs().square().mean() for x in (got, want))
    return bool(ours <= theirs * AS_EXACT**2)


def described(sample: Any) -> str:
    """A sample by the shapes of its tensors and its other values."""

    def show(x: Any) -> Any:
        return f"{str(x.dtype)[6:]}{list(x.shape)}" if isinstance(x, torch.Tensor) else x

    return f"sample: {pytree.tree_map(show, (sample.input, tuple(sample.args), dict(sample.kwargs)))}"


def tolerance(info: Any, dtype: torch.dtype) -> tuple[float, float]:
    """Relative and absolute: the defaults of ``assert_close``, or more where the op's record says so for the CPU."""
    rtol, atol = get_tolerances(torch.empty(0, dtype=dtype), rtol=None, atol=None)
    for decorator in info.decorators or ():
        if getattr(decorator, "device_type", None) not in (None, "cpu"):
            continue
        for inner in getattr(decorator, "decorators", [decorator]):
            if isinstance(inner, toleranceOverride) and dtype in inner.d:
                rtol, atol = max(rtol, inner.d[dtype].rtol), max(atol, inner.d[dtype].atol)
    return rtol, atol


def spread(items: Sequence[Any], count: int) -> list[Any]:
    """``count`` of the items, evenly from the first to the last."""
    if len(items) <= count:
        return list(items)
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


@cache
def cases(dtypes: tuple[torch.dtype, ...]) -> list[Case]:
    """Every case of the database in these dtypes."""
    found: list[Case] = []
    for info in op_db:
        if info.name in EXCLUDED:
            continue
        for dtype in dtypes:
            if dtype not in info.supported_dtypes("cpu"):
                continue
            found.append(Case(info, dtype, FORWARD))
            if info.inplace_variant is not None:
                found.append(Case(info, dtype, IN_PLACE))
            floating = dtype.is_floating_point or dtype.is_complex
            if floating and info.supports_autograd and dtype in info.supported_backward_dtypes("cpu"):
                found.append(Case(info, dtype, GRADIENT))
    return found
