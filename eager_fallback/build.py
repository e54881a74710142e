"""Compiles the C++ part of the device, once per torch minor: ``shim/shim.cpp`` to a library in the user's cache.

In: the sources and the torch of this process. Out: the path of the library.
"""

from __future__ import annotations

import subprocess
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

from neuron_compiler import device_library, native, options
from neuron_compiler.errors import DeviceError

STANDARD = "c++20"
FLAGS = ("-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-s")


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
        native.build_once(target, command, _shown)
    except subprocess.CalledProcessError as error:
        fault = DeviceError(
            f"{error.cmd[0]} could not compile device neuron: exit code {error.returncode}",
            when="building device neuron",
            hint=f"a compiler that knows {STANDARD} (g++ 11 or newer, clang 16 or newer); CXX chooses it",
        )
        fault.add_note("\n".join(error.stderr.splitlines()[:40]))
        raise fault from None
    except OSError as error:
        if error.filename == options.cxx():
            raise DeviceError(
                f"device neuron needs a C++ compiler once, and {error.filename!r} cannot be run: {error.strerror}",
                when="building device neuron",
                hint="install g++ (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++), or set CXX to one",
            ) from error
        raise DeviceError(
            f"the library of device neuron cannot be written to {target.parent}: {error}",
            when="building device neuron",
            hint="set NEURON_COMPILER_CACHE to a folder that can be written",
        ) from error
    return target


def _shown() -> AbstractContextManager[object]:
    # Drags in the driver of the compiler: not for those who find the library built.
    from neuron_compiler import progress

    if not progress.wanted():
        return nullcontext()
    return progress.Progress("device", after=1.0).stage("compiling its C++ part, once for this torch")
