"""Files that are whole or absent: written beside their place, synced, then moved into it, and the folder synced.

So what comes later on the disk never lacks what came before: a power loss leaves the files as they once were.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from lasg.errors import CannotWrite, LasgError
from lasg.errors import wrap_write_errors as wrap_write_errors  # noqa: PLC0414 (the store takes it from here)

try:
    import fcntl
except ImportError:  # not on Windows: there a run is not guarded against a second writer
    fcntl = None  # type: ignore[assignment]

PART = ".part"
LOCK = ".lock"


@contextmanager
def lock(folder: Path, wait: float = 0.0) -> Iterator[None]:
    """Hold a folder for one writer; a second one gets an error, if the first is still there after `wait` seconds.

    The system lets go of it when the process ends.
    """
    with wrap_write_errors(folder):
        make_folder(folder)
        handle = _lock(folder / LOCK, time.monotonic() + wait)
    try:
        yield
    finally:
        with suppress(OSError):  # the disk may be gone, or no longer be written to; the system lets go of the lock
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
    with suppress(OSError):
        for pattern in (f".*{PART}", ".tmp*"):  # the second is safetensors' own
            for part in folder.glob(pattern):
                part.unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it that are missing, so that a power loss leaves them."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        sync_folder(path.parent)


def check_folder(folder: Path) -> None:
    """Refuse to write into a run's folder that is gone, with the disk that it was on: another would take its place."""
    if not folder.is_dir():
        raise CannotWrite(f"cannot write {folder}: it is gone")


def sync_folder(folder: Path) -> None:
    """Wait until what was made, moved and removed in a folder is on the disk."""
    if os.name == "nt":  # there folders cannot be opened
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove(*paths: Path) -> None:
    """Remove files of one folder, the first one first: whoever sees a later one gone sees the first gone, too."""
    for path in paths[:1]:
        if path.exists():
            path.unlink()
            sync_folder(path.parent)
    for path in paths[1:]:
        path.unlink(missing_ok=True)


def keep(path: Path, previous: Path) -> None:
    """Let `previous` be what `path` is; that stays where it is, if the disk knows files with two names."""
    second = path.with_name(f".{path.name}.kept{PART}")
    second.unlink(missing_ok=True)
    try:
        os.link(path, second)
    except OSError:
        path.replace(previous)
        return
    second.replace(previous)
    second.unlink(missing_ok=True)  # it is there yet if `previous` was the same file


@contextmanager
def replace_atomically(path: Path, previous: Path | None = None) -> Iterator[Path]:
    """Give a path to write to, and move it to `path` when it is whole: a kill leaves the old file or the new one.

    With `previous` the old file is kept there.
    """
    with wrap_write_errors(path):
        make_folder(path.parent)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=PART)
        os.close(handle)
        part = Path(name)
        try:
            yield part
            part.chmod(0o644)
            with part.open("rb") as written:  # whoever wrote it may have put another file in its place
                os.fsync(written.fileno())
            if previous is not None and path.exists():
                keep(path, previous)
            part.replace(path)
            sync_folder(path.parent)
        except BaseException:
            with suppress(OSError):  # of a disk that is gone, the first error says more
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


def write_new(folder: Path, files: Mapping[str, tuple[bytes, int]]) -> list[Path]:
    """Write files that are not there yet, each with its mode from its first byte on: all of them, or none."""
    made: list[Path] = []
    try:
        with wrap_write_errors(folder):
            for name, (content, mode) in files.items():
                path = folder / name
                made += [above for above in reversed((path.parent, *path.parent.parents)) if not above.exists()]
                make_folder(path.parent)
                handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
                made.append(path)
                with os.fdopen(handle, "wb") as file:
                    file.write(content)
    except LasgError:
        for path in reversed(made):
            with suppress(OSError):  # the first error says more
                path.rmdir() if path.is_dir() else path.unlink()
        raise
    return [folder / name for name in files]
