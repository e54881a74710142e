"""Building, loading and registering: once, where it is wanted, and with a clear refusal where it is not."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from in_fresh_process import on_device, run

from neuron_compiler import device_library, host_library, options
from neuron_compiler.commands import setup
from neuron_compiler.eager_fallback import build, loader, register
from neuron_compiler.errors import DeviceError, OptionsError
from neuron_compiler.trainium import target


def test_registered_once_by_any_number_of_threads() -> None:
    threads = [threading.Thread(target=register.register) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert register.is_registered()
    assert torch._C._get_privateuse1_backend_name() == "neuron"
    assert torch.accelerator.current_accelerator() == torch.device("neuron")
    assert loader.load() is loader.loaded()


def test_name_of_the_library_says_what_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    name = device_library.file_name()
    minor = ".".join(torch.__version__.split(".")[:2])
    assert f"-torch{minor}-{sys.platform}-{os.uname().machine}-abi" in name
    assert device_library.source_hash() in name
    monkeypatch.setattr(torch, "__version__", "2.99.0+cpu")
    assert device_library.file_name() == name.replace(f"torch{minor}", "torch2.99")


def test_hash_changes_with_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in device_library.sources():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    before = device_library.source_hash()
    monkeypatch.setattr(device_library, "SOURCES", tmp_path)
    assert device_library.source_hash() == before
    (tmp_path / "memory.h").write_text("//")
    assert device_library.source_hash() != before


def test_a_library_of_another_torch_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_COMPILER_CACHE", str(tmp_path))
    monkeypatch.setattr(device_library, "PREBUILT", tmp_path / "package")
    wanted = device_library.file_name()
    (tmp_path / wanted.replace(f"torch{device_library.torch_minor()}", "torch2.1")).touch()
    assert device_library.find() is None
    (tmp_path / wanted).touch()
    assert device_library.find() == tmp_path / wanted
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / wanted).touch()
    assert device_library.find() == tmp_path / "package" / wanted


def test_a_built_library_is_not_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", None)
    if device_library.cached().is_file():
        assert build.build() == device_library.cached()


def test_built_by_the_compiler_that_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_COMPILER_CACHE", str(tmp_path / "cache"))
    compiler = tmp_path / "compiler"
    compiler.write_text(
        '#!/bin/sh\nfor last; do if [ "$before" = -o ]; then echo made > "$last"; fi; before=$last; done\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    made = build.build()
    assert made == tmp_path / "cache" / device_library.file_name()
    assert made.read_text() == "made\n"
    assert sorted(p.suffix for p in made.parent.iterdir()) == [".lock", ".so"]


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_COMPILER_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(DeviceError, match="needs a C\\+\\+ compiler once, and 'no-such-compiler'") as raised:
        build.build()
    assert "install g++" in raised.value.hint
    assert [p for p in tmp_path.iterdir() if p.suffix != ".lock"] == []


def test_a_compiler_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_COMPILER_CACHE", str(tmp_path))
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\necho 'unknown -std=c++20' >&2\nexit 3\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(DeviceError, match="exit code 3") as raised:
        build.build()
    assert raised.value.__notes__ == ["unknown -std=c++20"]
    assert device_library.find() is None


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NEURON_COMPILER_CACHE", str(tmp_path / "file"))
    with pytest.raises(DeviceError, match="cannot be written") as raised:
        build.build()
    assert "NEURON_COMPILER_CACHE" in raised.value.hint


def test_a_broken_library(tmp_path: Path) -> None:
    (tmp_path / "x.so").write_text("no library")
    with pytest.raises(DeviceError, match="cannot be loaded"):
        loader.Shim(tmp_path / "x.so")


def test_another_device_in_the_process_is_left_alone() -> None:
    code = """
import torch
torch.utils.rename_privateuse1_backend("other")
try:
    import neuron_compiler.eager_fallback
except Exception as error:
    print(type(error).__name__, error)
print(torch._C._get_privateuse1_backend_name(), hasattr(torch, "neuron"))
"""
    lines = run(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0").stdout.splitlines()
    assert lines[0].startswith("DeviceError another package has registered device 'other'")
    assert lines[-1] == "other False"


def test_torch_neuronx_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "torch_neuronx.py").write_text("")
    code = "import torch\ntry:\n    import neuron_compiler.eager_fallback\nexcept Exception as error:\n    print(error)"
    done = run(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0", PYTHONPATH=str(tmp_path))
    assert done.stdout.startswith("torch_neuronx is installed here")


def test_import_torch_registers_what_is_built_and_compiles_nothing(tmp_path: Path) -> None:
    ask = """
import sys, torch
heavy = ("jax", "networkx", "torch._dynamo", "neuron_compiler.eager_fallback.build")
print([name for name in heavy if name in sys.modules])
print(torch._C._get_privateuse1_backend_name(), torch.accelerator.is_available(), hasattr(torch, "neuron"))
"""
    found = run(ask)
    assert (found.stdout.splitlines(), found.stderr) == (["[]", "neuron True True"], "")
    off = run(ask, NEURON_COMPILER_DEVICE="0")
    assert (off.stdout.splitlines(), off.stderr) == (["[]", "privateuseone False False"], "")
    absent = run(ask, NEURON_COMPILER_CACHE=str(tmp_path))
    assert (absent.stdout.splitlines(), absent.stderr) == (["[]", "privateuseone False False"], "")
    assert list(tmp_path.iterdir()) == []


def test_a_bad_variable_is_said_and_torch_is_imported() -> None:
    done = run("import torch; print(hasattr(torch, 'neuron'))", NEURON_RT_NUM_CORES="many")
    assert done.stdout == "False\n"
    assert "there is no device neuron in this process: OptionsError: NEURON_RT_NUM_CORES is 'many'" in done.stderr


@pytest.mark.parametrize(
    ("variables", "count"),
    [
        ({}, 1),
        ({"NEURON_RT_NUM_CORES": "4"}, 4),
        ({"NEURON_RT_VISIBLE_CORES": "3"}, 1),
        ({"NEURON_RT_VISIBLE_CORES": "0-3"}, 4),
        ({"NEURON_RT_VISIBLE_CORES": "0,2,5-7", "NEURON_RT_NUM_CORES": "64"}, 5),
    ],
)
def test_number_of_devices(variables: dict[str, str], count: int) -> None:
    assert options.device_count(variables) == count


@pytest.mark.parametrize("text", ["0", "x", "129", "3-1", "1-2-3"])
def test_number_of_devices_is_checked(text: str) -> None:
    for variable in ("NEURON_RT_NUM_CORES", "NEURON_RT_VISIBLE_CORES"):
        if (variable, text) not in {("NEURON_RT_VISIBLE_CORES", "0"), ("NEURON_RT_VISIBLE_CORES", "129")}:
            with pytest.raises(OptionsError, match=f"{variable} is '{text}'"):
                options.device_count({variable: text})


def test_memory_is_the_share_of_the_cores_in_a_device() -> None:
    assert register.MEMORY_BYTES.keys() == target.TARGETS.keys()
    for name, held in register.MEMORY_BYTES.items():
        chip = target.TARGETS[name]
        assert held == chip.hbm_bytes * (1 if name == "trn1" else 2) // chip.neuron_cores


def test_places_of_the_cache() -> None:
    assert options.cache_folder({"NEURON_COMPILER_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert options.cache_folder({"XDG_CACHE_HOME": "/b"}) == Path("/b/neuron_compiler")
    assert options.cache_folder({"XDG_CACHE_HOME": "b"}) == Path("~/.cache/neuron_compiler").expanduser()


def test_the_command_builds_and_tries(capsys: pytest.CaptureFixture[str]) -> None:
    assert setup.run(argparse.Namespace(package=False)) == 0
    assert capsys.readouterr().out.splitlines() == [
        "device neuron is ready: 1 of neuron:0",
        f"library: {loader.loaded().path}",
    ]


def test_the_command_builds_into_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lib").mkdir()
    for library in (device_library, host_library):
        monkeypatch.setattr(library, "PREBUILT", tmp_path / "lib")
        (tmp_path / "lib" / library.file_name()).touch()  # not compiled again
    assert setup.run(argparse.Namespace(package=True)) == 0
    shown = capsys.readouterr().out
    assert all(
        f"built: {tmp_path / 'lib' / library.file_name()}" in shown for library in (device_library, host_library)
    )


def test_several_devices() -> None:
    code = """
a, b = torch.ones(2, device="neuron:0"), torch.ones(2, device="neuron:1")
print(torch.neuron.device_count(), a.device, b.device, (b + b).device, b.to("neuron:0").device)
with torch.neuron.device(1):
    print(torch.neuron.current_device(), torch.ones(2, device="neuron").device, torch.ones(2).neuron().device)
print(torch.neuron.current_device(), torch.neuron.memory_allocated(1), torch.randn(2, device="neuron:1").device)
torch.neuron.set_device("neuron:1")
print(torch.neuron.get_device_name(), torch.accelerator.current_device_index(), b.resize_(9).untyped_storage().device)
for wrong in (lambda: a + b, lambda: torch.ones(1, device="neuron:2"), lambda: torch.neuron.set_device(2)):
    try:
        wrong()
    except (RuntimeError, ValueError) as error:
        print(type(error).__name__, str(error)[:50])
"""
    assert on_device(code, NEURON_RT_NUM_CORES="2") == [
        "2 neuron:0 neuron:1 neuron:1 neuron:0",
        "1 neuron:1 neuron:1",
        "0 8 neuron:1",
        "neuron:1 1 neuron:1",
        "RuntimeError Expected all tensors to be on the same device, but",
        "RuntimeError neuron error: invalid device ordinal 2, there are ",
        "ValueError there is no device neuron:2; there are 2, counted ",
    ]


def test_after_fork() -> None:
    code = """
import os
torch.ones(1, device="neuron")
child = os.fork()
if child == 0:
    print(torch.neuron._is_in_bad_fork(), torch.ones(2).sum().item())
    torch.manual_seed(1)
    for use in (lambda: torch.ones(1, device="neuron"), torch.neuron.init):
        try:
            use()
        except RuntimeError as error:
            print(error)
    os._exit(0)
os.waitpid(child, 0)
print(torch.neuron._is_in_bad_fork())
"""
    message = (
        "Cannot use device neuron in a forked process: its parent has used the device already. "
        "To use it with multiprocessing, take the 'spawn' start method."
    )
    # The child leaves without flushing, so its lines have to be written at once.
    lines = on_device("import functools; print = functools.partial(print, flush=True)\n" + code)
    assert lines == ["True 2.0", message, message, "False"]


def test_fork_before_first_use() -> None:
    code = """
import os
child = os.fork()
if child == 0:
    print(torch.neuron._is_in_bad_fork(), torch.ones(2, device="neuron").tolist(), flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""
    assert on_device(code) == ["False [1.0, 1.0]"]
