"""The text of every error, whole: what is wrong, which op, where, when, what to try."""

from __future__ import annotations

import inspect

import pytest

from neuron_compiler import errors
from neuron_compiler.errors import NeuronCompilerError

CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, NeuronCompilerError)]


def test_only_what_is_wrong() -> None:
    assert str(NeuronCompilerError("a tile of 130 rows does not fit 128 partitions")) == (
        "a tile of 130 rows does not fit 128 partitions"
    )


def test_all_lines_in_order() -> None:
    error = NeuronCompilerError(
        "a tile of 130 rows does not fit 128 partitions",
        op="%2: f32[130, 8] = aten.mm.default(%0, %1)",
        loc="model.py:15",
        when="pass tile",
        hint="NEURON_COMPILER_DUMP=dir shows the program",
    )
    assert str(error) == (
        "a tile of 130 rows does not fit 128 partitions\n"
        "  op: %2: f32[130, 8] = aten.mm.default(%0, %1)\n"
        "  at: model.py:15\n"
        "  in: pass tile\n"
        "  try: NEURON_COMPILER_DUMP=dir shows the program"
    )


@pytest.mark.parametrize(("field", "label"), [("op", "op"), ("loc", "at"), ("when", "in"), ("hint", "try")])
def test_a_part_that_is_missing_leaves_no_line(field: str, label: str) -> None:
    error = NeuronCompilerError("what", **{field: "text"})
    assert str(error) == f"what\n  {label}: text"
    assert getattr(error, field) == "text"
    assert error.what == "what"


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_class_keeps_the_shape(kind: type[NeuronCompilerError]) -> None:
    error = kind("what", loc="model.py:1")
    assert str(error) == "what\n  at: model.py:1"
    assert isinstance(error, NeuronCompilerError)
    assert kind.__doc__


def test_a_note_stays_out_of_the_text() -> None:
    error = errors.VerifyError("what")
    error.add_note("graph f(%x: f32[2]) {...}")
    assert str(error) == "what"
    assert error.__notes__ == ["graph f(%x: f32[2]) {...}"]


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [(errors.OptionsError, ValueError), (errors.ParseError, ValueError), (errors.RuntimeFault, RuntimeError)],
)
def test_errors_of_the_user_are_caught_as_python_does(
    kind: type[NeuronCompilerError], builtin: type[Exception]
) -> None:
    assert issubclass(kind, builtin)
