"""The command line: each command's output, and errors as text with an exit code."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from neuron_compiler import __version__
from neuron_compiler.cli import COMMANDS, main
from neuron_compiler.commands import env
from neuron_compiler.ir import text
from neuron_compiler.measure import systems
from neuron_compiler.passes.pipeline import REGISTERED

PROGRAM = """\
graph mlp(%x: f32[8]) target=trn2 {
  %0 = aten.exp.default(%x) : f32[8]  # model.py:1
  %1 = aten.tanh.default(%x) : f32[8]  # model.py:2
  return %0
}
"""

WITHOUT_DEAD_CODE = """\
graph mlp(%x: f32[8]) target=trn2 {
  %0 = aten.exp.default(%x) : f32[8]  # model.py:1
  return %0
}
"""

Capture = pytest.CaptureFixture[str]


def run(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of one command."""
    code = main(arguments)
    return code, *capsys.readouterr()


@pytest.fixture
def no_compiler() -> Iterator[None]:
    """As on a machine without a C++ compiler."""
    from torch._inductor import config

    with config.patch({"cpp.cxx": (None, "no-such-compiler")}):
        yield


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "02_input.ir"
    path.write_text(PROGRAM)
    return path


def test_opt_prints_the_program_and_a_line_for_each_pass(program: Path, capsys: Capture) -> None:
    code, out, err = run(capsys, "opt", str(program), "-p", "dce,cse")
    assert (code, out) == (0, WITHOUT_DEAD_CODE)
    first, second = err.splitlines()
    assert first.startswith("dce: changed, 2 -> 1 ops, 0 groups, ")
    assert second.startswith("cse: same, 1 -> 1 ops, 0 groups, ")


def test_opt_output_is_input_again(program: Path, capsys: Capture) -> None:
    planned = program.with_name("planned.ir")
    code, out, _ = run(capsys, "opt", str(program), "-p", "dce,fuse,tile", "-o", str(planned))
    assert (code, out) == (0, "")
    read = text.parse(planned.read_text())
    assert [group.ops for group in read.plan.groups] == [("0",)]
    assert list(read.plan.tiles) == [read.plan.groups[0].name]
    code, out, _ = run(capsys, "opt", str(planned), "-p", "")
    assert (code, out) == (0, planned.read_text())


def test_opt_reads_standard_input(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(PROGRAM))
    assert run(capsys, "opt", "-", "-p", "dce")[:2] == (0, WITHOUT_DEAD_CODE)


def test_opt_lists_every_pass(capsys: Capture) -> None:
    code, out, _ = run(capsys, "opt", "--list")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:]] == list(REGISTERED)
    assert "Dce: what nobody reads is not computed." in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("missing.ir",), ["OptionsError: cannot read missing.ir: ", "No such file"]),
        ((), ["OptionsError: no file to read", "  try: name one, or - for standard input"]),
        (("{program}", "-p", "dec"), ["OptionsError: no pass is called 'dec'; did you mean 'dce'?"]),
        (("{program}", "-p", "dce{depth=2}"), ["OptionsError: pass 'dce' has no option 'depth'"]),
        (("{program}", "-o", "no/such/folder/out.ir"), ["OptionsError: cannot write no/such/folder/out.ir"]),
    ],
)
def test_opt_shows_errors_as_text(
    arguments: tuple[str, ...], said: list[str], program: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(program.parent)
    code, out, err = run(capsys, "opt", *(a.format(program=program) if "{program}" in a else a for a in arguments))
    assert (code, out) == (1, "")
    assert "Traceback" not in err
    for part in said:
        assert part in err


def test_opt_shows_where_a_program_is_broken(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "broken.ir"
    path.write_text(PROGRAM.replace("exp.default(%x)", "exp.default(%y)"))
    code, out, err = run(capsys, "opt", str(path), "-p", "dce")
    assert (code, out) == (1, "")
    assert err.startswith("VerifyError: ")
    assert "%y" in err
    assert "model.py:1" in err
    path.write_text(PROGRAM.replace("f32[8]", "f31[8]"))
    code, out, err = run(capsys, "opt", str(path))
    assert (code, out) == (1, "")
    assert err.startswith("ParseError: ")


def test_env_says_what_a_report_needs(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_COMPILER_TARGET", "trn3")
    monkeypatch.setenv("HF_TOKEN", "a secret")
    code, out, _ = run(capsys, "env")
    lines = [line.strip() for line in out.splitlines()]
    assert code == 0
    assert f"torch: {torch.__version__}" in lines
    assert any(line.startswith(f"neuron-compiler: {__version__} from ") for line in lines)
    assert f"threads: {torch.get_num_threads()} in torch, {torch.get_num_interop_threads()} between ops" in lines
    assert "NEURON_COMPILER_TARGET: trn3" in lines
    assert "target: 'trn3'" in lines
    for name in ("processor", "features", "C++ compiler", "entry point torch_dynamo_backends", "autoload"):
        assert any(line.startswith(f"{name}: ") for line in lines), name
    assert "a secret" not in out


@pytest.mark.usefixtures("no_compiler")
def test_env_without_a_compiler_says_so() -> None:
    assert env.cxx().startswith("No working C++ compiler found")


def test_processor_is_read_from_linux(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(
        "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu avx2 fma\n\nprocessor\t: 1\nflags\t: none\n"
    )
    assert env.processor(path) == ("Some CPU", frozenset({"fpu", "avx2", "fma"}))
    assert env.processor(tmp_path / "missing")[1] == frozenset()


@pytest.mark.usefixtures("no_compiler")
def test_bench_without_a_compiler_says_why_a_column_is_empty(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "times.json"
    code, out, err = run(capsys, "bench", "vit", "--small", "--rounds", "3", "--json", str(path))
    assert code == 0, out
    assert "vit, inductor: no C++ compiler: InvalidCxxCompiler: No working C++ compiler found" in out
    assert "neuron: first call" in err
    written = json.loads(path.read_text())
    assert written["settings"] == {"threads": torch.get_num_threads(), "rounds": 3}
    assert written["about"]["versions"]["torch"] == torch.__version__
    (row,) = written["rows"]
    found = row["systems"]
    assert (row["model"], row["dtype"], row["train"]) == ("vit", "float32", False)
    assert found["inductor"]["seconds"] == []
    assert found["eager"]["difference"] == {"rms": 0.0, "largest": 0.0, "fault": ""}
    assert len(found["eager"]["seconds"]) == len(found["neuron"]["seconds"]) == 3
    assert found["neuron"]["difference"]["rms"] < 1e-4
    assert (found["neuron"]["verdict"], found["neuron"]["fallbacks"], found["neuron"]["executables"]) == ("", 0, 1)


@pytest.mark.usefixtures("no_compiler")
def test_bench_does_not_time_wrong_results(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = systems._compiled

    def wrong(system: str, module: torch.nn.Module, options: object) -> object:
        if system != systems.NEURON:
            return compiled(system, module, None)
        return lambda *args, **kwargs: [t * 1.001 for t in systems.Example(module, args, kwargs).call()]

    monkeypatch.setattr(systems, "_compiled", wrong)
    code, out, _ = run(capsys, "bench", "vit", "--small", "--rounds", "1")
    assert code == 1
    assert "vit, neuron: relative RMS error 1.0e-03 is over 1.0e-04" in out


def test_bench_lists_its_models(capsys: Capture) -> None:
    code, out, _ = run(capsys, "bench", "--list")
    assert code == 0
    assert "resnet50   ResNet-50, 224 px" in out.splitlines()


def test_bench_of_an_unknown_model(capsys: Capture) -> None:
    code, _, err = run(capsys, "bench", "gpt5")
    assert code == 1
    assert err.startswith("OptionsError: no model 'gpt5'\n  try: known: gpt2, ")


@pytest.mark.usefixtures("no_compiler")
def test_demo_compares_and_leaves_dumps(tmp_path: Path, capsys: Capture) -> None:
    code, out, err = run(capsys, "demo", "--small", "--dump", str(tmp_path))
    assert code == 0, out
    assert "GPT-2" in out
    assert "ResNet-50" in out
    assert "SBUF peak" in out
    assert "the inductor column is empty: no C++ compiler" in out
    assert str(tmp_path) in out.replace("\n", "")
    assert len(list(tmp_path.rglob("summary.txt"))) == 2
    assert "neuron: first call" in err


@pytest.mark.parametrize("arguments", [(), ("frobnicate",), ("bench", "--rounds", "0"), ("bench", "--dtype", "int8")])
def test_wrong_arguments_are_code_2(arguments: tuple[str, ...], capsys: Capture) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "usage: neuron-compiler" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as stopped:
        main((command, "--help"))
    assert stopped.value.code == 0
    assert (COMMANDS[command].__doc__ or "").splitlines()[0] in capsys.readouterr().out


def test_as_a_module() -> None:
    command = [sys.executable, "-m", "neuron_compiler", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == f"neuron-compiler {__version__}\n"


def test_interrupted_is_code_130(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(env, "run", interrupt)
    assert run(capsys, "env") == (130, "", "interrupted\n")
