"""Options: precedence, every value that is refused, and that each one can be set from the environment."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace

import pytest

from neuron_compiler import options
from neuron_compiler.errors import OptionsError
from neuron_compiler.options import ENVIRONMENT, Options, from_call, from_environment
from neuron_compiler.trainium import target

# For each option: text in the environment, and the value it stands for, which is not the default.
SET = {
    "target": ("trn3", "trn3"),
    "dump": ("dumps/here", "dumps/here"),
    "strict": ("1", True),
    "emulation": ("tile", "tile"),
    "verify": ("every", "every"),
    "pass_limit": ("3", 3),
    "program_cache_size": ("5", 5),
    "buckets": ("128, 64,64", (64, 128)),
    "recompile_warning": ("9", 9),
}


def test_defaults() -> None:
    assert Options() == Options(
        target="trn2",
        dump=None,
        strict=False,
        emulation="off",
        verify="stage",
        pass_limit=None,
        program_cache_size=64,
        buckets=None,
        recompile_warning=5,
    )


def test_options_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Options().target = "trn3"  # type: ignore[misc]


def test_every_option_has_a_variable_and_a_row_in_this_test() -> None:
    names = {f.name for f in fields(Options)}
    assert set(ENVIRONMENT.values()) == names == set(SET)
    assert all(variable == f"NEURON_COMPILER_{name.upper()}" for variable, name in ENVIRONMENT.items())


@pytest.mark.parametrize("name", SET)
def test_environment_sets_each_option_and_only_that(name: str) -> None:
    text, value = SET[name]
    assert value != getattr(Options(), name)
    assert from_environment({f"NEURON_COMPILER_{name.upper()}": text}) == replace(Options(), **{name: value})


@pytest.mark.parametrize("name", SET)
def test_empty_variable_is_no_variable(name: str) -> None:
    assert from_environment({f"NEURON_COMPILER_{name.upper()}": ""}) == Options()


@pytest.mark.parametrize("name", SET)
def test_call_goes_before_environment(name: str) -> None:
    text, value = SET[name]
    environ = {f"NEURON_COMPILER_{name.upper()}": text}
    default = getattr(Options(), name)
    assert from_call(environ=environ) == replace(Options(), **{name: value})
    assert from_call(options={name: default}, environ=environ) == Options()
    assert from_call(options={name: value}, environ={}) == replace(Options(), **{name: value})


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", True), ("true", True), ("YES", True), (" on ", True), ("0", False), ("false", False), ("No", False)],
)
def test_strict_from_text(text: str, value: bool) -> None:
    assert from_environment({"NEURON_COMPILER_STRICT": text}).strict is value


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("NEURON_COMPILER_STRICT", "maybe", "NEURON_COMPILER_STRICT is 'maybe'; it takes 1 or 0"),
        ("NEURON_COMPILER_PASS_LIMIT", "few", "NEURON_COMPILER_PASS_LIMIT is 'few'; it takes a whole number"),
        (
            "NEURON_COMPILER_PROGRAM_CACHE_SIZE",
            "1.5",
            "NEURON_COMPILER_PROGRAM_CACHE_SIZE is '1.5'; it takes a whole number",
        ),
        (
            "NEURON_COMPILER_TARGET",
            "trn9",
            "option 'target' is 'trn9'; it takes one of 'trn1', 'trn2', 'trn3' (set by NEURON_COMPILER_TARGET)",
        ),
    ],
)
def test_bad_text_is_an_error(variable: str, text: str, message: str) -> None:
    with pytest.raises(OptionsError) as raised:
        from_environment({variable: text})
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("target", "inf2", "option 'target' is 'inf2'; it takes one of 'trn1', 'trn2', 'trn3'"),
        ("emulation", "on", "option 'emulation' is 'on'; it takes one of 'off', 'tile'"),
        ("verify", True, "option 'verify' is True; it takes one of 'off', 'stage', 'every'"),
        ("strict", 1, "option 'strict' takes True or False, not 1"),
        ("dump", 7, "option 'dump' takes a folder, not 7"),
        ("pass_limit", -1, "option 'pass_limit' takes a whole number from 0 or None, not -1"),
        ("pass_limit", True, "option 'pass_limit' takes a whole number from 0 or None, not True"),
        ("program_cache_size", 0, "option 'program_cache_size' takes a whole number from 1, not 0"),
        ("program_cache_size", 2.0, "option 'program_cache_size' takes a whole number from 1, not 2.0"),
        ("recompile_warning", 0, "option 'recompile_warning' takes a whole number from 1 or None, not 0"),
        *(
            (
                "buckets",
                value,
                f"option 'buckets' takes sizes from 2, 'powers_of_2', 'multiples_of_64' or None, not {value!r}",
            )
            for value in ("powers", "multiples_of_0", "multiples_of_", "multiples_of_x", (), (1, 8), [8.0], (True,), 8)
        ),
    ],
)
def test_bad_value_is_an_error(name: str, value: object, message: str) -> None:
    with pytest.raises(OptionsError) as raised:
        from_call(options={name: value}, environ={})
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (None, None),
        ("powers_of_2", "powers_of_2"),
        ("multiples_of_064", "multiples_of_64"),
        ([512, 128, 128], (128, 512)),
        ((2,), (2,)),
    ],
)
def test_buckets_have_one_form(given: object, kept: object) -> None:
    assert from_call(options={"buckets": given}, environ={}).buckets == kept


def test_buckets_from_text() -> None:
    assert from_environment({"NEURON_COMPILER_BUCKETS": "multiples_of_64"}).buckets == "multiples_of_64"
    with pytest.raises(OptionsError, match=r"not \(64, 'x'\) \(set by NEURON_COMPILER_BUCKETS\)$"):
        from_environment({"NEURON_COMPILER_BUCKETS": "64,x"})


def test_pass_limit_may_be_zero() -> None:
    assert from_call(options={"pass_limit": 0}, environ={}).pass_limit == 0


def test_unknown_options_are_named_with_the_known_ones() -> None:
    with pytest.raises(OptionsError) as raised:
        from_call(options={"traget": "trn2", "verbose": 1}, environ={})
    assert str(raised.value) == (
        "unknown options 'traget', 'verbose'\n"
        "  try: known: target, dump, strict, emulation, verify, pass_limit, program_cache_size, "
        "buckets, recompile_warning"
    )
    with pytest.raises(OptionsError, match=r"^unknown option 'traget'\n"):
        from_call(options={"traget": "trn2"}, environ={})


@pytest.mark.parametrize("mode", [None, *options.MODES])
def test_every_mode_of_pytorch_asks_for_the_same(mode: str | None) -> None:
    assert from_call(mode=mode, environ={}) == Options()


def test_unknown_mode_is_an_error() -> None:
    with pytest.raises(OptionsError, match=r"^option 'mode' is 'fast'; it takes one of 'default', 'reduce-overhead', "):
        from_call(mode="fast", environ={})


def test_options_errors_are_value_errors() -> None:
    with pytest.raises(ValueError, match="unknown option 'x'"):
        from_call(options={"x": 1}, environ={})


def test_os_environment_is_what_is_read_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_COMPILER_TARGET", "trn1")
    assert from_environment().target == "trn1"
    assert from_call().target == "trn1"


def test_every_target_is_a_machine() -> None:
    assert [target.by_name(name).name for name in options.TARGETS] == list(options.TARGETS)


@pytest.mark.parametrize(("environ", "asked"), [({}, False), ({"TORCH_COMPILE_DEBUG": "1"}, True)])
def test_torch_compile_debug(environ: dict[str, str], asked: bool) -> None:
    assert options.torch_compile_debug(environ) is asked
