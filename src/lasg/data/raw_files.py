"""Find, open and verify raw data files, compressed or not."""

import bz2
import gzip
import hashlib
import lzma
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from lasg.data import cache
from lasg.data.sources import Source
from lasg.errors import LasgError

BLOCK = 1 << 20

# What the decompressors raise on a truncated or garbled stream, OSError (gzip.BadGzipFile, bz2) included.
BROKEN_STREAM = (EOFError, OSError, zlib.error, lzma.LZMAError)


@dataclass(frozen=True)
class Found:
    """A raw file on disk, and whether it lies in lasg's own cache (so that lasg may replace it)."""

    path: Path
    in_cache: bool


def path_or_none(path: Path | str | None) -> Path | None:
    """Return a path that may be given as a string, or not at all."""
    return None if path is None else Path(path)


def search_folders(data_dir: Path | None) -> list[tuple[Path, bool]]:
    """List the folders searched for raw files, in order, each with whether it is lasg's own cache."""
    folders: list[tuple[Path, bool]] = []
    env = os.environ.get("LASG_DATA")
    for label, folder in (("--data-dir", data_dir), ("LASG_DATA", Path(env) if env else None)):
        if folder is None:
            continue
        if not folder.expanduser().is_dir():
            raise LasgError(f"{label} must name a folder that exists, got {folder}: create it or correct the path")
        folders.append((folder.expanduser(), False))
    return [*folders, (cache.raw_folder(), True)]


def find(source: Source, data_dir: Path | None) -> Found | None:
    """Find a canonical file, under its usual name or decompressed, in the first folder that has it."""
    for folder, in_cache in search_folders(data_dir):
        for name in (source.name, source.plain_name):
            path = folder / name
            try:
                if path.is_file():
                    return Found(path, in_cache)
            except OSError as error:
                raise LasgError(f"cannot look for {path}: {reason(error)}; change its permissions") from error
    return None


@contextmanager
def open_plain(path: Path) -> Iterator[IO[bytes]]:
    """Open a file's decompressed content; its first bytes tell the compression, not its name."""
    with path.open("rb") as raw:
        head = raw.read(6)
        raw.seek(0)
        stream: Any  # mypy knows no common type of these three and IO[bytes]
        if head.startswith(b"\x1f\x8b"):
            stream = gzip.GzipFile(fileobj=raw)
        elif head.startswith(b"BZh"):
            stream = bz2.BZ2File(raw)
        elif head.startswith(b"\xfd7zXZ\x00"):
            stream = lzma.LZMAFile(raw)  # noqa: SIM115  # closed below
        else:
            stream = raw
        with stream:
            yield stream


def hash_stream(stream: IO[bytes]) -> str:
    """Return the sha256 of what is left in a stream, in hexadecimal."""
    digest = hashlib.sha256()
    while block := stream.read(BLOCK):
        digest.update(block)
    return digest.hexdigest()


def hash_tree(path: Path) -> str:
    """Return the sha256 of a file; of a folder, that of its files' names, sizes and times, which is quick."""
    if path.is_file():
        with path.open("rb") as stream:
            return hash_stream(stream)
    entries = [(p.relative_to(path).as_posix(), p.stat()) for p in sorted(path.rglob("*")) if p.is_file()]
    lines = "".join(f"{name} {stat.st_size} {stat.st_mtime_ns}\n" for name, stat in entries)
    return hashlib.sha256(lines.encode()).hexdigest()


def content_fault(path: Path, source: Source) -> str | None:
    """Say what is wrong with a raw file's decompressed content, or None where its checksum is right."""
    try:
        with open_plain(path) as stream:
            found = hash_stream(stream)
    except BROKEN_STREAM as error:
        return f"expected sha256 {source.sha256[:12]}, found a file that cannot be read ({reason(error)})"
    if found != source.sha256:
        return f"expected sha256 {source.sha256[:12]}, found {found[:12]}"
    return None


def how_to_fix(found: Found, command: str) -> str:
    """Say how to fix a damaged raw file: lasg replaces its own by a command, the user replaces theirs."""
    return command if found.in_cache else "replace or delete this file"


def verify(found: Found, source: Source, command: str) -> None:
    """Raise the error for a damaged raw file, if it is damaged; the command replaces it."""
    fault = content_fault(found.path, source)
    if fault is not None:
        raise LasgError(f"{found.path} is damaged: {fault}; to fix it: {how_to_fix(found, command)}")


def reason(error: BaseException) -> str:
    """Put an exception into one line without the path, which our messages name themselves."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split()) or type(error).__name__
