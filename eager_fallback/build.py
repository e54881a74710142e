"""Compiles the C++ part of the device, once per torch minor: ``shim/shim.cpp`` to a library in the user's cache.

In: the sources and the torch of this process. Out: the path of the library. Invariants: one process compiles, others
wait for it; the file appears under its name only when it is complete.
"""

from __future__ import annotations

import fcntl
import logging
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from neuron_compiler import device_library, options
from neuron_compiler.errors import DeviceError

STANDARD = "c++20"
FLAGS = ("-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-s")

logger = logging.getLogger(__name__)


def command(output: Path) -> list[str]:
    """The compiler's command line: no build system, no Python headers."""
    home = Path(torch.__file__).parent
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    return [
        options.cxx(),
        f"-std={STANDARD}",
        *FLAGS,
        f"-D_GLIBCXX_USE_CXX11_ABI={abi}",
        f"-I{home / 'include'}",
        str(device_library.SOURCES / "shim.cpp"),
        "-o",
        str(output),
        f"-L{home / 'lib'}",
        "-ltorch_cpu",
        "-lc10",
        # What is missing shows here, not when it is loaded.
        "-Wl,-z,defs",
    ]


def build(folder: Path | None = None) -> Path:
    """The library in a folder, the user's cache where none is given, compiled if it is not there.

    Raises DeviceError, with what to do about it.
    """
    target = device_library.cached() if folder is None else folder / device_library.file_name()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone(target.with_suffix(".lock")):
            if not target.is_file():
                _compile(target)
    except OSError as error:
        raise DeviceError(
            f"the library of device neuron cannot be written to {target.parent}: {error}",
            when="building device neuron",
            hint="set NEURON_COMPILER_CACHE to a folder that can be written",
        ) from error
    return target


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Holds the lock; it goes with the process, however that ends."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compile(target: Path) -> None:
    # Drags in the driver of the compiler: not for those who find the library built.
    from neuron_compiler import progress

    with tempfile.TemporaryDirectory(dir=target.parent, prefix="building-") as folder:
        made = Path(folder) / target.name
        line = command(made)
        logger.info("building %s: %s", target, " ".join(line))
        try:
            if progress.wanted():
                with progress.Progress("device", after=1.0).stage("compiling its C++ part, once for this torch"):
                    done = subprocess.run(line, capture_output=True, text=True)
            else:
                done = subprocess.run(line, capture_output=True, text=True)
        except OSError as error:
            raise DeviceError(
                f"device neuron needs a C++ compiler once, and {line[0]!r} cannot be run: {error.strerror}",
                when="building device neuron",
                hint="install g++ (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++), or set CXX to one",
            ) from error
        if done.returncode != 0:
            fault = DeviceError(
                f"{line[0]} could not compile device neuron: exit code {done.returncode}",
                when="building device neuron",
                hint=f"a compiler that knows {STANDARD} (g++ 11 or newer, clang 16 or newer); CXX chooses it",
            )
            fault.add_note("\n".join(done.stderr.splitlines()[:40]))
            raise fault
        os.replace(made, target)
