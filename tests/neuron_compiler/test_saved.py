"""Compiled programs in files: loaded in a fresh process they give the same bits; whatever is wrong with one is said."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from exported_programs import CASES, export, results
from safetensors.torch import load_file, save_file
from torch import nn
from torch.testing import assert_close

import neuron_compiler
from neuron_compiler.errors import ArtifactError, RuntimeFault
from neuron_compiler.ledger import LEDGER
from neuron_compiler.saved import archive, machine, saving, tensor_file

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

HERE = Path(__file__).parent
ROOT = Path(neuron_compiler.__file__).parent.parent

# Loaded programs that are built of the exported program instead of machine code: at once, or for a size to come.
BUILT_LATER = {"drawing branches"}


def run(*arguments: Any, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join((str(ROOT), str(HERE), os.environ.get("PYTHONPATH", "")))
    return subprocess.run(
        [sys.executable, "-W", "ignore", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file for each case as it was compiled, and what it returned afterwards."""
    place = tmp_path_factory.mktemp("programs")
    for name, case in CASES.items():
        compiled = neuron_compiler.compile_exported(export(case))
        compiled.save(place / f"{name}.program")
        torch.save(results(compiled, case), place / f"{name}.expected")
    return place


@pytest.fixture(scope="module")
def loaded(folder: Path) -> dict[str, Any]:
    """What a process found that loaded all of them but those that need a compiler, which pickle was taken from."""
    static = [name for name, case in CASES.items() if case.dynamic is None and name not in BUILT_LATER]
    done = run(HERE / "load_programs.py", folder, *static)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", [n for n, case in CASES.items() if case.dynamic is None and n not in BUILT_LATER])
def test_a_fresh_process_gives_the_same_bits(loaded: dict[str, Any], name: str) -> None:
    assert loaded["same"][name] == [True]


def test_loading_imports_no_compiler(loaded: dict[str, Any]) -> None:
    assert loaded["imported"] == []


def test_sizes_to_come_are_compiled_by_a_fresh_process(folder: Path) -> None:
    names = [name for name, case in CASES.items() if case.dynamic is not None or name in BUILT_LATER]
    done = run(HERE / "load_programs.py", folder, *names)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["same"] == {name: [True] for name in names}


# --- one small program ---------------------------------------------------------------------------------------------


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.again = nn.Linear(4, 3)
        self.again.weight = self.linear.weight
        self.register_buffer("base", torch.arange(12.0))
        self.register_buffer("slice", self.base[4:8])
        self.register_buffer("hidden", torch.full((3,), 0.5), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + self.again(x * self.slice) + self.hidden + self.base.sum()


X = torch.linspace(-1, 1, 8).reshape(2, 4)


@pytest.fixture(scope="module")
def small() -> tuple[Small, Any]:
    torch.manual_seed(1)
    model = Small()
    return model, neuron_compiler.compile_exported(torch.export.export(model, (X,)))


@pytest.fixture
def file(small: tuple[Small, Any], tmp_path: Path) -> Path:
    path = tmp_path / "small.program"
    neuron_compiler.save(small[1], path)
    return path


@pytest.fixture
def names_only(small: tuple[Small, Any], tmp_path: Path) -> Path:
    path = tmp_path / "names.program"
    neuron_compiler.save(small[1], path, weights="reference")
    return path


def test_an_exported_program_is_saved_at_once(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    neuron_compiler.save(torch.export.export(model, (X,)), tmp_path / "p", options={"strict": True})
    program = neuron_compiler.load(tmp_path / "p")
    assert_close(program(X), model(X).detach())
    assert program.options.strict


def test_shared_memory_is_written_once_and_shared_again(small: tuple[Small, Any], file: Path) -> None:
    with zipfile.ZipFile(file) as archive_, archive_.open(saving.TENSORS) as member:
        content = member.read()
    assert tensor_file.parsed(content, "it").keys() == {"linear.weight", "linear.bias", "again.bias", "base", "hidden"}
    program = neuron_compiler.load(file)
    assert program.weights["linear.weight"] is program.weights["again.weight"]
    program.weights["base"].fill_(2.0)
    assert program.weights["slice"].tolist() == [2.0] * 4
    assert torch.equal(program.weights["hidden"], small[0].hidden)


def test_other_tools_read_the_weights(tmp_path: Path) -> None:
    model = nn.Conv2d(2, 4, 3).to(memory_format=torch.channels_last)
    neuron_compiler.save(torch.export.export(model, (torch.randn(1, 2, 5, 5),)), tmp_path / "p")
    with zipfile.ZipFile(tmp_path / "p") as archive_:
        archive_.extract(saving.TENSORS, tmp_path)
    found = load_file(tmp_path / saving.TENSORS)
    assert_close(found, {name: tensor.detach() for name, tensor in model.named_parameters()}, check_stride=False)
    save_file({n: t.contiguous() * 2 for n, t in found.items()}, tmp_path / "doubled.safetensors")
    program = neuron_compiler.load(tmp_path / "p", weights=tmp_path / "doubled.safetensors")
    x = torch.randn(1, 2, 5, 5)
    assert_close(program(x), 2 * model(x).detach(), rtol=1e-4, atol=1e-5)
    assert neuron_compiler.load(tmp_path / "p").weights["weight"].stride() == model.weight.stride()


def test_weights_by_reference_are_those_given(small: tuple[Small, Any], names_only: Path, file: Path) -> None:
    assert names_only.stat().st_size < file.stat().st_size
    torch.manual_seed(5)
    other = Small()
    for weights in (other, other.state_dict()):
        program = neuron_compiler.load(names_only, weights=weights)
        assert_close(program(X), other(X).detach())
        assert program.weights["linear.bias"].data_ptr() == other.linear.bias.data_ptr()
    assert_close(neuron_compiler.load(file, weights=other)(X), other(X).detach())


def test_weights_that_do_not_belong_are_refused(names_only: Path, tmp_path: Path) -> None:
    good = dict(Small().state_dict())
    wrong: list[tuple[Any, str]] = [
        (None, "'linear.weight' the file holds no values of it, and none were given, nor 5 others"),
        ({k: v for k, v in good.items() if k != "again.bias"}, "'again.bias' is not among those given"),
        ({**good, "linear.bias": torch.zeros(4)}, r"'linear.bias' is float32\[4\]; .* float32\[3\]"),
        ({**good, "linear.bias": torch.zeros(3).double()}, r"'linear.bias' is float64\[3\]"),
        ({**good, "linear.bias": [0, 0, 0]}, "'linear.bias' is list"),
        ({**good, "linear.bias": torch.zeros(3, device="meta")}, "'linear.bias' lies on meta"),
        ({**good, "again.weight": good["linear.weight"] + 1}, "were one tensor"),
        (3, "not int"),
        (str(tmp_path / "missing.safetensors"), "cannot be read"),
    ]
    for weights, message in wrong:
        with pytest.raises(ArtifactError, match=message):
            neuron_compiler.load(names_only, weights=weights)
    torch.save(good, tmp_path / "weights.pt")
    with pytest.raises(ArtifactError, match=r"no safetensors file(.|\n)*torch\.load"):
        neuron_compiler.load(names_only, weights=tmp_path / "weights.pt")
    # Equal values are tied enough, NaN included.
    good["linear.weight"][0, 0] = float("nan")
    assert neuron_compiler.load(names_only, weights={**good, "again.weight": good["linear.weight"].clone()})(X)[
        0, 0
    ].isnan()


def test_what_is_loaded_is_saved_again(small: tuple[Small, Any], file: Path, tmp_path: Path) -> None:
    neuron_compiler.load(file).save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == file.read_bytes()
    assert torch.equal(neuron_compiler.load(tmp_path / "again")(X), small[1](X))


def test_sizes_of_the_file_and_those_to_come(tmp_path: Path) -> None:
    case = CASES["attention_of_any_size"]
    compiled = neuron_compiler.compile_exported(export(case))
    first, second = case.args(), case.others[0]()
    expected = compiled(*first)
    compiled.save(tmp_path / "one")
    LEDGER.clear()
    program = neuron_compiler.load(tmp_path / "one")
    assert torch.equal(program(*first), expected)
    assert LEDGER.total("compile") == 0
    wanted = compiled(*second)
    assert torch.equal(program(*second), wanted)
    assert LEDGER.total("compile") == 2
    program.save(tmp_path / "two")
    LEDGER.clear()
    both = neuron_compiler.load(tmp_path / "two")
    assert torch.equal(both(*second), wanted)
    assert torch.equal(both(*first), expected)
    assert LEDGER.total("compile") == 0


def test_a_file_without_the_exported_program_names_its_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from neuron_compiler.saved import exported_text
    from neuron_compiler.saved.values import Inexpressible

    def refuse(program: Any) -> bytes:
        raise Inexpressible("PyTorch has no form for it")

    monkeypatch.setattr(exported_text, "dumps", refuse)
    case = CASES["derived_size"]
    compiled = neuron_compiler.compile_exported(export(case))
    args = case.args()
    expected = compiled(*args)
    compiled.save(tmp_path / "p")
    program = neuron_compiler.load(tmp_path / "p")
    assert torch.equal(program(*args), expected)
    with pytest.raises(
        RuntimeFault, match=r"no program for \(s\d+ = 5\); it was saved with \(s\d+ = 3\)(.|\n)*no form"
    ):
        program(*case.others[0]())
    branches = neuron_compiler.compile_exported(export(CASES["drawing branches"]))
    with pytest.raises(ArtifactError, match="cannot be saved: a step holds a graph of its own"):
        branches.save(tmp_path / "q")
    assert not (tmp_path / "q").exists()


# --- machine code that does not fit --------------------------------------------------------------------------------


def test_another_processor_or_release_compiles_again(
    small: tuple[Small, Any], file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(machine, "processor", lambda: ("Old CPU", frozenset({"fpu"})))
    program = neuron_compiler.load(file)
    (entry,) = LEDGER.counts("recompile")
    assert "this processor has no" in entry.cause
    assert "compiled again from its text" in caplog.text
    assert LEDGER.total("compile") == 1
    assert torch.equal(program(X), small[1](X))


def test_machine_code_belongs_to_a_release_and_a_processor() -> None:
    made, on = machine.versions(), machine.describe()
    assert machine.why_other(made, on) == ""
    assert machine.why_other({**made, "torch": "1.0"}, on) == ""
    assert "jaxlib 0.1" in machine.why_other({**made, "jaxlib": "0.1"}, on)
    assert "made for riscv" in machine.why_other(made, {**on, "architecture": "riscv"})
    assert "has no avx9" in machine.why_other(made, {**on, "features": [*on["features"], "avx9"]})


def test_a_recompiled_program_keeps_its_checks_and_emulation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["looked"]
    compiled = neuron_compiler.compile_exported(export(case), options={"emulation": "tile", "target": "trn3"})
    compiled.save(tmp_path / "p")
    monkeypatch.setattr(machine, "version", lambda package: "0.0")
    program = neuron_compiler.load(tmp_path / "p")
    assert program.options.emulation == "tile"
    assert program.options.target == "trn3"
    args = case.args()
    assert torch.equal(program(*args), compiled(*args))
    with pytest.raises(IndexError):
        program(torch.randn(5, 2), torch.tensor([0, 1, 5]))


# --- files that are none -------------------------------------------------------------------------------------------


def test_every_damage_is_found(file: Path, tmp_path: Path) -> None:
    content = file.read_bytes()
    bad = tmp_path / "bad"
    for length in (0, 1, 30, 100, len(content) // 2, len(content) - 1):
        bad.write_bytes(content[:length])
        with pytest.raises(ArtifactError):
            neuron_compiler.load(bad)
    expected = neuron_compiler.load(file)(X)
    step = max(len(content) // 97, 1)
    for position in range(0, len(content), step):
        bad.write_bytes(content[:position] + bytes([content[position] ^ 0x55]) + content[position + 1 :])
        try:
            program = neuron_compiler.load(bad)
        except ArtifactError:
            continue
        # A byte that nothing reads, such as a date.
        assert torch.equal(program(X), expected), position


@pytest.mark.parametrize("flipped", [0x01, 0x55, 0x80, 0xFF])
def test_a_damaged_directory_is_found(file: Path, tmp_path: Path, flipped: int) -> None:
    """Each byte of it: places before the file, other compressions, encryption, sizes beyond the end."""
    content = file.read_bytes()
    end = content.rindex(b"PK\x05\x06")
    bad = tmp_path / "bad"
    for position in range(int.from_bytes(content[end + 16 : end + 20], "little"), len(content)):
        bad.write_bytes(content[:position] + bytes([content[position] ^ flipped]) + content[position + 1 :])
        with suppress(ArtifactError), archive.reading(bad) as reader:
            for name in reader.manifest["members"]:
                assert reader.read(name) in content, position


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2)}, tmp_path / "torch")
    torch.export.save(torch.export.export(nn.Linear(2, 2), (torch.ones(2),)), tmp_path / "exported.pt2")
    (tmp_path / "text").write_text("no program")
    for name in ("torch", "exported.pt2"):
        with pytest.raises(ArtifactError, match=f"{name} is no compiled program"):
            neuron_compiler.load(tmp_path / name)
    with pytest.raises(ArtifactError, match="text is damaged: it is no whole archive"):
        neuron_compiler.load(tmp_path / "text")
    for missing in (tmp_path / "none", tmp_path):
        with pytest.raises(ArtifactError, match="cannot be read"):
            neuron_compiler.load(missing)


def rewritten(file: Path, change: Callable[[dict[str, Any]], None], to: Path) -> Path:
    """The file with another manifest."""
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(to, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == archive.MANIFEST:
                manifest = json.loads(content)
                change(manifest)
                content = json.dumps(manifest).encode()
            new.writestr(name, content)
    return to


def test_a_later_format_and_a_broken_manifest_are_refused(file: Path, tmp_path: Path) -> None:
    def later(manifest: dict[str, Any]) -> None:
        manifest["format_version"] = 2
        manifest["versions"]["neuron_compiler"] = "9.0"

    with pytest.raises(ArtifactError, match=r"of format 2; this release reads format 1(.|\n)*neuron_compiler 9\.0"):
        neuron_compiler.load(rewritten(file, later, tmp_path / "later"))
    with zipfile.ZipFile(file) as archive_:
        keys = json.loads(archive_.read(archive.MANIFEST)).keys()
    for key in keys - {"format_version", "why_not_exported", "left_out"}:
        for change in (lambda m, key=key: m.pop(key), lambda m, key=key: m.update({key: 7})):
            if key == "name":
                continue
            with pytest.raises(ArtifactError):
                neuron_compiler.load(rewritten(file, change, tmp_path / "broken"))


def test_a_file_cannot_have_python_evaluated(file: Path, tmp_path: Path) -> None:
    def guard(manifest: dict[str, Any]) -> None:
        manifest["signature"]["guards"] = ["__import__('os').system('true') == 0"]

    with pytest.raises(ArtifactError, match="is not known"):
        neuron_compiler.load(rewritten(file, guard, tmp_path / "p"))(X)


# --- saving that does not come to its end --------------------------------------------------------------------------

KILLED = """
import os, signal, sys
import torch
import neuron_compiler
from neuron_compiler.saved import archive
signal.signal(signal.SIGINT, signal.default_int_handler)  # who is started in the background ignores it
program = torch.export.export(torch.nn.Linear(4, 2), (torch.ones(2, 4),))
compiled = neuron_compiler.compile_exported(program)
add = archive.Writer.add
def slow(self, name, content):
    found = add(self, name, content)
    os.kill(os.getpid(), int(sys.argv[2]))
    return found
archive.Writer.add = slow
compiled.save(sys.argv[1])
"""


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_a_process_that_is_killed_leaves_the_old_file(file: Path, sent: signal.Signals) -> None:
    before = file.read_bytes()
    done = run("-c", KILLED, file, int(sent))
    assert done.returncode in (-sent, 128 + sent), done.stderr
    assert file.read_bytes() == before
    left = [path.name for path in file.parent.iterdir() if path != file]
    assert len(left) == (sent is signal.SIGKILL)
    assert all(name.startswith(".small.program.") for name in left)


def test_a_file_that_cannot_be_written_stays_as_it_was(
    small: tuple[Small, Any], file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = file.read_bytes()

    def full(self: Any, name: str, content: bytes) -> str:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(archive.Writer, "add", full)
        with pytest.raises(ArtifactError, match="No space left on device"):
            small[1].save(file)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]
    for place in (tmp_path / "no" / "folder", tmp_path, Path("/dev/null")):
        with pytest.raises(ArtifactError):
            small[1].save(place)
    assert Path("/dev/null").is_char_device()


def test_a_link_is_followed_and_the_mode_kept(small: tuple[Small, Any], file: Path, tmp_path: Path) -> None:
    file.chmod(0o640)
    link = tmp_path / "link"
    link.symlink_to(file)
    small[1].save(link)
    assert link.is_symlink()
    assert file.stat().st_mode & 0o777 == 0o640


def test_what_cannot_be_saved_says_what_to_do(small: tuple[Small, Any], tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    for thing in (model, torch.compile(model, backend="neuron"), lambda x: x, 3):
        with pytest.raises(
            ArtifactError, match=r"try: neuron_compiler\.save\(torch\.export\.export\(module, args\), path\)"
        ):
            neuron_compiler.save(thing, tmp_path / "p")
    with pytest.raises(ArtifactError, match="it takes one of 'safetensors', 'reference'"):
        small[1].save(tmp_path / "p", weights="pickle")
    with pytest.raises(ArtifactError, match="options"):
        neuron_compiler.save(small[1], tmp_path / "p", options={"strict": True})
