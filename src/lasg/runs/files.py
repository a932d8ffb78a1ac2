"""Files that are whole or absent: written beside their place, then moved into it."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lasg.errors import LasgError

try:
    import fcntl
except ImportError:  # not on Windows: there a run is not guarded against a second writer
    fcntl = None  # type: ignore[assignment]

PART = ".part"
LOCK = ".lock"


@contextmanager
def wrap_write_errors(path: Path) -> Iterator[None]:
    """Say in one line what could not be written."""
    try:
        yield
    except OSError as error:
        raise LasgError(f"cannot write {path}: {error.strerror or error}") from None


@contextmanager
def lock(folder: Path, wait: float = 0.0) -> Iterator[None]:
    """Hold a folder for one writer; a second one gets an error, if the first is still there after `wait` seconds.

    The system lets go of it when the process ends.
    """
    with wrap_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        handle = _lock(folder / LOCK, time.monotonic() + wait)
    try:
        yield
    finally:
        (folder / LOCK).unlink(missing_ok=True)
        os.close(handle)


def _lock(path: Path, deadline: float) -> int:
    """Return the handle of a lock that only this process has."""
    while True:
        handle = os.open(path, os.O_CREAT | os.O_RDWR)
        try:
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if fcntl is None or (path.exists() and os.path.samestat(os.fstat(handle), path.stat())):
                return handle
        except BlockingIOError:
            os.close(handle)
            if time.monotonic() < deadline:
                time.sleep(0.2)
                continue
            raise LasgError(f"another process is writing {path.parent}: wait for it, or take another folder") from None
        os.close(handle)  # who had it before has removed it since it was opened


def is_locked(folder: Path) -> bool:
    """Tell whether a process is writing a folder now; on Windows nobody knows."""
    try:
        handle = os.open(folder / LOCK, os.O_RDONLY)
    except OSError:
        return False
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def sweep(folder: Path) -> None:
    """Remove what a killed writer left in a folder."""
    for pattern in (f".*{PART}", ".tmp*"):  # the second is safetensors' own
        for part in folder.glob(pattern):
            part.unlink(missing_ok=True)


@contextmanager
def replace_atomically(path: Path) -> Iterator[Path]:
    """Give a path to write to, and move it to `path` when it is whole: a kill leaves the old file or the new one."""
    with wrap_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=PART)
        os.close(handle)
        part = Path(name)
        try:
            yield part
            with part.open("rb") as written:  # whoever wrote it may have put another file in its place
                os.fsync(written.fileno())
            part.chmod(0o644)
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` to `path` so that a reader, or a kill at any moment, sees the old file or the new one.

    What is there and is no file, such as /dev/null or a pipe, is written to and not replaced.
    """
    with wrap_write_errors(path):
        if path.exists() and not path.is_file() and not path.is_dir():
            path.write_bytes(content)
            return
    with replace_atomically(path) as part:
        part.write_bytes(content)
