"""Seals: how a stored file tells damage, and a file of another run, from what was written.

A seal is the sha256 of a file's run, its kind and its content. It is in the file itself, so no two files have to change
at once. It is against accidents: whoever can write a run's folder can also write a seal.
"""

from __future__ import annotations

import hashlib
import json
import uuid
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError

from lasg.errors import LasgError

META = "meta.json"
UNREADABLE = (
    *(OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RuntimeError, EOFError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, SafetensorError, RecursionError),
)
"""What readers raise on a file that is not what it seems."""
UNSEALED = frozenset(
    {
        *("format", "status", "engine", "seed", "seconds", "evaluation_seconds", "data_sha256", "versions", "message"),
        *("theory", "broken_gradients", "laziness_given_up", "ranks", "exchange", "relay", "job"),
        *("bytes_sent", "keys", "run", "bytes_up", "bytes_down", "refused_answers"),
    }
)
"""The meta data that runs had before there were seals."""
KEY = "seal"
"""Under which JSON files and checkpoints have it."""
LINE = b"# seal: "
"""What the first line of a text file has before it."""


class Damaged(ValueError):  # noqa: N818  # readers say which file it is
    """A file that is not what was written, or not this run's."""

    def __init__(self, why: str = f"it is damaged, or {META} beside it is of another run") -> None:
        super().__init__(why)


def why(error: BaseException) -> str:
    """Return in one line why a file cannot be read, without its name."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split()) or type(error).__name__


def new_run() -> str:
    """Name a run that begins, as no other is named."""
    return uuid.uuid4().hex


def seal(run: str, kind: str, *content: bytes) -> str:
    """Return the seal of a run's file."""
    digest = hashlib.sha256(f"{run} {kind}\0".encode())
    for part in content:
        digest.update(part)
    return digest.hexdigest()


def of_array(array: npt.NDArray[Any]) -> str:
    """Return the sha256 of an array: of its type, shape and numbers."""
    array = np.asarray(array, order="C")
    digest = hashlib.sha256(f"{array.dtype.str} {array.shape}\0".encode())
    digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def of_file(path: Path) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def of_arrays(run: str, kind: str, arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """Return the seal of named arrays."""
    return seal(run, kind, json.dumps({name: of_array(array) for name, array in arrays.items()}).encode())


def seal_json(run: str, kind: str, values: Mapping[str, Any]) -> bytes:
    """Return JSON text with a seal."""
    return (json.dumps({**values, KEY: _of_values(run, kind, values)}, indent=2) + "\n").encode()


def open_json(data: bytes, kind: str, run: str | None, unsealed: frozenset[str] | None) -> dict[str, Any]:
    """Return what `seal_json` had; the run is the one that the text names as `id`, if None is given.

    Text without a seal is taken if it has no other keys than `unsealed`: then it is older than seals.
    """
    values = json.loads(data)
    if not isinstance(values, dict):
        raise Damaged
    found = values.pop(KEY, None)
    if found is None:
        if unsealed is None or not set(values) <= unsealed:
            raise Damaged
    elif found != _of_values(values.get("id", "") if run is None else run, kind, values):
        raise Damaged
    return values


def _of_values(run: Any, kind: str, values: Mapping[str, Any]) -> str:
    return seal(str(run), kind, json.dumps(values, sort_keys=True).encode())


def seal_text(run: str, kind: str, text: bytes) -> bytes:
    """Return text with a first line that is its seal."""
    return LINE + seal(run, kind, text).encode() + b"\n" + text


def open_text(data: bytes, kind: str, run: str, *, required: bool) -> bytes:
    """Return what `seal_text` was given; without a seal the whole text, unless that is required."""
    if not data.startswith(LINE):
        if required:
            raise Damaged
        return data
    line, _, text = data.partition(b"\n")
    if line != LINE + seal(run, kind, text).encode():
        raise Damaged
    return text


def read_meta(folder: Path) -> dict[str, Any]:
    """Return a run's meta data; raises one of `UNREADABLE`."""
    return open_json((folder / META).read_bytes(), META, None, UNSEALED)


def run_of(folder: Path) -> str:
    """Return what the run in a folder is called; nothing where there is none, or one older than seals."""
    try:
        return str(read_meta(folder).get("id", ""))
    except FileNotFoundError:
        return ""
    except UNREADABLE as error:
        raise LasgError(f"cannot read {folder / META}: {why(error)}") from None
