"""Runs code in a fresh interpreter that finds the library of this one."""

from __future__ import annotations

import os
import subprocess
import sys

REGISTER = "import torch, neuron_compiler.eager_fallback\n"


def run(code: str, check: bool = True, **environ: str) -> subprocess.CompletedProcess[str]:
    """What the code prints; its variables are those of this process, with ``environ`` over them."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environ},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert not check or done.returncode == 0, done.stderr
    return done


def on_device(code: str, **environ: str) -> list[str]:
    """Lines that the code prints with the device registered."""
    return run(REGISTER + code, **environ).stdout.splitlines()
