"""Compiles a C++ file once for many processes: one of them compiles, the others wait; the result is whole or not there.

In: a path and the compiler's command line. Out: a file at that path, or what kept it from being made.
"""

from __future__ import annotations

import fcntl
import logging
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

logger = logging.getLogger(__name__)


def build_once(
    target: Path,
    command: Callable[[Path], list[str]],
    shown: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> None:
    """Compile to ``target`` if it is not there.

    Args:
        target: path of the library; its folder is made.
        command: the compiler's command line that writes to the path it is given.
        shown: entered while the compiler works.

    Raises:
        OSError: the folder cannot be written, or the compiler not be run (its ``filename`` is the compiler's name).
        subprocess.CalledProcessError: the compiler failed; ``stderr`` says how.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with _alone(target.with_suffix(".lock")):
        if target.is_file():
            return
        with tempfile.TemporaryDirectory(dir=target.parent, prefix="building-") as folder:
            made = Path(folder) / target.name
            line = command(made)
            logger.info("building %s: %s", target, " ".join(line))
            with shown():
                subprocess.run(line, capture_output=True, text=True, check=True)
            os.replace(made, target)


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Holds the lock; it goes with the process, however that ends."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
