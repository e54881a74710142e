"""The C++ library of the runtime: its name, where it is found, and what is said where it cannot be built."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from neuron_compiler import host_library, interop


def test_the_name_says_what_it_was_built_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    name = host_library.file_name()
    assert name.startswith(f"neuron_host-xla{host_library.interface()}-{sys.platform}-")
    assert all(part.isdigit() for part in host_library.interface().split("."))
    for path in host_library.sources():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(host_library, "SOURCES", tmp_path)
    assert host_library.file_name() == name
    for path in host_library.sources():
        path.write_bytes(path.read_bytes() + b"\n")
        assert host_library.file_name() != name
        name = host_library.file_name()


def test_what_a_wheel_carries_goes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(host_library, "PREBUILT", tmp_path)
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("NEURON_COMPILER_CACHE", str(tmp_path / "cache"))
    path, cause = host_library.find_or_build()
    assert path is None
    assert "no-such-compiler" in cause
    (tmp_path / host_library.file_name()).touch()
    assert host_library.find_or_build() == (tmp_path / host_library.file_name(), "")


def test_it_is_built_once_and_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NEURON_COMPILER_CACHE", str(tmp_path))
    path = host_library.build()
    assert path == tmp_path / host_library.file_name()
    built = path.stat().st_mtime_ns
    assert host_library.build().stat().st_mtime_ns == built
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".lock", ".so"]


@pytest.mark.parametrize(("cxx", "said"), [("no-such-compiler", "No such file"), ("false", "false failed")])
def test_a_compiler_that_fails_is_a_cause_and_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cxx: str, said: str
) -> None:
    monkeypatch.setenv("CXX", cxx)
    monkeypatch.setenv("NEURON_COMPILER_CACHE", str(tmp_path))
    path, cause = host_library.find_or_build()
    assert path is None
    assert said in cause


def test_a_folder_that_cannot_be_written_is_a_cause(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NEURON_COMPILER_CACHE", str(tmp_path / "file" / "below"))
    path, cause = host_library.find_or_build()
    assert path is None
    assert "below" in cause


def test_a_library_that_does_not_load_is_said_once_and_programs_run(tmp_path: Path) -> None:
    code = f"""
import pathlib, torch
from neuron_compiler import host_library
host_library.PREBUILT = pathlib.Path({str(tmp_path)!r})
(host_library.PREBUILT / host_library.file_name()).write_text("no library")
f = torch.compile(lambda x: x + 1, backend="neuron")
print(f(torch.ones(2)).tolist(), torch.compile(lambda x: x - 1, backend="neuron")(torch.ones(2)).tolist())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[2.0, 2.0] [0.0, 0.0]", done.stderr
    assert done.stderr.count("take subnormal numbers for zero") == 1


def test_this_process_has_it() -> None:
    assert interop.keeps_subnormals()
