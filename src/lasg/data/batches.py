"""Minibatches: drawn without replacement within a round, independently each round, from a counter.

The draw of a worker in an iteration depends on (seed, worker, iteration, shard size, batch size) alone: not on
which other workers live in this process, nor on what was drawn before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lasg import counter
from lasg.errors import LasgError

IntArray = npt.NDArray[Any]

# Blocks of rounds are drawn at once, up to so many indices. Larger temporaries leave the second-level cache, and
# beyond 128 KB the allocator asks the kernel for fresh pages each time.
BLOCK = 14_000


def shard_sizes(shards: Sequence[Sequence[int] | IntArray]) -> IntArray:
    """Return how many samples each worker has; refuse a worker without any."""
    sizes = np.array([len(shard) for shard in shards])
    if not len(sizes) or not sizes.all():
        raise LasgError("every worker needs at least one sample: take fewer workers or another partition")
    return sizes


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

    def draw_all(self, iteration: int) -> IntArray:
        """Return the row numbers of all workers, worker after worker."""
        first = iteration - iteration % self._rounds
        if first != self._first:
            self._block = self._layout.draw(np.arange(first, first + self._rounds))
            self._first = first
        row: IntArray = self._block[iteration - first]
        return row

    def draw(self, iteration: int, rows: IntArray) -> IntArray:
        """Return the row numbers of the workers at the positions `rows` alone."""
        row: IntArray = _Layout(self, rows).draw(np.array([iteration]))[0]
        return row


class _Layout:
    """Where each worker's draws stand in a flat row: worker after worker."""

    def __init__(self, batches: Batches, rows: IntArray) -> None:
        size, batch = batches.sizes[rows], batches.batch[rows]
        if size.max() >= 2**32:
            raise LasgError(f"a shard can have at most 2^32 - 1 samples, got {size.max()}")
        self.keys = counter.worker_keys(batches.seed, counter.MINIBATCH, batches.ids[rows])
        self.total, self.samples = int(batch.sum()), int(size.sum())
        self.start = np.cumsum(batch) - batch
        self.owner = np.repeat(np.arange(len(rows)), batch)
        self.rank = np.arange(self.total) - self.start[self.owner]
        # Two draws a word: those of a worker with b draws take ceil(b / 2) words.
        pairs = -(-batch // 2)
        word_owner = np.repeat(np.arange(len(rows)), pairs)
        word_start = np.cumsum(pairs) - pairs
        self.word_owner = word_owner
        self.word_position = counter.words(np.arange(len(word_owner)) - word_start[word_owner] + 1)
        self.half = None if not (batch % 2).any() else 2 * word_start[self.owner] + self.rank
        self.dtype = np.int32 if self.samples < 2**31 else np.int64
        self.size = size[self.owner].astype(np.uint64)
        # Draws are sorted as if the shards lay in the order of `rows`, then shifted to where they are.
        offset = np.cumsum(size) - size
        self.offset = offset[self.owner].astype(self.dtype)
        away = batches.offsets[rows] - offset
        self.shift = away[self.owner].astype(np.intp) if away.any() else None
        # Redrawing repeats until none are left is quick only while repeats are rare.
        self.thick = [(i, int(size[i]), int(batch[i])) for i in np.flatnonzero(4 * batch > size)]

    def draw(self, iterations: IntArray) -> IntArray:
        """Return `(iterations, total)` row numbers."""
        key = counter.round_keys(self.keys, iterations)
        word = key.take(self.word_owner, 1)
        word += self.word_position
        halves = counter.mix(word).astype("<u8", copy=False).view("<u4")
        if self.half is not None:
            halves = halves.take(self.half, 1)
        drawn = self._place(halves, slice(None))
        for i, size, batch in self.thick:
            order = counter.uniforms(key[:, i], size).argsort(-1, kind="stable")[:, :batch]
            drawn[:, self.start[i] : self.start[i] + batch] = order + self.offset[self.start[i]]
        drawn.sort(axis=-1)
        line, place = np.nonzero(drawn[:, 1:] == drawn[:, :-1])
        if len(line):
            self._replace(drawn, key, line, place)
        found = drawn.astype(np.intp)
        if self.shift is not None:
            found += self.shift
        return found

    def _place(self, halves: npt.NDArray[np.uint32], where: Any) -> IntArray:
        """Map 32 random bits to a row of the shard that each position belongs to.

        (bits * n) >> 32 favours some rows by at most n / 2^32: 7e-6 for the shards of covtype.
        """
        wide = np.multiply(halves, self.size[where], dtype=np.uint64)
        wide >>= np.uint64(32)
        drawn: IntArray = wide.astype(self.dtype)
        drawn += self.offset[where]
        return drawn

    def _replace(self, drawn: IntArray, key: counter.UInt64, line: IntArray, place: IntArray) -> None:
        """Draw again what stands twice, until it is new: every subset stays equally likely."""
        taken = (drawn + np.arange(len(drawn))[:, None] * self.samples).ravel()
        attempt = 0
        while len(line):
            attempt += 1
            word = key[line, self.owner[place]] + counter.words((attempt << 32) + self.rank[place])
            fresh = self._place((counter.mix(word) >> np.uint64(32)).astype(np.uint32), place)
            label = line * self.samples + fresh
            at = np.minimum(taken.searchsorted(label), len(taken) - 1)
            new = (taken[at] != label) & _first_of_each(label)
            drawn[line[new], place[new]] = fresh[new]
            if new.all():
                return
            taken = np.sort(np.concatenate([taken, label[new]]))
            line, place = line[~new], place[~new]


def _first_of_each(values: IntArray) -> npt.NDArray[np.bool_]:
    """Tell which values did not stand earlier in the list."""
    first = np.ones(len(values), np.bool_)
    ordered = np.sort(values)
    if (ordered[1:] == ordered[:-1]).any():
        first[:] = False
        first[np.unique(values, return_index=True)[1]] = True
    return first
