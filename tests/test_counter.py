"""The counter against SplitMix64 in plain Python integers, and its draws against uniformity."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lasg import counter

MASK = 2**64 - 1
GAMMA = 0x9E3779B97F4A7C15
words = st.integers(0, MASK)


def mix(z: int) -> int:
    """Steele, Lea, Flood 2014: the output function, as printed in the reference code."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def splitmix(seed: int, n: int) -> list[int]:
    """The first n outputs of the generator seeded with `seed`: add gamma, then mix."""
    return [mix((seed + i * GAMMA) & MASK) for i in range(1, n + 1)]


def key(seed: int, purpose: int, worker: int, iteration: int) -> int:
    state = mix((seed + GAMMA) & MASK)
    for word in (purpose, worker, iteration):
        state = mix((state + word * GAMMA) & MASK)
    return state


def test_the_plain_implementation_gives_the_published_outputs() -> None:
    """The known first outputs for the seed 1234567."""
    assert splitmix(1234567, 5) == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@given(words)
def test_mix_is_the_output_function_of_splitmix64(z: int) -> None:
    assert int(counter.mix(np.array([z], np.uint64))[0]) == mix(z)


@given(words, st.integers(1, 3), st.integers(0, 10**6), st.integers(0, 10**7))
def test_a_key_is_a_chain_of_mixes(seed: int, purpose: int, worker: int, iteration: int) -> None:
    found = counter.keys(seed, purpose, [worker], iteration)
    assert found.shape == (1, 1)
    assert int(found[0, 0]) == key(seed, purpose, worker, iteration)


@given(words, st.integers(1, 40))
def test_uniforms_are_the_top_53_bits_of_the_stream_that_starts_at_the_key(start: int, n: int) -> None:
    expected = [(z >> 11) * 2.0**-53 for z in splitmix(start, n)]
    found = counter.uniforms(np.array([start], np.uint64), n)
    assert found.shape == (1, n)
    assert found[0].tolist() == expected


def test_keys_do_not_depend_on_which_others_are_asked_for() -> None:
    together = counter.keys(9, counter.MINIBATCH, np.arange(6), np.arange(10, 14))
    assert together.shape == (4, 6)
    for i in range(4):
        for m in range(6):
            assert together[i, m] == counter.keys(9, counter.MINIBATCH, [m], 10 + i)[0, 0]


@pytest.mark.parametrize("seed", [-1, 0, 2**64 - 1, 2**64, 2**70 + 3])
def test_any_integer_is_a_seed(seed: int) -> None:
    assert int(counter.keys(seed, 1, [0], 0)[0, 0]) == key(seed & MASK, 1, 0, 0)


def test_every_part_of_the_key_matters() -> None:
    base = (3, counter.MINIBATCH, 5, 7)
    keys = {key(*base)}
    for place in range(4):
        for change in (1, 2, 1000):
            parts = list(base)
            parts[place] += change
            keys.add(int(counter.keys(parts[0], parts[1], [parts[2]], parts[3])[0, 0]))
    assert len(keys) == 13
    assert counter.MINIBATCH != counter.QUANTISER


def test_numbers_are_in_the_half_open_unit_interval_at_its_ends() -> None:
    ends = np.array([0, MASK], np.uint64)
    low, high = counter.unit(ends).tolist()
    assert low == 0.0
    assert high == 1 - 2.0**-53


@pytest.mark.parametrize("axis", ["positions", "workers", "rounds", "seeds"])
def test_draws_are_uniform_along_every_axis(axis: str) -> None:
    """Chi-square in 100 cells: mean 99, standard deviation 14; a fixed seed, so this never flickers."""
    n = 100_000
    if axis == "positions":
        draws = counter.uniforms(counter.keys(1, 2, [3], 4), n).ravel()
    elif axis == "workers":
        draws = counter.uniforms(counter.keys(1, 2, np.arange(n), 4), 1).ravel()
    elif axis == "rounds":
        draws = counter.uniforms(counter.keys(1, 2, [3], np.arange(n)), 1).ravel()
    else:
        draws = np.concatenate([counter.uniforms(counter.keys(s, 2, [3], 4), 50).ravel() for s in range(2000)])
    observed = np.bincount((draws * 100).astype(int), minlength=100)
    chi2 = float(((observed - n / 100) ** 2 / (n / 100)).sum())
    assert 99 - 5 * 14 < chi2 < 99 + 5 * 14


def test_neighbouring_streams_are_uncorrelated() -> None:
    draws = counter.uniforms(counter.keys(0, 1, np.arange(30), np.arange(2)), 4000).reshape(60, -1)
    off = np.asarray(np.corrcoef(draws))[np.triu_indices(60, 1)]
    assert np.abs(off).max() < 5 / np.sqrt(4000)


# -- version 2, which rounds long vectors ------------------------------------------------------------------------------


def mix32(x: int, key: int) -> int:
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) % 2**32
    return ((x ^ (x >> 15) ^ key) * 0x735A2D97) % 2**32


def slow(start: int, position: int) -> float:
    """The number of a long vector's position, by its definition."""
    block, i = divmod(position, 2**15)
    word = mix((start + (block + 1) * GAMMA) & MASK)
    return (mix32((mix32(i, 0) + word % 2**32) % 2**32, word >> 32) >> 8) * 2.0**-24


def long_draws(workers: list[int], k: int = 0, seed: int = 0) -> counter.Draws:
    return counter.Draws(seed, k, workers, 2**33)


@given(words, st.integers(0, 2**33 - 9), st.integers(1, 8))
def test_the_numbers_of_a_long_vector_are_those_of_the_definition(start: int, first: int, n: int) -> None:
    """Wherever it is cut, and beyond 2^32 entries."""
    room = np.empty((2, counter.HASHED), np.uint32)
    found = counter.hashed(np.empty((1, n), np.float32), np.array([start], np.uint64), first, room)
    assert found[0].tolist() == [slow(start, first + i) for i in range(n)]


def test_a_piece_of_a_long_vector_has_the_numbers_of_the_whole() -> None:
    draws, end = long_draws([3, 4], k=7), 2**15 + 9
    whole = draws.cut(slice(0, end))()
    assert whole.dtype == np.float32
    starts = [key(0, counter.QUANTISER, worker, 7) for worker in (3, 4)]
    for row, start in zip(whole, starts, strict=True):
        assert row[-12:].tolist() == [slow(start, i) for i in range(end - 12, end)]
    for begin in (0, 5, 2**15 - 1, 2**15):
        piece = slice(begin, end)
        np.testing.assert_array_equal(draws.cut(piece)(), whole[:, piece])
        room = np.empty((1, end - begin), np.float32)
        np.testing.assert_array_equal(draws.part(slice(1, 2), piece, room), whole[1:, piece])


def test_only_long_vectors_have_version_2() -> None:
    short, long = (counter.Draws(0, 0, [0], p).cut(slice(0, 3))() for p in (counter.LONG, counter.LONG + 1))
    assert short.dtype == np.float64
    assert short[0].tolist() == counter.uniforms(counter.keys(0, counter.QUANTISER, [0], 0)[0], 3)[0].tolist()
    assert long.dtype == np.float32
    assert short[0].tolist() != long[0].tolist()


@pytest.mark.parametrize("axis", ["position", "worker", "round", "block", "seed"])
def test_numbers_of_version_2_are_uniform_along_every_axis(axis: str) -> None:
    n = 20_000
    if axis == "position":
        drawn = long_draws([1]).cut(slice(0, 5 * n))()
    elif axis == "worker":
        drawn = long_draws(list(range(n))).cut(slice(5, 6))()
    elif axis == "round":
        drawn = np.array([long_draws([2], k).cut(slice(9, 10))() for k in range(n // 10)])
    elif axis == "block":
        drawn = np.array([long_draws([2]).cut(slice(i << 15, (i << 15) + 3))() for i in range(n // 10)])
    else:
        drawn = np.array([long_draws([2], 3, seed).cut(slice(0, 3))() for seed in range(n // 10)])
    numbers = drawn.ravel().astype(np.float64)
    assert 0 <= numbers.min() <= numbers.max() < 1
    words24 = (numbers * 2**24).astype(np.int64)
    for shift in (20, 16, 8, 0):  # four bits each, also the lowest
        counts = np.bincount(words24 >> shift & 15, minlength=16)
        expected = len(numbers) / 16
        assert ((counts - expected) ** 2 / expected).sum() < 15 + 6 * 30**0.5


def test_numbers_of_version_2_do_not_go_together() -> None:
    """Of neighbours, blocks, workers, rounds: correlations within five standard errors."""
    n = 2**16
    rows = np.concatenate([long_draws([0, 1, 2, 3], k).cut(slice(0, n))() for k in range(4)]).astype(np.float64)
    rows = np.concatenate([rows, rows[:1, ::-1], np.roll(rows[:1], 1), np.roll(rows[:1], 2**15)])
    between = np.corrcoef(rows) - np.eye(len(rows))
    assert np.abs(between).max() < 5 / n**0.5
    steps = (rows[:4] * 16).astype(np.int64)
    counts = np.bincount((steps[:, 1:] * 16 + steps[:, :-1]).ravel(), minlength=256)  # of pairs of neighbours
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 255 + 6 * 510**0.5
