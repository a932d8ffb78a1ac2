"""What the server knows of blocks that are decided by themselves: for how long each of every worker was not said."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lasg.core.arrays import Array, FloatArray, IntArray, Mask, sq
from lasg.core.block_codec import BlockCodec
from lasg.core.messages import BlockTerms, Uploads
from lasg.errors import LasgError


class Watched(NamedTuple):
    """What a round showed the guard (`Guard.close`), summed over the blocks that were said."""

    share: float
    news: float
    size: float
    silent: bool


class BlockAges:
    """The staleness of every block of every worker, which takes the place of tau where blocks are decided."""

    def __init__(self, codec: BlockCodec, workers: int, p: int) -> None:
        self.codec, self.blocks, self.p = codec, codec.blocks, p
        shape = (workers, len(self.blocks.slices(p)))
        self.ages: IntArray = np.ones(shape, np.int64)
        self.said: Mask = np.zeros(shape, np.bool_)
        """Which blocks were said in the round that is closed, or was last."""
        self._due: Mask = self.said

    def open(self, threshold: Any, must: Mask) -> BlockTerms:
        """Return what decides in a round, in which workers `(M,)`, or blocks `(M, B)`, must be said."""
        shape = self.ages.shape
        self._due = np.broadcast_to(must.reshape(len(must), -1), shape)
        return BlockTerms(np.broadcast_to(np.asarray(threshold, np.float64), shape[1:]), self._due)

    def close(self, uploads: Uploads) -> None:
        """Take which blocks were uploaded. One that was due and has no news is left out of a message, and counts."""
        said, who = uploads.said, uploads.uploaded
        if said is None:
            said = self.codec.said(uploads.messages, self.p)
        if len(said) != np.count_nonzero(who):
            raise LasgError("the transport does not say which blocks were uploaded: it must hand on Uploads.said")
        self.said = np.zeros(self.ages.shape, np.bool_)
        self.said[who] = said | self._due[who]
        self.ages = np.where(self.said, 1, self.ages + 1)

    def watch(self, innovation: Array | None, aggregate: Array, weights: FloatArray) -> Watched:
        """Return what the innovations of the round were worth; every block has uploaders of its own.

        `weights` are the workers' w_m^2. The news of a block are divided by its uploaders' share.
        """
        news = size = 0.0
        for b, where in enumerate(self.blocks.slices(self.p)):
            who = self.said[:, b]
            if innovation is None or not who.any():
                continue
            share = 1.0 if who.all() else float(weights[who].sum() / weights.sum())
            new, old = innovation[where], aggregate[where]
            news += float(sq(new)) / share
            size += 0.5 * float(sq(old) + sq(old + new))
        any_said = innovation is not None and bool(self.said.any())
        return Watched(float(any_said), news, size, not self.said.all())
