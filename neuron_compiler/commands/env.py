"""What a report of a fault needs to say about the machine: versions, processor, threads, variables, registration."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from neuron_compiler.saved.machine import processor

HELP = "what a bug report needs to know of this machine"

PACKAGES = (
    "neuron-compiler",
    "torch",
    "jax",
    "jaxlib",
    "numpy",
    "ml_dtypes",
    "networkx",
    "rich",
    "transformers",
    "timm",
)

X86 = {"fma", "avx", "avx2", "avx512f", "avx512_bf16", "avx512_fp16", "avx512_vnni", "avx_vnni", "amx_bf16", "amx_int8"}
ARM = {"asimd", "sve", "sve2", "bf16", "i8mm"}
FEATURES = frozenset(X86 | ARM)
"""Processor flags that change which kernels run, as Linux names them."""

ENTRY_POINTS = (("torch_dynamo_backends", "neuron"), ("torch.backends", "neuron_compiler"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """This command has no arguments."""


def run(arguments: argparse.Namespace) -> int:
    """Print it."""
    for title, lines in sections():
        print(title)
        for name, value in lines:
            print(f"  {name}: {value}")
    return 0


Lines = list[tuple[str, str]]


def sections() -> Iterator[tuple[str, Lines]]:
    """Everything, by title."""
    yield "versions", [("python", platform.python_version()), *((name, version(name)) for name in PACKAGES)]
    yield "machine", list(machine())
    yield "registration", list(registration())
    from neuron_compiler import options

    yield "options", [(name, repr(value)) for name, value in vars(options.from_environment()).items()]
    yield "environment", sorted(options.shown_environment().items()) or [("-", "no variable is set that matters here")]


def version(package: str) -> str:
    """Installed version; of this package also where it is loaded from."""
    from neuron_compiler import __file__ as own
    from neuron_compiler import __version__

    if package == "neuron-compiler":
        return f"{__version__} from {Path(str(own)).parent}"
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def machine() -> Iterator[tuple[str, str]]:
    """Processor, memory, threads, compiler."""
    import torch

    model, flags = processor()
    yield "system", platform.platform()
    yield "processor", model
    yield "features", " ".join(sorted(FEATURES & flags)) or "unknown"
    yield "cores", f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} may be used"
    yield "threads", f"{torch.get_num_threads()} in torch, {torch.get_num_interop_threads()} between ops"
    yield "torch kernels", str(torch.backends.cpu.get_cpu_capability())
    yield "C++ compiler", cxx()


def cxx() -> str:
    """The C++ compiler that Inductor would use, or why there is none."""
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        command = get_cpp_compiler()
        answer = subprocess.run([command, "--version"], capture_output=True, text=True, check=True, timeout=30)
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        return str(error).splitlines()[0]
    return f"{command}: {answer.stdout.splitlines()[0]}"


def registration() -> Iterator[tuple[str, str]]:
    """What PyTorch knows of this package."""
    from torch._dynamo.backends.registry import list_backends
    from torch._logging._internal import log_registry

    from neuron_compiler import logs, options

    for group, name in ENTRY_POINTS:
        found = [
            f"{e.value} of {e.dist.name if e.dist else '?'}" for e in metadata.entry_points(group=group, name=name)
        ]
        yield f"entry point {group}", ", ".join(found) or "none: the package is not installed"
    yield "backend neuron", "known" if "neuron" in list_backends(exclude_tags=()) else "unknown"
    registered = logs.ALIAS in log_registry.log_alias_to_log_qnames
    off = options.autoload_disabled()
    yield "autoload", "off by TORCH_DEVICE_BACKEND_AUTOLOAD=0" if off else "on"
    yield "TORCH_LOGS names", "registered" if registered else "not registered"
    yield "python executable", sys.executable
