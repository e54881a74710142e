"""The file: a zip archive of stored members, with a manifest that holds the digest of each.

In: members. Out: a file that is there whole or not at all: it is written beside its place and renamed. Reading checks
what is read against the manifest, and refuses what is damaged, foreign or of a later release.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from neuron_compiler.errors import ArtifactError

FORMAT = "neuron_compiler compiled program"
FORMAT_VERSION = 1
MANIFEST = "manifest.json"
# Zip has no dates before 1980, and the same program is to give the same file.
_DATE = (1980, 1, 1, 0, 0, 0)


class Writer:
    """Members of an archive that is being written."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self.archive = archive
        self.members: dict[str, dict[str, Any]] = {}

    def add(self, name: str, content: bytes) -> str:
        """A member; returns its name."""
        with self.archive.open(zipfile.ZipInfo(name, _DATE), "w", force_zip64=True) as member:
            member.write(content)
        self.members[name] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
        return name

    def finish(self, manifest: dict[str, Any]) -> None:
        found = {"format": FORMAT, "format_version": FORMAT_VERSION, **manifest, "members": self.members}
        text = json.dumps(found, allow_nan=False, indent=1).encode()
        self.archive.writestr(zipfile.ZipInfo(MANIFEST, _DATE), text)


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[Writer]:
    """An archive that takes its place when the block ends without an error; before, the place stays as it was."""
    place = Path(os.path.realpath(path))
    if place.exists() and not place.is_file():
        raise ArtifactError(f"{path} is no file that can be replaced", when="save")
    beside = place.parent / f".{place.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
    try:
        # Not tempfile's: that would be readable by its owner alone, whatever the umask says.
        handle = os.open(beside, os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_CLOEXEC", 0), 0o666)
    except OSError as error:
        raise _cannot_write(path, error) from error
    try:
        with os.fdopen(handle, "w+b") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
                yield Writer(archive)
            file.flush()
            os.fsync(file.fileno())
        if place.exists():
            os.chmod(beside, stat.S_IMODE(place.stat().st_mode))
        os.replace(beside, place)
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:
        with suppress(FileNotFoundError):  # it has taken its place
            os.unlink(beside)


def _cannot_write(path: str | os.PathLike[str], error: OSError) -> ArtifactError:
    return ArtifactError(
        f"{os.fspath(path)} cannot be written: {error.strerror or error}",
        when="save",
        hint="the file is as it was before; save to a folder that exists and has room",
    )


class Reader:
    """An archive that was opened: its manifest, and its members on demand."""

    def __init__(self, file: IO[bytes], path: str) -> None:
        self.file, self.path = file, path
        with self._damage_is("it is no whole archive"), zipfile.ZipFile(file) as archive:
            self._infos = {info.filename: info for info in archive.infolist()}
        if MANIFEST not in self._infos:
            raise self._foreign("it has no manifest")
        self.manifest = self._manifest()
        with self._damage_is("its members cannot be found"):
            self._positions = {name: self._position(name, found) for name, found in self.manifest["members"].items()}

    def _manifest(self) -> dict[str, Any]:
        with self._damage_is("its manifest cannot be read"), zipfile.ZipFile(self.file) as archive:
            found = json.loads(archive.read(MANIFEST))
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise self._foreign("its manifest is another program's")
        if (made := found.get("format_version")) != FORMAT_VERSION:
            raise ArtifactError(
                f"{self.path} is of format {made!r}; this release reads format {FORMAT_VERSION}",
                when="load",
                hint=f"it was made by neuron_compiler {found.get('versions', {}).get('neuron_compiler', '?')}: "
                "load it with that release, or compile it again",
            )
        return found

    def _position(self, name: str, found: dict[str, Any]) -> int:
        """Where the bytes of a member begin."""
        info = self._infos.get(name)
        if info is None or info.compress_type != zipfile.ZIP_STORED or info.file_size != found["size"]:
            raise self._damaged(f"its member {name} is missing or of another size")
        self.file.seek(info.header_offset)
        header = self.file.read(30)
        if len(header) != 30 or header[:4] != b"PK\x03\x04":
            raise self._damaged(f"its member {name} has no header")
        return info.header_offset + 30 + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:], "little")

    def read(self, name: str) -> bytes:
        """A whole member, checked against its digest."""
        if name not in self._positions:
            raise self._damaged(f"it has no member {name}")
        wanted = self.manifest["members"][name]
        self.file.seek(self._positions[name])
        content = self.file.read(wanted["size"])
        if hashlib.sha256(content).hexdigest() != wanted["sha256"]:
            raise self._damaged(f"its member {name} is not what was written")
        return content

    @contextmanager
    def _damage_is(self, what: str) -> Iterator[None]:
        """Whatever the block raises is damage of the file.

        `zipfile` trusts what it reads: a flipped bit makes it seek before the file, ask for a password, or hand the
        bytes to a decompressor, each with exceptions of its own.
        """
        try:
            yield
        except ArtifactError:
            raise
        except Exception as error:
            raise self._damaged(f"{what}: {error}") from error

    def _damaged(self, why: str) -> ArtifactError:
        return ArtifactError(f"{self.path} is damaged: {why}", when="load", hint="copy it again, or compile it again")

    def _foreign(self, why: str) -> ArtifactError:
        return ArtifactError(
            f"{self.path} is no compiled program: {why}",
            when="load",
            hint="neuron_compiler.save writes one; torch.export.load and torch.load read files of PyTorch",
        )


@contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[Reader]:
    """An archive, open for the length of the block; ArtifactError where it is none."""
    try:
        file = open(path, "rb")  # noqa: SIM115  (closed below)
    except OSError as error:
        raise ArtifactError(f"{os.fspath(path)} cannot be read: {error.strerror}", when="load") from error
    with file:
        yield Reader(file, os.fspath(path))
