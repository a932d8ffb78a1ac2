"""Randomness from a counter: every draw is a pure function of (seed, purpose, worker, round, position).

SplitMix64 (Steele, Lea, Flood 2014), evaluated at many positions at once. A NumPy generator made for one
worker and round costs 12 microseconds before it draws anything; here a round of ten workers costs less.
No state exists, so a draw is the same in every engine, on every host, in every order and after a resume.

What rounds long vectors is version 2: `hashed`, 32-bit words and numbers in single precision, in a third of the time.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

UInt32 = npt.NDArray[np.uint32]
UInt64 = npt.NDArray[np.uint64]
Numbers = npt.NDArray[Any]

GAMMA = 0x9E3779B97F4A7C15
WORD = (1 << 64) - 1

# So many words are scrambled at a time: they stay in the second-level cache.
PIECE = 1 << 14

ROUNDING = 2
"""The version of the numbers that round long vectors; it changes whenever they do."""
LONG = 1 << 19
"""Vectors of more entries are rounded by numbers of that version, others by version 1, which they always had."""
HASHED = 1 << 15
"""Entries of a long vector that have a pair of 32-bit keys in common."""

# What a stream of draws is for. The numbers are part of the run format: never reuse one.
MINIBATCH = 1
QUANTISER = 2
DROPOUT = 3
AUGMENTATION = 4
START = 5
NOISE = 6
SUM = 7


def mix(z: UInt64, shifted: UInt64 | None = None) -> UInt64:
    """Scramble 64-bit words in place: the output function of SplitMix64. `shifted` is room for as many words."""
    shifted = np.right_shift(z, np.uint64(30), out=shifted)
    z ^= shifted
    z *= np.uint64(0xBF58476D1CE4E5B9)
    np.right_shift(z, np.uint64(27), out=shifted)
    z ^= shifted
    z *= np.uint64(0x94D049BB133111EB)
    np.right_shift(z, np.uint64(31), out=shifted)
    z ^= shifted
    return z


def words(values: npt.ArrayLike) -> UInt64:
    """Return integers as 64-bit words times the odd constant that spaces SplitMix64's states."""
    return np.atleast_1d(np.asarray(values)).astype(np.uint64) * np.uint64(GAMMA)


def worker_keys(seed: int, purpose: int, workers: npt.ArrayLike) -> UInt64:
    """Return what the streams of each worker start from, whatever the round."""
    return mix(_base(seed, purpose) + words(workers))


@functools.lru_cache
def _base(seed: int, purpose: int) -> UInt64:
    base = mix(np.array([seed & WORD], np.uint64) + np.uint64(GAMMA))
    return mix(base + words(purpose))


def round_keys(of_workers: UInt64, rounds: npt.ArrayLike) -> UInt64:
    """Return the start of the stream of each (round, worker): shape (rounds, workers)."""
    return mix(of_workers + words(rounds)[:, None])


def keys(seed: int, purpose: int, workers: npt.ArrayLike, rounds: npt.ArrayLike) -> UInt64:
    """Return the start of the stream of each (round, worker): shape (rounds, workers)."""
    return round_keys(worker_keys(seed, purpose, workers), rounds)


STEPS = words(np.arange(1, PIECE + 1))
"""What is added to a key for each position of a piece."""


def uniforms(key: UInt64, n: int) -> npt.NDArray[np.float64]:
    """Return `n` uniform numbers in [0, 1) per key, as a last dimension of length `n`."""
    if key.size * n <= PIECE:
        return unit(mix(key[..., None] + STEPS[:n]))
    return fill(np.empty((*key.shape, n)), key, 0, np.empty((2, max(PIECE, key.size)), np.uint64))


def fill(drawn: npt.NDArray[np.float64], key: UInt64, first: int, room: UInt64) -> npt.NDArray[np.float64]:
    """Fill an array with the uniform numbers of each key, those from the `first` on; `room` has two pieces' words."""
    n, step = drawn.shape[-1], max(1, PIECE // max(1, key.size))
    for start in range(0, n, step):
        part = drawn[..., start : start + step]
        z, shifted = (words_of[: part.size].reshape(part.shape) for words_of in room)
        np.add(STEPS[: part.shape[-1]], key[..., None] + words(first + start), out=z)
        unit(mix(z, shifted), part)
    return drawn


def hashed(drawn: npt.NDArray[np.float32], key: UInt64, first: int, room: UInt32) -> npt.NDArray[np.float32]:
    """Fill an array with the uniform numbers of each key in single precision, those from the `first` on: version 2.

    Every 2^15 positions have a word of SplitMix64, whose halves are a and b. Position i of them has the upper 24 bits
    of mix32(mix32(i) + a, b).
    """
    for row, of_row in zip(drawn, key, strict=True):
        for block in range(first // HASHED, -(-(first + len(row)) // HASHED)):
            start = max(block * HASHED, first)
            part = row[start - first : (block + 1) * HASHED - first]
            low, high = mix(of_row + words(block + 1)).astype("<u8").view("<u4").astype(np.uint32)
            x, shifted = room[0, : len(part)], room[1, : len(part)]
            np.add(_spread()[start - block * HASHED :][: len(part)], low, out=x)
            mix32(x, high, shifted)
            x >>= np.uint32(8)
            part[...] = x.view(np.int32)  # quicker to convert than unsigned
            part *= np.float32(2.0**-24)
    return drawn


def mix32(x: UInt32, key: np.uint32, shifted: UInt32) -> UInt32:
    """Scramble 32-bit words in place, by multipliers that Wellons found (hash-prospector, "lowbias32")."""
    np.right_shift(x, np.uint32(16), out=shifted)
    x ^= shifted
    x *= np.uint32(0x21F0AAAD)
    np.right_shift(x, np.uint32(15), out=shifted)
    x ^= shifted
    x ^= key
    x *= np.uint32(0x735A2D97)
    return x


@functools.cache
def _spread() -> UInt32:
    """Return mix32 of the positions of a block."""
    x = np.arange(HASHED, dtype=np.uint32)
    return mix32(x, np.uint32(0), np.empty_like(x))


@dataclass(eq=False)
class Draws:
    """The uniform numbers that n entries of some workers are rounded by in a round, drawn where they are asked for.

    `k` is the round, or one per worker. Whoever encodes a message and whoever decodes it draw the same.
    """

    seed: int
    k: npt.ArrayLike
    workers: npt.ArrayLike
    n: int
    purpose: int = QUANTISER
    first: int = 0
    """Where they begin, of a vector that is cut."""
    long: bool | None = None
    """Whether that vector has more than `LONG` entries; None: it is not cut, so n says it."""

    @functools.cached_property
    def dtype(self) -> np.dtype[Any]:
        """The precision of the numbers."""
        return np.dtype(np.float32 if self.long or (self.long is None and self.n > LONG) else np.float64)

    @functools.cached_property
    def keys(self) -> UInt64:
        """The start of each worker's stream."""
        return mix(worker_keys(self.seed, self.purpose, self.workers) + words(self.k))

    def __call__(self) -> Numbers:
        """Return all of them, a row per worker."""
        if self._few:
            return uniforms(self.keys, self.n)
        return self._fill(np.empty((len(self.keys), self.n), self.dtype), self.keys, 0)

    def cut(self, entries: slice) -> Draws:
        """Return those of some entries alone."""
        n, first, long = entries.stop - entries.start, self.first + entries.start, self.dtype == np.float32
        return replace(self, n=n, first=first, long=long)

    def part(self, rows: slice, entries: slice, out: Numbers) -> Numbers:
        """Fill an array with those of some workers and entries, without drawing the others."""
        if self._few and out.size == self.keys.size * self.n:
            return self()
        return self._fill(out, self.keys[rows], entries.start)

    @property
    def _few(self) -> bool:
        return not self.first and self.keys.size * self.n <= PIECE and self.dtype == np.float64

    def _fill(self, out: Numbers, keys: UInt64, start: int) -> Numbers:
        draw = fill if self.dtype == np.float64 else hashed
        return draw(out, keys, self.first + start, self._room)

    @functools.cached_property
    def _room(self) -> npt.NDArray[Any]:
        if self.dtype == np.float64:
            return np.empty((2, max(PIECE, self.keys.size)), np.uint64)
        return np.empty((2, HASHED), np.uint32)


def rounding_noise(seed: int, k: npt.ArrayLike, workers: npt.ArrayLike, n: int) -> Numbers:
    """Return what n entries of each worker are rounded by, all at once."""
    return Draws(seed, k, workers, n)()


def unit(z: UInt64, out: npt.NDArray[np.float64] | None = None) -> npt.NDArray[np.float64]:
    """Map 64-bit words to [0, 1) with 53 bits."""
    z >>= np.uint64(11)
    u = np.empty(z.shape) if out is None else out
    u[...] = z
    u *= 2.0**-53
    return u
