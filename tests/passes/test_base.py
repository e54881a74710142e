"""The runner: order, records, limits, verification by level, failures; pipelines as text."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import pytest
from expecttest import assert_expected_inline

from neuron_compiler.errors import CapacityError, NeuronCompilerError, OptionsError, PassError, VerifyError
from neuron_compiler.ir import text
from neuron_compiler.ir.plan import Group, GroupKind, Program
from neuron_compiler.passes.base import Pass, PassRecord, format_passes, parse_pipeline, run_pipeline

PROGRAM = text.parse("""
    graph g(%x: f32[8]) {
      %0 = aten.exp.default(%x) : f32[8]  # model.py:3
      %1 = aten.log.default(%0) : f32[8]  # model.py:4
      return %1
    }
    """)


@dataclass(frozen=True)
class DropLast:
    """Drops the last op and returns its operand."""

    name: ClassVar[str] = "drop_last"

    def __call__(self, program: Program) -> Program:
        graph = program.graph
        last = graph.ops[-1]
        return program.with_graph(replace(graph, ops=graph.ops[:-1], outputs=last.uses))


@dataclass(frozen=True)
class DropFirst:
    """Breaks the program: drops the first op and leaves its readers."""

    name: ClassVar[str] = "drop_first"

    def __call__(self, program: Program) -> Program:
        return program.with_graph(replace(program.graph, ops=program.graph.ops[1:]))


@dataclass(frozen=True)
class Keep:
    """Changes nothing; with ``copy``, breaks the contract by returning a copy."""

    copy: bool = False
    size: int = 4
    ratio: float = 0.5
    label: str | None = None
    name: ClassVar[str] = "keep"

    def __call__(self, program: Program) -> Program:
        return replace(program) if self.copy else program


@dataclass(frozen=True)
class Raise:
    """Raises."""

    error: Exception | None = field(default=None, repr=False)
    name: ClassVar[str] = "raise"

    def __call__(self, program: Program) -> Program:
        raise self.error or ZeroDivisionError("division by zero")


@dataclass(frozen=True)
class GroupAll:
    name: ClassVar[str] = "group_all"

    def __call__(self, program: Program) -> Program:
        ops = tuple(op.result for op in program.graph.ops)
        return program.with_plan(groups=(Group("g0", GroupKind.ELEMENTWISE, ops),))


REGISTERED: dict[str, type[Pass]] = {cls.name: cls for cls in (DropLast, DropFirst, Keep)}


def test_passes_run_in_order_and_say_what_they_did() -> None:
    seen: list[tuple[int, str, int, int, bool]] = []

    def observe(index: int, pass_: Pass, before: Program, after: Program, seconds: float) -> None:
        seen.append((index, pass_.name, len(before.graph.ops), len(after.graph.ops), seconds >= 0))

    after, records = run_pipeline(PROGRAM, (Keep(), DropLast(), GroupAll()), verify_level="every", observer=observe)
    assert after.graph.outputs == ("0",)
    assert seen == [(0, "keep", 2, 2, True), (1, "drop_last", 2, 1, True), (2, "group_all", 1, 1, True)]
    assert [replace(record, seconds=0) for record in records] == [
        PassRecord("keep", False, 2, 2, 0, 0),
        PassRecord("drop_last", True, 2, 1, 0, 0),
        PassRecord("group_all", True, 1, 1, 1, 0),
    ]


@pytest.mark.parametrize(("limit", "ops"), [(None, 0), (2, 0), (1, 1), (0, 2)])
def test_a_limit_leaves_out_the_passes_behind_it(limit: int | None, ops: int) -> None:
    after, records = run_pipeline(PROGRAM, (DropLast(), DropLast()), limit=limit)
    assert len(after.graph.ops) == ops
    assert len(records) == 2 - ops


def test_every_names_the_pass_that_broke_the_program() -> None:
    observed: list[str] = []
    with pytest.raises(VerifyError) as raised:
        run_pipeline(
            PROGRAM,
            (Keep(), DropFirst(), DropLast()),
            verify_level="every",
            observer=lambda index, pass_, *_: observed.append(pass_.name),
        )
    assert_expected_inline(
        str(raised.value),
        """\
%0 is used and never defined
  op: %1 = aten.log.default(%0) : f32[8]
  at: model.py:4
  in: pass 1 'drop_first'
  try: a pass that moves or removes ops must keep their users in step""",
    )
    assert observed == ["keep", "drop_first"]
    failure = raised.value.failure
    assert failure.index == 1
    assert failure.before is PROGRAM
    assert len(failure.after.graph.ops) == 1
    assert_expected_inline(
        "\n".join(raised.value.__notes__),
        """\
op 0 of 1 of graph g:
> %1 = aten.log.default(%0) : f32[8]  # model.py:4
  return %1
the program before pass 1 'drop_first':
graph g(%x: f32[8]) target=trn2 {
  %0 = aten.exp.default(%x) : f32[8]  # model.py:3
  %1 = aten.log.default(%0) : f32[8]  # model.py:4
  return %1
}
""",
    )


def test_stage_goes_back_to_the_pass_that_broke_the_program_first() -> None:
    with pytest.raises(VerifyError) as raised:
        run_pipeline(PROGRAM, (GroupAll(), DropFirst(), GroupAll()), verify_level="stage")
    assert raised.value.when == "pass 1 'drop_first'"
    assert raised.value.failure.before.plan.groups


def test_stage_does_not_see_what_a_later_pass_repaired_and_off_sees_nothing() -> None:
    repaired, _ = run_pipeline(PROGRAM, (DropFirst(), DropLast(), Repair()), verify_level="stage")
    assert repaired.graph.ops == ()
    with pytest.raises(VerifyError):
        run_pipeline(PROGRAM, (DropFirst(), DropLast(), Repair()), verify_level="every")
    broken, _ = run_pipeline(PROGRAM, (DropFirst(),), verify_level="off")
    assert len(broken.graph.ops) == 1


@dataclass(frozen=True)
class Repair:
    name: ClassVar[str] = "repair"

    def __call__(self, program: Program) -> Program:
        return program.with_graph(replace(program.graph, outputs=("x",)))


@pytest.mark.parametrize("level", ["stage", "every"])
def test_an_illegal_program_is_refused_before_the_first_pass(level: str) -> None:
    broken = DropFirst()(PROGRAM)
    with pytest.raises(VerifyError) as raised:
        run_pipeline(broken, (Keep(),), verify_level=level)
    assert raised.value.when == "the program before the passes"
    assert raised.value.failure.before is broken


def test_what_a_pass_raises_names_the_pass_and_shows_the_program() -> None:
    with pytest.raises(PassError) as raised:
        run_pipeline(PROGRAM, (Keep(), Raise()))
    assert_expected_inline(
        str(raised.value),
        """\
pass 1 'raise' raised ZeroDivisionError: division by zero
  try: neuron-compiler opt before.ir -p 'raise' on the program below""",
    )
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert raised.value.failure.after is None
    assert raised.value.__notes__ == [f"the program before pass 1 'raise':\n{PROGRAM}"]


def test_an_error_of_this_package_keeps_its_class_and_text() -> None:
    error = CapacityError("SBUF is full")
    with pytest.raises(CapacityError) as raised:
        run_pipeline(PROGRAM, (Raise(error),))
    assert raised.value is error
    assert str(error) == "SBUF is full"
    assert raised.value.failure.before is PROGRAM


def test_an_equal_copy_breaks_the_contract() -> None:
    with pytest.raises(PassError) as raised:
        run_pipeline(PROGRAM, (Keep(copy=True),), verify_level="every")
    assert_expected_inline(
        str(raised.value),
        """\
pass 0 'keep{copy=true}' returned an equal copy of its program
  try: return the program itself where nothing changed""",
    )


def test_an_unknown_level_is_an_error() -> None:
    with pytest.raises(OptionsError, match="verify level is 'always'; it takes one of 'off', 'stage', 'every'"):
        run_pipeline(PROGRAM, (), verify_level="always")


SPECS = {
    "": (),
    "keep": (Keep(),),
    " keep , drop_last ": (Keep(), DropLast()),
    "keep{size=8}": (Keep(size=8),),
    "keep{copy=true, ratio=1e-3,label=wide}": (Keep(copy=True, ratio=1e-3, label="wide"),),
    "keep{label=none},keep{}": (Keep(), Keep()),
}


@pytest.mark.parametrize(("spec", "passes"), SPECS.items())
def test_pipelines_are_read_from_text_and_written_back(spec: str, passes: tuple[Pass, ...]) -> None:
    assert parse_pipeline(spec, REGISTERED) == passes
    assert parse_pipeline(format_passes(passes), REGISTERED) == passes


def test_options_that_have_their_default_are_not_written() -> None:
    assert format_passes((Keep(copy=True), DropLast(), Keep(label="a"))) == "keep{copy=true},drop_last,keep{label=a}"


MISTAKES = {
    "kep": "no pass is called 'kep'; did you mean 'keep'?\n  try: known: drop_last, drop_first, keep",
    "drop": "no pass is called 'drop'; did you mean 'drop_last'?\n  try: known: drop_last, drop_first, keep",
    "keep{sice=3}": "pass 'keep' has no option 'sice'; did you mean 'size'?\n  try: known: copy, size, ratio, label",
    "keep{name=x}": "pass 'keep' has no option 'name'\n  try: known: copy, size, ratio, label",
    "drop_last{size=3}": "pass 'drop_last' has no option 'size'\n  try: known: none",
    "keep{3}": "options of pass 'keep' cannot be read from '3'\n  try: option=value",
    "keep drop_last": "pipeline 'keep drop_last' cannot be read from 'keep drop_last'\n  try: name,name{option=value}",
    "keep,,keep": "pipeline 'keep,,keep' cannot be read from ',keep'\n  try: name,name{option=value}",
}


@pytest.mark.parametrize(("spec", "message"), MISTAKES.items())
def test_a_mistake_in_a_pipeline_says_what_is_known(spec: str, message: str) -> None:
    with pytest.raises(OptionsError) as raised:
        parse_pipeline(spec, REGISTERED)
    assert str(raised.value) == message


def test_the_registered_passes_are_the_default() -> None:
    assert [p.name for p in parse_pipeline("canonicalize,dce")] == ["canonicalize", "dce"]


def test_pass_errors_are_of_this_package() -> None:
    assert issubclass(PassError, NeuronCompilerError)
