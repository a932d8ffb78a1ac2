"""Small disks that can be filled, made read-only and taken away: file systems in memory, which root may mount."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class Disk:
    """A disk of so many bytes at a path."""

    def __init__(self, path: Path) -> None:
        self.path, self._ballast = path, path / "ballast"
        self.there = True

    def fill(self, left: int = 0) -> None:
        """Leave no room, or so many bytes."""
        with self._ballast.open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                file.truncate(max(0, file.tell() - left))

    def make_room(self) -> None:
        """Take away what fills it."""
        self._ballast.unlink()

    def read_only(self, wanted: bool = True) -> None:
        """Let nothing be written, or again everything; what is open stays so."""
        if wanted:
            _call("mount", "--bind", str(self.path), str(self.path))
            _call("mount", "-o", "remount,bind,ro", str(self.path))
        else:
            _call("umount", "-l", str(self.path))

    def vanish(self) -> None:
        """Take it away while it is used."""
        _call("umount", "-l", str(self.path))
        self.there = False


def _call(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


@contextmanager
def small_disk(path: Path, size: str = "8m") -> Iterator[Disk]:
    """Mount a disk; the test is skipped where that is not allowed."""
    path.mkdir()
    try:
        _call("mount", "-t", "tmpfs", "-o", f"size={size}", "lasg-test", str(path))
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no small disk can be mounted here: {error}")
    disk = Disk(path)
    try:
        yield disk
    finally:
        if disk.there:
            _call("umount", "-l", str(path))
