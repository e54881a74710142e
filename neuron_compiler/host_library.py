"""The compiled part of the runtime on this host: custom calls of XLA programs, in C++, built when first needed.

In: nothing. Out: the path of a library, or why there is none. Invariant: the name says for which source, interface of
XLA and platform it was built. It is small (a second to build), and programs run without it: what changes then is said
in ``host/``'s files and in docs/architecture.md.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

from neuron_compiler import native, options

SOURCES = Path(__file__).parent / "host"
PREBUILT = Path(__file__).parent / "host" / "lib"
"""Where a wheel carries the library."""

FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-s")


def headers() -> Path:
    """Where jaxlib keeps the C interface of XLA's custom calls."""
    spec = importlib.util.find_spec("jaxlib")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(places[0], "include") if places else Path()


def interface() -> str:
    """Version of that interface, as ``0.3``."""
    text = (headers() / "xla" / "ffi" / "api" / "c_api.h").read_text()
    return ".".join(re.findall(r"^#define XLA_FFI_API_(?:MAJOR|MINOR) (\d+)", text, re.MULTILINE))


def sources() -> list[Path]:
    """The C++ files, headers among them."""
    return sorted(path for path in SOURCES.iterdir() if path.suffix in (".cpp", ".h"))


def file_name() -> str:
    """Name of the library that fits this process."""
    content = hashlib.sha256(b"".join(path.read_bytes() for path in sources())).hexdigest()[:12]
    return f"neuron_host-xla{interface()}-{sys.platform}-{os.uname().machine}-{content}.so"


def command(output: Path) -> list[str]:
    """The compiler's command line."""
    compiled = [str(path) for path in sources() if path.suffix == ".cpp"]
    return [options.cxx(), *FLAGS, f"-I{headers()}", *compiled, "-o", str(output), "-Wl,-z,defs"]


def build(folder: Path | None = None) -> Path:
    """The library in a folder, the user's cache where none is given, compiled if it is not there.

    Raises OSError or subprocess.CalledProcessError.
    """
    target = (folder or options.cache_folder()) / file_name()
    native.build_once(target, command)
    return target


def find_or_build() -> tuple[Path | None, str]:
    """The library, found in the package or the cache or built there; else None and the cause."""
    try:
        prebuilt = PREBUILT / file_name()
        return (prebuilt if prebuilt.is_file() else build()), ""
    except subprocess.CalledProcessError as error:
        first = next(iter(error.stderr.splitlines()), "")
        return None, f"{error.cmd[0]} failed with exit code {error.returncode}: {first}"
    except OSError as error:
        return None, str(error)
