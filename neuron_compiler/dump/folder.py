"""Folders of a dump: numbered, never shared by two graphs or processes, and holding no half-written file."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from pathlib import Path

from neuron_compiler import options as options_module
from neuron_compiler.errors import DumpError
from neuron_compiler.options import Options

MAX_NAME = 100
"""Characters of a graph's name that go into its folder's name; file systems end at 255 bytes."""

_lock = threading.Lock()
_next_number: dict[str, int] = {}


def roots(options: Options) -> tuple[Path, ...]:
    """The folders that a compile is written below: the user's, and PyTorch's own where TORCH_COMPILE_DEBUG is set."""
    found = [] if options.dump is None else [Path(options.dump)]
    if options_module.torch_compile_debug():
        from torch._dynamo.utils import get_debug_dir

        found.append(Path(get_debug_dir()) / "neuron")
    return tuple(found)


class Folder:
    """One folder; a file appears in it whole or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def numbered(cls, root: Path, name: str) -> Folder:
        """Make ``root/0003_name``: the number counts this process's graphs, and goes past folders that exist.

        Raises DumpError where it cannot be made.
        """
        safe = re.sub(r"[^\w.-]", "_", name)[:MAX_NAME]
        key = os.path.abspath(root)
        with _lock:
            try:
                root.mkdir(parents=True, exist_ok=True)
                number = _next_number.get(key, 0)
                taken = {entry.partition("_")[0] for entry in os.listdir(root)}
                while not (f"{number:04d}" not in taken and _made(root / f"{number:04d}_{safe}")):
                    number += 1
            except OSError as error:
                raise _unwritable(root, error) from error
            _next_number[key] = number + 1
        return cls(root / f"{number:04d}_{safe}")

    def below(self, name: str) -> Folder:
        """Make a folder inside this one; DumpError where it cannot be made."""
        try:
            (self.path / name).mkdir()
        except OSError as error:
            raise _unwritable(self.path, error) from error
        return Folder(self.path / name)

    def write(self, name: str, text: str) -> Path:
        """Write a file and return its path; DumpError where that fails, with nothing left behind."""
        path, unfinished = self.path / name, self.path / f".{name}.unfinished"
        try:
            try:
                # Names of source files may hold bytes that are no text: shown, not refused.
                with open(unfinished, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
                    file.write(text)
                os.replace(unfinished, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    unfinished.unlink()
                raise
        except OSError as error:
            raise _unwritable(self.path, error) from error
        return path

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        try:
            (self.path / name).unlink(missing_ok=True)
        except OSError as error:
            raise _unwritable(self.path, error) from error


def _made(path: Path) -> bool:
    """Make a folder; False where another process was first."""
    try:
        path.mkdir()
    except FileExistsError:
        return False
    return True


def _unwritable(folder: Path, error: OSError) -> DumpError:
    return DumpError(
        f"cannot write to the dump folder {folder}: {error.strerror or error}",
        when="dump",
        hint="choose another folder with NEURON_COMPILER_DUMP or options={'dump': ...}, or leave it out",
    )
