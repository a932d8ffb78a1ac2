"""Files that are whole or absent: written beside their place, then moved into it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from lasg.errors import LasgError

PART = ".part"


def sweep(folder: Path) -> None:
    """Remove what a killed writer left in a folder."""
    for part in folder.glob(f".*{PART}"):
        part.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` to `path` so that a reader, or a kill at any moment, sees the old file or the new one."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=PART)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(name).chmod(0o644)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise LasgError(f"cannot write {path}: {error.strerror or error}") from None
