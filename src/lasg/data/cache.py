"""The prepared cache: parse once, then memory-map.

One folder a data set holds features.npy, labels.npy, the test_* pair where there is one, and info.json with
each array's shape and sha256. A folder is written under a temporary name beside its place and renamed, so
that it is either whole or not there, also when two processes prepare at once.
"""

import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
from numpy.typing import NDArray

from lasg.data.tables import Parts, Table
from lasg.errors import LasgError

Progress = Callable[[str, int, int | None], None]

# Raise this when a parser changes what it stores: old folders are then left alone and new ones made.
VERSION = 1
_STALE_SECONDS = 24 * 3600.0


class Damaged(Exception):  # noqa: N818  # a state that loaders act upon, not an error the user sees
    """A prepared folder that cannot be used; `str()` says which file and why."""


@dataclass(frozen=True)
class Prepared:
    """The content of one prepared folder; features are read-only memory maps."""

    arrays: dict[str, NDArray[Any]]
    digests: dict[str, str]
    classes: int


def root() -> Path:
    """Return the cache folder: $LASG_CACHE, else the user's cache."""
    env = os.environ.get("LASG_CACHE")
    return Path(env).expanduser() if env else platformdirs.user_cache_path("lasg")


def raw_folder() -> Path:
    """Return the folder that downloads go to."""
    return root() / "raw"


def prepared_folder(name: str, source_sha256: str) -> Path:
    """Return the folder of one prepared data set."""
    return root() / "prepared" / f"{name}-{source_sha256[:12]}-v{VERSION}"


@contextmanager
def writing(folder: Path) -> Iterator[Path]:
    """Give a fresh path in `folder` to write to; what is left there at the end is removed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(error) from error
    _sweep(folder)
    path = folder / f".{uuid.uuid4().hex}.part"
    try:
        yield path
    finally:
        _remove(path)


def unwritable(error: OSError) -> LasgError:
    """Build the error for a cache folder that cannot be written."""
    return LasgError(
        f"cannot write to the cache folder {root()} ({error.strerror or error}): make it writable, free some"
        " space, or let LASG_CACHE name another folder"
    )


def store(folder: Path, parts: Parts, source_sha256: str, *, title: str, progress: Progress | None = None) -> None:
    """Write parsed tables to a prepared folder, unless a sound one is there already."""
    with writing(folder.parent) as temporary:
        try:
            temporary.mkdir()
            arrays = _write_arrays(temporary, parts, title, progress)
            info = {"source_sha256": source_sha256, "classes": parts.classes, "arrays": arrays}
            (temporary / "info.json").write_text(json.dumps(info, indent=1) + "\n", encoding="utf-8")
            _publish(temporary, folder, source_sha256)
        except OSError as error:
            raise unwritable(error) from error


def read(folder: Path, source_sha256: str) -> Prepared | None:
    """Open a prepared folder (None: not there); Damaged where a file is not what was written.

    Every byte is checked, once per process: files that did not change since are not read again.
    """
    prepared = look(folder, source_sha256)
    if prepared is not None and (stamp := _stamp(folder)) not in _sound:
        _check(folder, prepared)
        _sound.add(stamp)
    return prepared


def look(folder: Path, source_sha256: str) -> Prepared | None:
    """Open a prepared folder without reading its numbers: Damaged where a file is missing, cut short or garbled."""
    if not _exists(folder):
        return None
    info = _read_info(folder, source_sha256)
    arrays = {}
    for name, entry in info["arrays"].items():
        arrays[name] = _read_array(folder / f"{name}.npy", entry)
    digests = {name: entry["sha256"] for name, entry in info["arrays"].items()}
    return Prepared(arrays, digests, info["classes"])


def verify(folder: Path, source_sha256: str) -> bool:
    """Check every byte of a prepared folder: False where it is not there, Damaged where it is not sound."""
    prepared = look(folder, source_sha256)
    if prepared is not None:
        _check(folder, prepared)
    return prepared is not None


_sound: set[tuple[tuple[str, int, int, int], ...]] = set()
"""The stamps of folders that this process has checked."""


def _stamp(folder: Path) -> tuple[tuple[str, int, int, int], ...]:
    """Return what changes when a file of a folder is written."""
    found = [(path, path.stat()) for path in sorted(folder.iterdir())]
    return tuple((str(path), stat.st_size, stat.st_mtime_ns, stat.st_ino) for path, stat in found)


def _check(folder: Path, prepared: Prepared) -> None:
    """Compare every array with its checksum, and the number of classes with the labels."""
    for name, array in prepared.arrays.items():
        found = hash_blocks(array[start : start + 65536] for start in range(0, len(array), 65536))
        if found != prepared.digests[name]:
            expected = prepared.digests[name][:12]
            raise Damaged(f"{folder / name}.npy is damaged: expected sha256 {expected}, found {found[:12]}")
    if prepared.classes != prepared.arrays["labels"].max(initial=-1) + 1:
        raise Damaged(
            f"{folder / 'info.json'} is damaged: it says {prepared.classes} classes, the labels another number"
        )


def hash_blocks(blocks: Iterable[NDArray[Any]]) -> str:
    """Return the sha256 of arrays' bytes, one after another."""
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(np.ascontiguousarray(block).data)
    return digest.hexdigest()


def combine(digests: dict[str, str]) -> str:
    """Return one sha256 for a data set from those of its arrays."""
    lines = "".join(f"{name} {digests[name]}\n" for name in sorted(digests))
    return hashlib.sha256(lines.encode()).hexdigest()


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a parent that may not be entered: writing there will say so
        return False


def _read_array(path: Path, entry: dict[str, Any]) -> NDArray[Any]:
    try:
        array = np.load(path, mmap_mode="r" if path.stem.endswith("features") else None, allow_pickle=False)
        found = [list(array.shape), array.dtype.str]
    except Exception as error:  # a garbled header makes NumPy raise nearly anything
        raise Damaged(f"{path} is damaged: {' '.join(str(error).split())}") from error
    expected = [entry["shape"], entry["dtype"]]
    if found != expected:
        raise Damaged(f"{path} is damaged: expected shape and type {expected}, found {found}")
    return np.asarray(array)


def _read_info(folder: Path, source_sha256: str) -> dict[str, Any]:
    """Read info.json and check everything that `read` relies on."""
    path = folder / "info.json"
    try:
        info: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        entries = info["arrays"]
        sound = info["source_sha256"] == source_sha256 and isinstance(info["classes"], int)
        sound = sound and {"features", "labels"} <= set(entries) <= set(_NAMES)
        sound = sound and all({"shape", "dtype", "sha256"} <= set(entry) for entry in entries.values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{path} is damaged: {' '.join(str(error).split())}") from error
    if not sound:
        raise Damaged(f"{path} is damaged: it does not describe this data set")
    return info


_NAMES = ("features", "labels", "test_features", "test_labels")


def _write_arrays(folder: Path, parts: Parts, title: str, progress: Progress | None) -> dict[str, dict[str, Any]]:
    tables: list[tuple[str, Table]] = [("", parts.train)]
    if parts.test is not None:
        tables.append(("test_", parts.test))
    arrays = {}
    for prefix, table in tables:
        shape = (len(table.labels), table.columns)
        row = shape[1] * np.dtype(table.stored).itemsize
        blocks = _report_blocks(table.blocks(), f"preparing {title}", len(table.labels), row, progress)
        arrays[prefix + "features"] = _write_npy(folder / f"{prefix}features.npy", shape, table.stored, blocks)
        labels = table.labels.astype("<i8")
        arrays[prefix + "labels"] = _write_npy(folder / f"{prefix}labels.npy", labels.shape, "<i8", [labels])
    return arrays


def _write_npy(path: Path, shape: tuple[int, ...], dtype: str, blocks: Iterable[NDArray[Any]]) -> dict[str, Any]:
    """Write an .npy file block by block. Not a writable memory map: a full disk would kill the process."""
    digest = hashlib.sha256()
    with path.open("xb") as out:
        header = {"descr": dtype, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(out, header)
        for block in blocks:
            data = np.ascontiguousarray(block, dtype=dtype).data
            out.write(data)
            digest.update(data)
        out.flush()
        os.fsync(out.fileno())
    return {"shape": list(shape), "dtype": dtype, "sha256": digest.hexdigest()}


def _report_blocks(
    blocks: Iterable[NDArray[Any]], what: str, rows: int, row: int, progress: Progress | None
) -> Iterator[NDArray[Any]]:
    """Pass blocks on, and tell how many of the bytes that are written from them are done."""
    done = 0
    for block in blocks:
        yield block
        done += len(block)
        if progress is not None:
            progress(what, row * done, row * rows)


def _publish(temporary: Path, folder: Path, source_sha256: str) -> None:
    """Rename a finished folder into place; a sound one that is there already (another process) stays."""
    old = folder.with_name(f".{uuid.uuid4().hex}.part")
    try:
        if verify(folder, source_sha256):
            return
    except Damaged:  # only then: one that appeared since is as good as ours
        with suppress(FileNotFoundError):
            folder.rename(old)
    try:
        temporary.rename(folder)
    except OSError:
        if not folder.is_dir():  # else another process was quicker by a moment, with the same content
            raise
    finally:
        _remove(old)


def _sweep(folder: Path) -> None:
    """Remove what a killed process left behind a day ago or more."""
    for path in folder.glob(".*.part"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()
