"""Parsed rows before they are stored: as small as the file has them, scaled block by block."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lasg.errors import LasgError

FloatArray = NDArray[np.floating[Any]]
IntArray = NDArray[np.int64]

_BLOCK_BYTES = 1 << 24
MAX_DENSE_BYTES = 8 << 30
"""Features are stored dense; beyond this a file is not for this program."""
MAX_COLUMNS = 1 << 24
"""An index beyond this is a slip: a row would take 64 MiB."""
FEW_VALUES = 10
"""More labels than this that are not whole numbers are a quantity."""


@dataclass(frozen=True)
class Table:
    """Samples and labels. `raw` is an array or SciPy CSR matrix; `scale` makes dense features of its rows."""

    raw: Any
    labels: IntArray
    scale: Callable[[Any], NDArray[Any]]
    stored: str = "<f4"
    """How the scaled features are kept: float32, or bytes (|u1) for images, which networks scale themselves."""
    extra_columns: int = 0
    """How many features `scale` adds to those of `raw`."""

    @property
    def columns(self) -> int:
        """The number of features."""
        return int(self.raw.shape[1]) + self.extra_columns

    def pick(self, rows: slice | NDArray[np.bool_]) -> "Table":
        """Keep some of the rows."""
        return replace(self, raw=self.raw[rows], labels=self.labels[rows])

    def blocks(self) -> Iterator[NDArray[Any]]:
        """Yield the scaled features a few megabytes at a time, so that no second whole copy is held."""
        step = max(1, _BLOCK_BYTES // (4 * self.columns))
        for start in range(0, len(self.labels), step):
            yield self.scale(self.raw[start : start + step])


@dataclass(frozen=True)
class Parts:
    """A whole data set as parsed."""

    train: Table
    test: Table | None
    classes: int


def check_size(path: Path, rows: int, columns: int) -> None:
    """Refuse a file whose features do not fit: they are stored dense, in float32."""
    needed = 4 * rows * columns
    if needed > MAX_DENSE_BYTES:
        size = f"{rows:,} x {columns:,} takes {needed / 2**30:.1f} GiB dense"
        raise LasgError(f"{path} is too large: {size}, at most {MAX_DENSE_BYTES >> 30} GiB; keep fewer features")
    if columns > MAX_COLUMNS:
        raise LasgError(f"{path} has {columns:,} features by its largest index, at most {MAX_COLUMNS:,}: correct it")


def classes_of(targets: NDArray[Any], path: Path, where: str) -> tuple[int, IntArray]:
    """Return the number of classes and each sample's, 0..C-1 in sorted order; refuse what is a quantity."""
    values, labels = np.unique(targets, return_inverse=True)
    if values.dtype.kind == "f":
        _check_whole(values, path, where)
    if len(values) < 2:
        only = values[0] if values.dtype.kind != "f" else f"{values[0]:g}"
        raise LasgError(f"{path} has only the class {only}: at least 2 classes are needed to train on")
    return len(values), labels.astype(np.int64)


def _check_whole(values: NDArray[Any], path: Path, where: str) -> None:
    """Refuse labels that are not whole numbers; `values` are the different ones."""
    if not np.isfinite(values).all():
        raise LasgError(f"{path}: {where} holds a NaN or an infinity: remove or replace such values")
    broken = values[values != np.floor(values)]
    if len(broken) > FEW_VALUES:
        raise LasgError(
            f"{path}: {where} has {len(values)} different values, such as {broken[0]:g}: that is a quantity, and lasg"
            " trains classifiers; group the values into classes, whole numbers, first"
        )
    if len(broken):
        raise LasgError(f"{path}: {where} has the label {broken[0]:g}: write labels as whole numbers, one per class")
