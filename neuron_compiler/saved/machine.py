"""What machine code depends on: the release of XLA that made it, and the processor that it was made for.

In: nothing, or what a file says of where it was made. Out: a description, or why the machine code does not fit here.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from neuron_compiler import __version__

CPUINFO = Path("/proc/cpuinfo")


def processor(description: Path = CPUINFO) -> tuple[str, frozenset[str]]:
    """Model and flags, from Linux's description of the first core."""
    try:
        lines = description.read_text().partition("\n\n")[0].splitlines()
    except OSError:
        return platform.processor() or platform.machine(), frozenset()
    pairs = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    model = pairs.get("model name") or platform.machine()
    return model, frozenset((pairs.get("flags") or pairs.get("Features") or "").split())


def versions() -> dict[str, str]:
    """Releases of what makes a program."""
    return {
        "neuron_compiler": __version__,
        "torch": str(torch.__version__),
        "jax": version("jax"),
        "jaxlib": version("jaxlib"),
    }


def describe() -> dict[str, Any]:
    """The processor as a file keeps it."""
    model, features = processor()
    return {"architecture": platform.machine(), "processor": model, "features": sorted(features)}


def why_other(made: Mapping[str, Any], on: Mapping[str, Any]) -> str:
    """Why machine code made by these releases on that processor does not run here; empty where it does."""
    if (here := version("jaxlib")) != made["jaxlib"]:
        return f"made by jaxlib {made['jaxlib']}, here is {here}"
    if (architecture := platform.machine()) != on["architecture"]:
        return f"made for {on['architecture']}, here is {architecture}"
    model, features = processor()
    if not features and model != on["processor"]:
        return f"made on {on['processor']}, here is {model}"
    if missing := sorted(set(on["features"]) - features):
        return f"made on {on['processor']}; this processor has no {', '.join(missing[:5])}"
    return ""
