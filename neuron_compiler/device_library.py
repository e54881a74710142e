"""Where the compiled part of device ``neuron`` is looked for: in the package, then in the user's cache.

In: nothing. Out: a path, or None where it has not been built. Invariant: the name says for which sources, torch minor,
platform and C++ ABI it was built, so that a library for another torch is never even opened. Nothing is imported that
``import torch`` has not: the hook of ``import torch`` asks here.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from pathlib import Path

from neuron_compiler import options

SOURCES = Path(__file__).parent / "eager_fallback" / "shim"
PREBUILT = Path(__file__).parent / "eager_fallback" / "lib"
"""Where a wheel carries libraries."""


def sources() -> list[Path]:
    """The C++ files."""
    return sorted(path for path in SOURCES.iterdir() if path.suffix in (".cpp", ".h"))


def source_hash() -> str:
    """Twelve characters that change with any file."""
    found = hashlib.sha256()
    for path in sources():
        found.update(f"{path.name}\0".encode())
        found.update(path.read_bytes())
    return found.hexdigest()[:12]


def torch_minor() -> str:
    """``2.13`` of the torch in this process."""
    import torch

    stated = re.match(r"\d+\.\d+", torch.__version__)
    return stated.group() if stated else torch.__version__


def file_name() -> str:
    """Name of the library that fits this process."""
    import torch

    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    return f"neuron_shim-torch{torch_minor()}-{sys.platform}-{os.uname().machine}-abi{abi}-{source_hash()}.so"


def cached() -> Path:
    """Where the library is put when it is built here."""
    return options.cache_folder() / file_name()


def find() -> Path | None:
    """The library that fits, if it has been built."""
    name = file_name()
    places = (PREBUILT / name, options.cache_folder() / name)
    return next((path for path in places if path.is_file()), None)
