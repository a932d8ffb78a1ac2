"""Minibatches of different sizes as batched products: cut into tiles of one length, padded with weight 0."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lasg.core.arrays import FloatArray, IntArray

# What one more product in a batch costs, in multiply-adds of a long one (measured: about 0.25 microseconds).
CALL = 2_000
# Up to so many entries the matrix that sums tiles is worth multiplying with.
SMALL = 4_096


def best_length(batch: IntArray, d: int) -> int:
    """Return the tile length that makes a round cheapest: the batch size itself where all are equal."""
    widest = int(batch.max())
    candidates = sorted({int(b) for b in np.unique(batch)[:64]} | {-(-widest // n) for n in range(1, 33)})

    def cost(length: int) -> int:
        return int((-(-batch // length)).sum()) * (CALL + length * d)

    return min(candidates, key=cost)


@dataclass(frozen=True, slots=True)
class Tiles:
    """Workers' minibatches, laid out one after another, as rows of equal length."""

    scale: FloatArray
    """`(tiles, length)`: weight of the worker / b_m, for each sample; 0 where a tile is padded."""
    source: IntArray | None
    """Where each entry of a tile stands in the flat layout, one after another; None: where it is."""
    owner: IntArray | None
    """The worker of each tile; None: one tile per worker."""
    first: IntArray | None
    """The first tile of each worker; None: one tile per worker."""
    summing: FloatArray | None
    """`(workers, tiles)` of 0 and 1: for few workers one small product is the quickest sum."""

    @classmethod
    def from_batches(cls, batch: IntArray, weights: FloatArray, length: int, dtype: npt.DTypeLike) -> Tiles:
        """Plan the tiles of workers with these minibatch sizes and weights."""
        tiles = -(-batch // length)
        first = np.cumsum(tiles) - tiles
        owner = np.repeat(np.arange(len(batch)), tiles)
        place = (np.arange(len(owner)) - first[owner])[:, None] * length + np.arange(length)
        inside = place < batch[owner][:, None]
        scale = np.where(inside, (weights / batch)[owner][:, None], 0.0).astype(dtype)
        start = (np.cumsum(batch) - batch)[owner][:, None]
        source = None if inside.all() else (start + np.minimum(place, batch[owner][:, None] - 1)).ravel()
        return cls._summed(scale, source, owner, len(batch))

    @classmethod
    def _summed(cls, scale: FloatArray, source: IntArray | None, owner: IntArray | None, workers: int) -> Tiles:
        """Add how the tiles of each worker are summed, where one has several."""
        if owner is None or len(owner) == workers:
            return cls(scale, source, None, None, None)
        everybody = np.arange(workers)
        small = workers * len(owner) <= SMALL
        summing = (everybody[:, None] == owner).astype(scale.dtype) if small else None
        return cls(scale, source, owner, owner.searchsorted(everybody), summing)

    def only(self, rows: IntArray) -> Tiles:
        """Return the tiles of the workers at `rows`, which ascend; `source` still refers to the whole flat layout."""
        if self.owner is None:
            tile, owner = rows, None
        else:
            tile = np.flatnonzero(np.isin(self.owner, rows, kind="table"))
            owner = rows.searchsorted(self.owner[tile])
        count, length = self.scale.shape
        places = np.arange(count * length) if self.source is None else self.source
        source = places.reshape(count, length)[tile].ravel()
        return self._summed(self.scale[tile], source, owner, len(rows))

    def spread(self, point: FloatArray) -> FloatArray:
        """Return a point per tile, from a point per worker; one point for all stays as it is."""
        if point.ndim == 1 or self.owner is None:
            return point
        return point.take(self.owner, 0)

    def gather(self, partial: FloatArray) -> FloatArray:
        """Return the sums of each worker's tiles: `(..., tiles, p)` becomes `(..., workers, p)`."""
        if self.first is None:
            return partial
        if self.summing is not None:
            return self.summing @ partial
        return np.add.reduceat(partial, self.first, axis=-2)
