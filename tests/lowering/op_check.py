"""Run one recorded call through our rule on XLA and hold it to ATen's answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import factor_meaning
import jax
import numpy as np
import torch
from against_aten import COMPILER_OPTIONS
from op_samples import Sample
from torch.utils._pytree import tree_map

from neuron_compiler import dtypes
from neuron_compiler.ir.graph import Op, Operand, TupleType, Type, Value
from neuron_compiler.lowering import emit
from neuron_compiler.opdef import REGISTRY, Call, Registry

DROPPED = ("device", "layout", "pin_memory", "memory_format", "non_blocking", "requires_grad")
# ATen's own double precision has some seven digits here; PyTorch's tests allow it this.
ATEN_OFF = {
    f"aten.special_{name}.default": 1e-5 for name in ("bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "airy_ai")
}
UNSPECIFIED = ("aten.empty", "aten.new_empty", "aten._efficientzerotensor")


def as_op(sample: Sample) -> tuple[Op, dict[str, torch.Tensor]]:
    """The call as the capture would write it, and the tensors it reads by name."""
    tensors: dict[str, torch.Tensor] = {}

    def operand(x: Any, declared: str) -> Operand:
        if isinstance(x, torch.Tensor):
            name = f"x{len(tensors)}"
            tensors[name] = x
            return Value(name)
        if isinstance(x, torch.dtype):
            return dtypes.from_torch(x)
        if isinstance(x, list | tuple):
            return tuple(operand(item, declared) for item in x)
        return x

    schema = sample.overload._schema.arguments
    given = dict(sample.kwargs)
    positional: list[Operand] = []
    for index, argument in enumerate(a for a in schema if not a.kwarg_only):
        if index < len(sample.args):
            positional.append(operand(sample.args[index], str(argument.type)))
        elif argument.name in given:
            positional.append(operand(given.pop(argument.name), str(argument.type)))
        elif any(a.name in given for a in schema if not a.kwarg_only):
            positional.append(operand(argument.default_value, str(argument.type)))
    attrs = tuple(sorted((k, operand(v, "")) for k, v in given.items() if k not in DROPPED and v is not None))
    return Op("result", str(sample.overload), tuple(positional), type_of(sample.result), attrs), tensors


def type_of(result: Any) -> Type:
    if isinstance(result, list | tuple):
        return TupleType(tuple(None if r is None else dtypes.type_of(r) for r in result))
    return dtypes.type_of(result)


def to_array(x: torch.Tensor) -> np.ndarray[Any, Any]:
    """The elements of a tensor, row-major, whatever its memory; bf16 and fp8 by their bits."""
    x = x.detach().resolve_conj().resolve_neg().contiguous()
    dtype = dtypes.to_numpy(dtypes.from_torch(x.dtype))
    if dtype.kind == "V" or dtype.name.startswith(("bfloat", "float8")):
        bits = {1: torch.uint8, 2: torch.int16}[x.element_size()]
        return x.view(bits).numpy().view(dtype) if x.ndim else x.reshape(1).view(bits).numpy().view(dtype).reshape(())
    return x.numpy()


def to_tensor(x: Any) -> torch.Tensor:
    array = np.array(x, copy=True)
    dtype = dtypes.to_torch(dtypes.from_numpy(array.dtype))
    if dtype in (torch.bfloat16, *FP8):
        bits = {1: np.uint8, 2: np.int16}[array.dtype.itemsize]
        return torch.from_numpy(array.reshape(-1).view(bits)).view(dtype).reshape(array.shape)
    return torch.from_numpy(array)


FP8 = (
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
)


def why_skipped(sample: Sample, registry: Registry = REGISTRY) -> str | None:
    """Reason that the rule itself gives for not supporting this call."""
    op, tensors = as_op(sample)
    record = registry[op.kind]
    if record.when is None:
        return None
    return record.when(Call(op, {name: dtypes.type_of(t) for name, t in tensors.items()}))


def evaluate(samples: Sequence[Sample], registry: Registry = REGISTRY) -> list[Any]:
    """Our rule's answers as tensors, computed by XLA from one jitted function: compiling once is most of the time."""
    ops, tensors = zip(*map(as_op, samples), strict=True)

    def function(environments: tuple[dict[str, jax.Array], ...]) -> list[Any]:
        return [emit.apply(op, env, registry) for op, env in zip(ops, environments, strict=True)]

    arrays = tuple({name: to_array(t) for name, t in named.items()} for named in tensors)
    with emit.tracing_scope():
        return [
            tuple(None if r is None else to_tensor(r) for r in result)
            if isinstance(result, list | tuple)
            else to_tensor(result)
            for result in jax.jit(function, compiler_options=COMPILER_OPTIONS)(arrays)
        ]


def check(samples: Sequence[Sample], registry: Registry = REGISTRY, *, zeros: bool = False) -> None:
    """Raise AssertionError where one of our answers is not ATen's: type always, value unless ATen leaves it open.

    ``zeros`` asks for the same sign of zero, too.
    """
    for sample, got in zip(samples, evaluate(samples, registry), strict=True):
        _check(sample, got, zeros)


def _check(sample: Sample, got: Any, zeros: bool) -> None:
    if str(sample.overload).startswith(UNSPECIFIED):
        return  # the emitter has compared the type
    wanted = list(sample.result) if isinstance(sample.result, list | tuple) else [sample.result]
    answers = list(got) if isinstance(got, list | tuple) else [got]
    meaning = factor_meaning.MEANING.get(str(sample.overload), lambda *parts: list(parts))
    wanted, answers = meaning(*wanted), meaning(*answers)
    precise: list[torch.Tensor] | None = None
    for index, (mine, theirs) in enumerate(zip(answers, wanted, strict=False)):
        if theirs is None:
            continue
        theirs = theirs.resolve_conj().resolve_neg()
        try:
            _compare(mine, theirs, zeros, ATEN_OFF.get(str(sample.overload)))
        except AssertionError as error:
            if precise is None and (wide := _in_double(sample)) is not None:
                precise = meaning(*wide)
            if precise is None or not _as_near(mine, theirs, precise[index]):
                raise AssertionError(f"{sample}\n{error}\nATen: {_short(theirs)}\nours: {_short(mine)}") from None


def _compare(mine: torch.Tensor, theirs: torch.Tensor, zeros: bool, off: float | None = None) -> None:
    if theirs.dtype in FP8:
        mine, theirs = mine.to(torch.float32), theirs.to(torch.float32)
    torch.testing.assert_close(mine, theirs, rtol=off, atol=off, equal_nan=True)
    if zeros and theirs.is_floating_point():
        differ = (theirs == 0) & (mine == 0) & (torch.signbit(mine) != torch.signbit(theirs))
        if differ.any():
            raise AssertionError(f"other sign of zero at {differ.nonzero().flatten().tolist()[:8]}")


def _in_double(sample: Sample) -> list[torch.Tensor] | None:
    """ATen's answer from the same elements in double precision; None where it cannot say."""

    def wide(x: Any) -> Any:
        if isinstance(x, torch.dtype) and x.is_floating_point:
            return torch.float64
        if not isinstance(x, torch.Tensor) or not (x.is_floating_point() or x.is_complex()):
            return x
        return x.to(torch.complex128 if x.is_complex() else torch.float64)

    kwargs = {k: v for k, v in sample.kwargs.items() if k != "input_stride"}
    try:
        result = sample.overload(*tree_map(wide, sample.args), **tree_map(wide, kwargs))
    except RuntimeError:
        return None
    return list(result) if isinstance(result, list | tuple) else [result]


def _as_near(mine: torch.Tensor, theirs: torch.Tensor, precise: torch.Tensor) -> bool:
    """Whether our answer is as near the double-precision one as ATen's is, within a factor of two."""
    if not theirs.is_floating_point() and not theirs.is_complex():
        return False
    if theirs.dtype in (torch.float64, torch.complex128):
        return False
    wide = torch.complex128 if theirs.is_complex() else torch.float64
    mine, theirs, precise = mine.to(wide), theirs.to(wide), precise.to(wide)
    finite = torch.isfinite(precise) & torch.isfinite(theirs)
    if not torch.equal(torch.isfinite(mine), torch.isfinite(theirs)):
        return False
    ours_off = (mine - precise)[finite].abs()
    theirs_off = (theirs - precise)[finite].abs()
    return bool(ours_off.numel() == 0 or ours_off.max() <= 2 * theirs_off.max())


def _short(x: torch.Tensor) -> str:
    return str(x.flatten()[:32])
