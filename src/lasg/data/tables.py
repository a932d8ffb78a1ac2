"""Parsed rows before they are stored: as small as the file has them, scaled block by block."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.floating[Any]]
IntArray = NDArray[np.int64]

_BLOCK_BYTES = 1 << 24


@dataclass(frozen=True)
class Table:
    """Samples and labels. `raw` is an array or SciPy CSR matrix; `scale` makes dense features of its rows."""

    raw: Any
    labels: IntArray
    scale: Callable[[Any], NDArray[Any]]
    stored: str = "<f4"
    """How the scaled features are kept: float32, or bytes (|u1) for images, which networks scale themselves."""

    @property
    def columns(self) -> int:
        """The number of features."""
        return int(self.raw.shape[1])

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
