"""Minibatches: drawn without replacement within a round, independently each round, from a counter.

The draw of a worker in an iteration depends on (seed, worker, iteration, shard size, batch size) alone: not on
which other workers live in this process, nor on what was drawn before.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lasg import counter
from lasg.errors import LasgError

IntArray = npt.NDArray[Any]

# Blocks of rounds are drawn at once, up to so many indices: what fits the second-level cache.
BLOCK = 1 << 14


def batch_sizes(sizes: IntArray, ratio: float) -> IntArray:
    """Return max(1, round(ratio * n_m)) for every shard."""
    if not 0 < ratio <= 1:
        raise LasgError(f"batch must be a share of the shard in (0, 1], got {ratio!r}")
    return np.clip(np.rint(ratio * np.asarray(sizes)), 1, sizes).astype(np.int64)


class Batches:
    """Row numbers of every worker's minibatch, for shards that lie one after another in memory."""

    def __init__(self, sizes: IntArray, batch: IntArray, *, ids: IntArray, seed: int) -> None:
        self.sizes, self.batch, self.ids, self.seed = sizes, batch, ids, seed
        self.offsets = np.cumsum(sizes) - sizes
        self._layout = _Layout(self, np.arange(len(sizes)))
        self._rounds = max(1, BLOCK // self._layout.total)
        self._first = -1
        self._block: IntArray = np.empty((0, 0), np.int64)

    def everybody(self, iteration: int) -> IntArray:
        """Return the row numbers of all workers, worker after worker, ascending within each."""
        first = iteration - iteration % self._rounds
        if first != self._first:
            self._block = self._layout.draw(np.arange(first, first + self._rounds))
            self._first = first
        row: IntArray = self._block[iteration - first]
        return row

    def of(self, iteration: int, rows: IntArray) -> IntArray:
        """Return the row numbers of the workers at the positions `rows` alone."""
        row: IntArray = _Layout(self, rows).draw(np.array([iteration]))[0]
        return row


class _Layout:
    """Where each worker's draws stand in a flat row: worker after worker."""

    def __init__(self, batches: Batches, rows: IntArray) -> None:
        size, batch = batches.sizes[rows], batches.batch[rows]
        self.seed, self.ids, self.rows = batches.seed, batches.ids[rows], rows
        self.total = int(batch.sum())
        self.start = np.cumsum(batch) - batch
        self.owner = np.repeat(np.arange(len(rows)), batch)
        self.rank = np.arange(self.total) - self.start[self.owner]
        self.size, self.offset = size[self.owner].astype(np.float64), batches.offsets[rows][self.owner]
        # Redrawing repeats until none are left is quick only while repeats are rare.
        self.thick = [(i, int(size[i]), int(batch[i])) for i in np.flatnonzero(4 * batch > size)]
        self.dtype = np.int32 if batches.sizes.sum() < 2**31 else np.int64

    def draw(self, iterations: IntArray) -> IntArray:
        """Return `(iterations, total)` row numbers."""
        key = counter.keys(self.seed, counter.MINIBATCH, self.ids, iterations)
        word = key.take(self.owner, 1)
        word += counter.words(self.rank + 1)
        drawn = self._place(counter.unit(counter.mix(word)), slice(None))
        for i, size, batch in self.thick:
            order = counter.uniforms(key[:, i], size).argsort(-1, kind="stable")[:, :batch]
            drawn[:, self.start[i] : self.start[i] + batch] = order + self.offset[self.start[i]]
        drawn.sort(axis=-1)
        self._replace_repeats(drawn, key)
        return drawn.astype(np.intp)

    def _place(self, unit: npt.NDArray[np.float64], where: Any) -> IntArray:
        """Map [0, 1) to a row of the shard that each position belongs to."""
        unit *= self.size[where]
        drawn: IntArray = unit.astype(self.dtype)
        drawn += self.offset[where].astype(self.dtype)
        return drawn

    def _replace_repeats(self, drawn: IntArray, key: counter.UInt64) -> None:
        """Draw again what stands twice, until nothing does. By symmetry every subset stays equally likely."""
        attempt = 0
        while True:
            line, place = np.nonzero(drawn[:, 1:] == drawn[:, :-1])
            if not len(line):
                return
            attempt += 1
            word = key[line, self.owner[place]] + counter.words((attempt << 32) + self.rank[place])
            drawn[line, place] = self._place(counter.unit(counter.mix(word)), place)
            drawn.sort(axis=-1)
