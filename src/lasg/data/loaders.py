"""Load a data set by name: `load("covtype")`, `load("libsvm:my-file.bz2")`."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from lasg.data import cache, raw_files
from lasg.data.cache import Damaged, Prepared, Progress
from lasg.data.csv_files import parse_csv
from lasg.data.download import obtain
from lasg.data.images import image_shape, parse_images
from lasg.data.parsers import PARSERS, parse_libsvm
from lasg.data.scaling import standardise
from lasg.data.sources import (
    AS_IT_IS,
    CSV_PREFIX,
    FILES,
    IMAGES_PREFIX,
    LIBSVM_PREFIX,
    OWN_PREFIXES,
    Reading,
    is_own,
    named,
)
from lasg.data.tables import FloatArray, IntArray, Parts, Table
from lasg.errors import LasgError

_OWN: dict[str, Callable[[Path, Reading], Parts]] = {
    LIBSVM_PREFIX: lambda path, _: parse_libsvm(path),
    CSV_PREFIX: lambda path, reading: parse_csv(path, reading.label_column),
    IMAGES_PREFIX: lambda path, _: parse_images(path),
}
"""The user's own data: how each prefix is read."""
_WANTED = {
    LIBSVM_PREFIX: "a LIBSVM file",
    CSV_PREFIX: "a CSV file",
    IMAGES_PREFIX: "a folder or zip in tiny-imagenet's layout",
}

__all__ = ["Dataset", "FloatArray", "IntArray", "load"]


@dataclass(frozen=True)
class Dataset:
    """Samples (read-only where they are memory-mapped), labels 0..classes-1, and a test set if there is one.

    `sha256` is of the prepared arrays as stored in float32, whatever `dtype` was asked for.
    """

    name: str
    features: FloatArray
    labels: IntArray
    classes: int
    test_features: FloatArray | None
    test_labels: IntArray | None
    sha256: str
    shape: tuple[int, ...] = ()
    """Of one sample: (channels, height, width) of images, else (features,)."""
    vocabulary: int = 0
    """How many different characters there are, where samples are windows of text; a window's class is its domain."""

    def first_classes(self, count: int) -> "Dataset":
        """Return the samples of the first classes alone, at least one."""
        count = min(count, self.classes)
        kept, tested = self.labels < count, None if self.test_labels is None else self.test_labels < count
        return replace(
            self,
            features=self.features[kept],
            labels=self.labels[kept],
            classes=count,
            test_features=None if self.test_features is None else self.test_features[tested],
            test_labels=None if self.test_labels is None else self.test_labels[tested],
        )

    @property
    def test(self) -> tuple[FloatArray, IntArray] | None:
        """The test set."""
        return (
            None if self.test_features is None or self.test_labels is None else (self.test_features, self.test_labels)
        )


def load(
    name: str,
    *,
    data_dir: Path | str | None = None,
    dtype: DTypeLike = np.float32,
    progress: Progress | None = None,
    reading: Reading = AS_IT_IS,
) -> Dataset:
    """Load a named data set or the user's own (`libsvm:PATH`), downloading and preparing it the first time.

    `progress(what, done, total)` is told of downloaded bytes and of prepared rows. Any `dtype` but float32
    is converted from the stored float32 and held in memory. `reading` is for the user's own data.
    """
    reading.check(name)
    kind = np.dtype(dtype)
    if kind not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise LasgError(f"dtype must be float32 or float64, got {kind}")
    data_dir = raw_files.path_or_none(data_dir)
    prepared = embedded(name) if is_embedded(name) else _read_or_prepare(name, data_dir, progress, reading)
    arrays = prepared.arrays
    test = arrays.get("test_features")
    return Dataset(
        name=name,
        features=_typed(arrays["features"], kind),
        labels=arrays["labels"],
        classes=prepared.classes,
        test_features=None if test is None else _typed(test, kind),
        test_labels=arrays.get("test_labels"),
        sha256=cache.combine(prepared.digests),
        shape=_shape(name, arrays["features"].shape[1]),
        vocabulary=0 if is_own(name) else named(name).vocabulary,
    )


def _typed(features: FloatArray, kind: np.dtype[Any]) -> FloatArray:
    """Return features in a dtype; images and text stay bytes."""
    return features if features.dtype == np.uint8 else features.astype(kind, copy=False)


def _shape(name: str, columns: int) -> tuple[int, ...]:
    if name.startswith(IMAGES_PREFIX):
        return image_shape(columns)
    return (not is_own(name) and named(name).shape) or (columns,)


def _split(name: str) -> tuple[str, str]:
    """Return the prefix and the path of the user's own data."""
    prefix = next(prefix for prefix in OWN_PREFIXES if name.startswith(prefix))
    return prefix, name.removeprefix(prefix)


def checked_path(name: str) -> Path:
    """Return the file of libsvm:PATH or csv:PATH, the file or folder of images:PATH; LasgError where there is none."""
    prefix, text = _split(name)
    path = Path(text).expanduser()
    if not text or not (path.is_file() or (prefix == IMAGES_PREFIX and path.is_dir())):
        what = "a folder" if text and path.is_dir() else "no file"
        raise LasgError(f"{prefix}PATH must name {_WANTED[prefix]}, but {text!r} is {what}: correct it")
    return path


def is_embedded(name: str) -> bool:
    """Tell whether a data set comes with a package and has no files; an unknown name is an error."""
    return not is_own(name) and not named(name).files


def embedded(name: str) -> Prepared:
    """Make an embedded data set; it is small, so it is not cached."""
    parts = PARSERS[name]([])
    arrays = dict(_arrays(parts.train, ""))
    if parts.test is not None:
        arrays |= _arrays(parts.test, "test_")
    digests = {key: cache.hash_blocks([array]) for key, array in arrays.items()}
    return Prepared(arrays, digests, parts.classes)


def parse_own(name: str, reading: Reading = AS_IT_IS) -> Parts:
    """Read the user's own data."""
    parts = _OWN[_split(name)[0]](checked_path(name), reading)
    return standardise(parts) if reading.scale else parts


def prepared_place(name: str, reading: Reading = AS_IT_IS) -> tuple[Path, str]:
    """Return a data set's prepared folder and the checksum of its sources that the folder is known by.

    What they are read with is part of it.
    """
    if is_own(name):
        path = checked_path(name)
        try:
            sha256 = raw_files.hash_tree(path)
        except OSError as error:
            raise LasgError(f"{path} cannot be read: {raw_files.reason(error)}; repair or replace it") from error
        if reading != AS_IT_IS:
            sha256 = hashlib.sha256(f"{sha256} {json.dumps(asdict(reading), sort_keys=True)}".encode()).hexdigest()
        return cache.prepared_folder(name.partition(":")[0], sha256), sha256
    sums = [FILES[file].sha256 for file in named(name).files]
    sha256 = sums[0] if len(sums) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest()
    return cache.prepared_folder(name, sha256), sha256


def prepare(
    name: str,
    data_dir: Path | None,
    *,
    force: bool = False,
    progress: Progress | None = None,
    reading: Reading = AS_IT_IS,
) -> list[Path]:
    """Obtain a data set's raw files, parse them and store the result; return the raw files."""
    folder, sha256 = prepared_place(name, reading)
    parts: Parts
    if is_own(name):
        paths = [checked_path(name)]
        parts = parse_own(name, reading)
    else:
        paths = obtain(name, data_dir, force=force, progress=progress)
        parts = PARSERS[name](paths)
    cache.store(folder, parts, sha256, title=name, progress=progress)
    return paths


def _read_or_prepare(name: str, data_dir: Path | None, progress: Progress | None, reading: Reading) -> Prepared:
    """Open the prepared folder; where it is absent or damaged, make it (again) from the raw files."""
    folder, sha256 = prepared_place(name, reading)
    fault = ""
    for _ in range(3):  # more than once, since another process may be replacing a damaged folder just now
        try:
            prepared = cache.read(folder, sha256)
            if prepared is not None:
                return prepared
        except Damaged as damage:
            fault = str(damage)
        try:
            prepare(name, data_dir, progress=progress, reading=reading)
        except LasgError as error:
            if not fault:
                raise
            raise LasgError(f"{fault}, and it could not be made again: {error}") from error
    raise LasgError(
        f"{folder} cannot be read back after it was made{': ' if fault else ''}{fault}; check the disk,"
        " or let LASG_CACHE name another folder"
    )


def _arrays(table: Table, prefix: str) -> dict[str, FloatArray | IntArray]:
    return {prefix + "features": np.concatenate(list(table.blocks())), prefix + "labels": table.labels}
