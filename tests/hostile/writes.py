"""What a run does to the disk, recorded; and the disk as a power loss would leave it after any part of that."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

NAMES = ("fsync", "replace", "rename", "unlink", "link", "mkdir", "rmdir")


class Step(NamedTuple):
    """One call: what it does, to which path, and to which other one or with what content."""

    what: str
    path: str
    more: Any = None


@contextmanager
def recorded(root: Path) -> Iterator[list[Step]]:  # noqa: C901  # a short function per call
    """Record what is done below a folder: Python's calls, and the content of files as they are synced or moved."""
    steps: list[Step] = []
    real = {name: getattr(os, name) for name in NAMES}

    def inside(path: Any) -> str | None:
        found = Path(path).absolute() if isinstance(path, str | os.PathLike) else root.parent
        return str(found.relative_to(root)) if found.is_relative_to(root) else None

    def note(what: str, path: Any, more: Any = None) -> None:
        name = inside(path)
        if name is not None:
            steps.append(Step(what, name, more))

    def content(path: Any) -> None:
        """Note what a file holds now: how it came to that nobody records."""
        if inside(path) is not None and Path(path).is_file():
            note("write", path, Path(path).read_bytes())

    def fsync(handle: int) -> None:
        path = Path(f"/proc/self/fd/{handle}").readlink()
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            note("sync folder", path)
        else:
            content(path)
            note("sync", path)
        real["fsync"](handle)

    def two(name: str) -> Any:
        def call(source: Any, target: Any, **more: Any) -> None:
            content(source)
            real[name](source, target, **more)
            note(name, source, inside(target))

        return call

    def one(name: str) -> Any:
        def call(path: Any, *more: Any, **named: Any) -> None:
            real[name](path, *more, **named)
            note(name, path)

        return call

    patched = {"fsync": fsync, **{name: two(name) for name in ("replace", "rename", "link")}}
    patched |= {name: one(name) for name in ("unlink", "mkdir", "rmdir")}
    for name, function in patched.items():
        setattr(os, name, function)
    try:
        yield steps
    finally:
        for name in patched:
            setattr(os, name, real[name])


class Disk:
    """Folders and files in memory, what is on the disk for sure, and what may be."""

    def __init__(self) -> None:
        self.files: dict[str, list[Any]] = {}
        """By path: [content, content that is synced]; a list is a file, which may have two names."""
        self.folders = {"."}
        self.safe: dict[str, list[Any]] = {}
        """The names that were synced."""
        self.safe_folders = {"."}

    def do(self, step: Step) -> None:
        """Do one step."""
        path = step.path
        if step.what == "write":
            self.files.setdefault(path, [b"", None])[0] = step.more
        elif step.what == "sync":
            self.files[path][1] = self.files[path][0]
        elif step.what == "mkdir":
            self.folders.add(path)
        elif step.what == "rmdir":
            self.folders.discard(path)
        elif step.what == "unlink":
            self.files.pop(path, None)
        elif step.what == "link":
            self.files[step.more] = self.files[path]
        elif step.what in {"replace", "rename"}:
            self.files[step.more] = self.files.pop(path)
        elif step.what == "sync folder":
            for names, safe in (
                (self.files, self.safe),
                (dict.fromkeys(self.folders), dict.fromkeys(self.safe_folders)),
            ):
                for name in [name for name in safe if _parent(name) == path and name not in names]:
                    safe.pop(name)
            self.safe |= {name: file for name, file in self.files.items() if _parent(name) == path}
            self.safe_folders |= {name for name in self.folders if _parent(name) == path}

    def write(self, root: Path, *, names: str, contents: str) -> None:
        """Write it to a folder: the names of `now` or only the `safe` ones, with contents `now`, `safe` or `half`."""
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        folders, files = (self.folders, self.files) if names == "now" else (self.safe_folders, self.safe)
        for folder in sorted(folders):
            (root / folder).mkdir(exist_ok=True)
        for name, (now, synced) in files.items():
            found = now if contents == "now" else synced
            if found is None:  # a file that was never synced: nothing of it, or half
                found = b"" if contents == "safe" else now[: len(now) // 2]
            if (root / name).parent.is_dir():
                (root / name).write_bytes(found)


def _parent(name: str) -> str:
    return str(Path(name).parent)
