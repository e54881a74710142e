"""Faults planted in a rule, one at a time: each must make the rule's generated test fail.

In: an overload. Out: its faults, each a rule that is wrong in one way, and whether calls tell it from ATen. What they
do not tell is a hole in the samples.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import op_check
import op_samples
import option_calls
from op_samples import Sample

from neuron_compiler.opdef import REGISTRY, Registry

Rule = Callable[..., Any]

OFF = 1e-3
"""How far a value is off, of itself and of one: an error that float32 shows and bfloat16 hides."""

UNREAD = {("aten.mkldnn_rnn_layer.default", 3): "a workspace, oneDNN's own"}
"""Results that no one but their own backward pass reads."""


@dataclass(frozen=True)
class Fault:
    """One way of being wrong: what it is called, and the rule that is so."""

    name: str
    rule: Rule


def _off(x: jax.Array) -> jax.Array:
    """The array with its last element changed."""
    if x.size == 0:
        return x
    flat = x.reshape(-1)
    last = flat[-1]
    if x.dtype == jnp.bool_:
        wrong = ~last
    elif jnp.issubdtype(x.dtype, jnp.inexact):
        wrong = jnp.where(jnp.isfinite(last), last * (1 + OFF) + OFF, jnp.zeros_like(last))
    else:
        wrong = last + 1
    return flat.at[-1].set(wrong.astype(x.dtype)).reshape(x.shape)


def _off_by_one_element(rule: Rule, place: int | None) -> Rule:
    def wrong(*args: Any, **kwargs: Any) -> Any:
        result = rule(*args, **kwargs)
        if place is None:
            return _off(result)
        return tuple(_off(x) if i == place and x is not None else x for i, x in enumerate(result))

    return wrong


def _ignoring(rule: Rule, parameter: str) -> Rule:
    signature = inspect.signature(rule)
    default = signature.parameters[parameter].default

    def wrong(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        if parameter in bound.arguments:
            bound.arguments[parameter] = default
        return rule(*bound.args, **bound.kwargs)

    return wrong


def _reads(rule: Rule, parameter: str) -> bool:
    """Whether the rule looks at a parameter at all: of some, the type that it is given says enough."""
    return any(
        step.argval == parameter and step.opname.startswith("LOAD") for step in dis.get_instructions(rule.__code__)
    )


def _optional(overload: str) -> Iterator[str]:
    """Parameters of the rule that stand for options with a meaning."""
    rule = REGISTRY[overload].lower
    parameters = inspect.signature(rule).parameters
    positional = [p.name for p in parameters.values() if p.kind is not p.KEYWORD_ONLY]
    for place, argument in option_calls.options(op_samples.resolve(overload)):
        name = argument.name if argument.kwarg_only or place >= len(positional) else positional[place]
        if name in parameters and parameters[name].default is not inspect.Parameter.empty:
            told_by_type = name == "dtype" and REGISTRY[overload].wants_out
            if _reads(rule, name) and not told_by_type:
                yield name


def wrong_values(overload: str, samples: Sequence[Sample]) -> list[Fault]:
    """For each result that some call gives elements of, the rule with an element of it off."""
    rule, results = REGISTRY[overload].lower, [sample.result for sample in samples]
    if not isinstance(results[0], list | tuple):
        return [Fault("an element of the result is off", _off_by_one_element(rule, None))]
    return [
        Fault(f"an element of result {place} is off", _off_by_one_element(rule, place))
        for place in range(len(results[0]))
        if (overload, place) not in UNREAD and any(_has_elements(result, place) for result in results)
    ]


def _has_elements(result: Sequence[Any], place: int) -> bool:
    return place < len(result) and result[place] is not None and result[place].numel() > 0


def ignored_options(overload: str) -> list[Fault]:
    """For each option that the rule reads, the rule without it."""
    rule = REGISTRY[overload].lower
    return [Fault(f"{parameter} is ignored", _ignoring(rule, parameter)) for parameter in _optional(overload)]


def seen(overload: str, fault: Fault, samples: Sequence[Sample]) -> bool:
    """Whether the check of the generated test raises for the rule with the fault."""
    registry = Registry()
    registry.add(replace(REGISTRY[overload], lower=fault.rule))
    try:
        op_check.check(samples, registry)
    except Exception:  # whatever it is, it fails the test
        return True
    return False


def unseen(overload: str, faults: Sequence[Fault], samples: Sequence[Sample]) -> list[str]:
    """Names of the faults that the samples do not tell from ATen."""
    return [fault.name for fault in faults if not seen(overload, fault, samples)]


def rules() -> list[str]:
    """Overloads whose rule has a value to be wrong about."""
    return [name for name in REGISTRY.names() if not name.startswith((*op_check.UNSPECIFIED, "transformers."))]


def picked(seed: int, count: int) -> list[str]:
    """So many of them, at random."""
    return Random(seed).sample(rules(), count)


def calls(overload: str) -> list[Sample]:
    """Those that the generated test makes."""
    return _supported(op_samples.samples(overload, op_samples.FAST, op_samples.COUNT))


def calls_with_options(overload: str) -> list[Sample]:
    """The same, and one for each option that none of them sets."""
    made = calls(overload)
    return made + _supported(op_samples.setting_options(overload, made))


def _supported(samples: Iterable[Sample]) -> list[Sample]:
    return [call for call in samples if op_check.why_skipped(call) is None]
