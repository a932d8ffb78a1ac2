"""Randomness from a counter: every draw is a pure function of (seed, purpose, worker, round, position).

SplitMix64 (Steele, Lea, Flood 2014), evaluated at many positions at once. A NumPy generator made for one
worker and round costs 12 microseconds before it draws anything; here a round of ten workers costs less.
No state exists, so a draw is the same in every engine, on every host, in every order and after a resume.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

UInt64 = npt.NDArray[np.uint64]

GAMMA = 0x9E3779B97F4A7C15
WORD = (1 << 64) - 1

# So many words are scrambled at a time: they stay in the second-level cache.
PIECE = 1 << 14

# What a stream of draws is for. The numbers are part of the run format: never reuse one.
MINIBATCH = 1
QUANTISER = 2
DROPOUT = 3
AUGMENTATION = 4
START = 5
NOISE = 6
SUM = 7


def mix(z: UInt64) -> UInt64:
    """Scramble 64-bit words in place: the output function of SplitMix64."""
    shifted = z >> np.uint64(30)
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
    base = mix(np.array([seed & WORD], np.uint64) + np.uint64(GAMMA))
    base = mix(base + words(purpose))
    return mix(base + words(workers))


def round_keys(of_workers: UInt64, rounds: npt.ArrayLike) -> UInt64:
    """Return the start of the stream of each (round, worker): shape (rounds, workers)."""
    return mix(of_workers + words(rounds)[:, None])


def keys(seed: int, purpose: int, workers: npt.ArrayLike, rounds: npt.ArrayLike) -> UInt64:
    """Return the start of the stream of each (round, worker): shape (rounds, workers)."""
    return round_keys(worker_keys(seed, purpose, workers), rounds)


def uniforms(key: UInt64, n: int) -> npt.NDArray[np.float64]:
    """Return `n` uniform numbers in [0, 1) per key, as a last dimension of length `n`."""
    if key.size * n <= PIECE:
        return unit(mix(key[..., None] + words(np.arange(1, n + 1))))
    drawn = np.empty((*key.shape, n))
    step = max(1, PIECE // key.size)
    starts = key[..., None] + words(np.arange(1, step + 1))
    for start in range(0, n, step):
        drawn[..., start : start + step] = unit(mix(starts[..., : n - start] + words(start)))
    return drawn


def rounding_noise(seed: int, k: npt.ArrayLike, workers: npt.ArrayLike, n: int) -> npt.NDArray[np.float64]:
    """Return what n entries of each worker are rounded by; `k` is the round, or one per worker.

    Whoever encodes a message and whoever decodes it draw the same.
    """
    return uniforms(mix(worker_keys(seed, QUANTISER, workers) + words(k)), n)


def unit(z: UInt64) -> npt.NDArray[np.float64]:
    """Map 64-bit words to [0, 1) with 53 bits."""
    z >>= np.uint64(11)
    u = z.astype(np.float64)
    u *= 2.0**-53
    return u
