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
