"""What a pass is, and the runner that alone verifies, times, limits and shows passes.

A pass is a frozen dataclass in a file of its own, with a ``name``, its options as fields, and a call from Program to
Program. It takes a legal program and returns a legal one that computes the same; it returns the same *object* where it
changed nothing, so that "changed" is ``after is not before``. It never prints, verifies, times or logs.
"""

from __future__ import annotations

import difflib
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, fields, is_dataclass, replace
from typing import Any, Protocol, TypeAlias, cast

from neuron_compiler.errors import NeuronCompilerError, OptionsError, PassError
from neuron_compiler.ir import text, verify
from neuron_compiler.ir.plan import Program
from neuron_compiler.options import VERIFY_LEVELS


class Pass(Protocol):
    """A step from Program to Program; a frozen dataclass whose fields are its options."""

    @property
    def name(self) -> str:
        """The pass's name in dumps and in ``parse_pipeline``; its file has the same."""

    def __call__(self, program: Program, /) -> Program:
        """The program after this step; the same object where nothing changed."""


Observer: TypeAlias = Callable[[int, Pass, Program, Program, float], None]
"""Called after each pass, before its result is verified: (index, pass, before, after, seconds)."""


@dataclass(frozen=True)
class PassRecord:
    """What one pass did: for summaries."""

    name: str
    changed: bool
    ops_before: int
    ops_after: int
    groups: int
    seconds: float


@dataclass(frozen=True)
class Failure:
    """Where a pipeline failed; ``error.failure`` of what ``run_pipeline`` raises.

    Attributes:
        index: place of the pass in the pipeline, from 0; -1 where the program was illegal before the first.
        name: the pass, with its options; empty where the program was illegal before the first.
        before: the last good program: running the pass on it fails again.
        after: what the pass made of it; None where it raised.
    """

    index: int
    name: str
    before: Program
    after: Program | None

    @property
    def place(self) -> str:
        return f"pass {self.index} '{self.name}'" if self.name else "the program before the passes"


def run_pipeline(
    program: Program,
    passes: Sequence[Pass],
    *,
    verify_level: str = "stage",
    limit: int | None = None,
    observer: Observer | None = None,
) -> tuple[Program, tuple[PassRecord, ...]]:
    """Apply passes in order; returns the last program and what each pass did.

    Args:
        program: what to start from.
        passes: in order of application.
        verify_level: ``"off"``; ``"stage"`` checks the first and the last program; ``"every"`` also checks each changed
            one as it comes, and that a pass that changed nothing returned the same object.
        limit: number of passes to apply, for bisection: the others are left out.
        observer: told of each pass.

    Raises:
        NeuronCompilerError: with its ``failure`` set and the last good program in a note. What a pass raised is kept if
            it is an error of this package, and wrapped in PassError if not.
    """
    if verify_level not in VERIFY_LEVELS:
        raise OptionsError(f"verify level is {verify_level!r}; it takes one of {', '.join(map(repr, VERIFY_LEVELS))}")
    if verify_level != "off":
        _verify(Failure(-1, "", program, program))
    steps: list[Failure] = []
    records: list[PassRecord] = []
    for index, pass_ in enumerate(passes if limit is None else passes[:limit]):
        step = Failure(index, format_passes((pass_,)), program, None)
        started = time.perf_counter()
        try:
            program = pass_(step.before)
        except Exception as error:
            raise _located(error, step) from (None if isinstance(error, NeuronCompilerError) else error)
        seconds = time.perf_counter() - started
        changed = program is not step.before
        ops = len(step.before.graph.ops), len(program.graph.ops)
        records.append(PassRecord(pass_.name, changed, *ops, len(program.plan.groups), seconds))
        if observer is not None:
            observer(index, pass_, step.before, program, seconds)
        if changed:
            steps.append(replace(step, after=program))
            if verify_level == "every":
                _verify(steps[-1])
                _refuse_copy(steps[-1])
    if verify_level == "stage" and steps:
        _verify_last(steps)
    return program, tuple(records)


def _verify(step: Failure) -> None:
    try:
        verify.program(step.before if step.after is None else step.after, when=step.place)
    except NeuronCompilerError as error:
        raise _located(error, step) from None


def _verify_last(steps: Sequence[Failure]) -> None:
    """Check the last program; if it is illegal, go back to name the pass that made the first illegal one."""
    try:
        _verify(steps[-1])
    except NeuronCompilerError:
        for step in steps[:-1]:
            _verify(step)
        raise


def _refuse_copy(step: Failure) -> None:
    if step.after == step.before:
        error = PassError(
            f"{step.place} returned an equal copy of its program",
            hint="return the program itself where nothing changed",
        )
        raise _located(error, step)


def _located(error: Exception, step: Failure) -> NeuronCompilerError:
    """The error to raise: of this package, knowing where the pipeline stood."""
    if not isinstance(error, NeuronCompilerError):
        what = f"{step.place} raised {type(error).__name__}: {error}"
        error = PassError(what, hint=f"neuron-compiler opt before.ir -p '{step.name}' on the program below")
    error.failure = step
    if step.name:
        error.add_note(f"the program before {step.place}:\n{text.format(step.before)}")
    return error


_STEP = re.compile(r"\s*([\w.-]+)\s*(?:\{([^{}]*)\})?\s*(,|$)")
_OPTION = re.compile(r"\s*(\w+)\s*=\s*([^,=]+?)\s*(,|$)")
_WORDS: Mapping[str, object] = {"true": True, "false": False, "none": None}


def parse_pipeline(spec: str, registered: Mapping[str, type[Pass]] | None = None) -> tuple[Pass, ...]:
    """Passes from text such as ``fuse,tile{max_free=256}``; names match exactly.

    Args:
        spec: names between commas, each with its options in braces; an empty text has no pass.
        registered: passes by name; those of ``pipeline`` by default.

    Raises:
        OptionsError: a name or option is unknown, with the known ones listed, or a value does not fit.
    """
    if registered is None:
        from neuron_compiler.passes.pipeline import REGISTERED

        registered = REGISTERED
    found: list[Pass] = []
    at = 0
    while spec[at:].strip():
        match = _STEP.match(spec, at)
        if match is None:
            raise OptionsError(f"pipeline {spec!r} cannot be read from {spec[at:]!r}", hint="name,name{option=value}")
        name, options, _ = match.groups()
        if name not in registered:
            raise OptionsError(f"no pass is called {name!r}{_did_you_mean(name, registered)}", hint=_known(registered))
        found.append(_build(registered[name], name, options or ""))
        at = match.end()
    return tuple(found)


def format_passes(passes: Iterable[Pass]) -> str:
    """The text that ``parse_pipeline`` reads; options that have their default are left out."""
    return ",".join(map(_format_pass, passes))


def options_of(pass_: Pass | type[Pass]) -> dict[str, object]:
    """Default of each option that text can set: of the fields that the pass's repr shows."""
    shown: tuple[Field[Any], ...] = fields(cast(Any, pass_)) if is_dataclass(pass_) else ()
    return {f.name: f.default for f in shown if f.init and f.repr and f.name != "name"}


def _format_pass(pass_: Pass) -> str:
    options = ((name, getattr(pass_, name), default) for name, default in options_of(pass_).items())
    inside = ",".join(f"{name}={_format_value(value)}" for name, value, default in options if value != default)
    return f"{pass_.name}{{{inside}}}" if inside else pass_.name


def _format_value(value: object) -> str:
    return next((word for word, meant in _WORDS.items() if meant is value), str(value))


def _build(cls: type[Pass], name: str, text_of_options: str) -> Pass:
    known = options_of(cls)
    given: dict[str, object] = {}
    at = 0
    while text_of_options[at:].strip():
        match = _OPTION.match(text_of_options, at)
        if match is None:
            raise OptionsError(
                f"options of pass {name!r} cannot be read from {text_of_options[at:]!r}", hint="option=value"
            )
        option, value, _ = match.groups()
        if option not in known:
            raise OptionsError(
                f"pass {name!r} has no option {option!r}{_did_you_mean(option, known)}", hint=_known(known)
            )
        given[option] = _value(value)
        at = match.end()
    return cls(**given)


def _value(word: str) -> object:
    if word in _WORDS:
        return _WORDS[word]
    for number in (int, float):
        try:
            return number(word)
        except ValueError:
            continue
    return word


def _did_you_mean(word: str, words: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(words), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _known(words: Iterable[str]) -> str:
    return f"known: {', '.join(words) or 'none'}"
