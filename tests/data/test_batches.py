"""Minibatches: without replacement, inside the shard, uniform, and a function of (seed, worker, iteration)."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lasg.data.batches import Batches, batch_sizes
from lasg.errors import LasgError

SIZES = np.array([50, 7, 1, 23, 12, 400])
BATCH = np.array([5, 3, 1, 23, 3, 90])  # thin, thick, single, all of it, exactly a quarter, thin with repeats


def split(flat: npt.NDArray[np.integer], batch: npt.NDArray[np.integer]) -> list[list[int]]:
    return [part.tolist() for part in np.split(flat, np.cumsum(batch)[:-1])]


def make(seed: int = 0) -> Batches:
    return Batches(SIZES, BATCH, ids=np.arange(len(SIZES)), seed=seed)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 200), st.floats(0.01, 1.0)), min_size=1, max_size=8),
    st.integers(0, 2**64 - 1),
    st.integers(0, 10**9),
)
def test_a_batch_has_its_size_lies_in_its_shard_and_repeats_nothing(
    shards: list[tuple[int, float]], seed: int, iteration: int
) -> None:
    sizes = np.array([size for size, _ in shards])
    batch = np.array([max(1, round(ratio * size)) for size, ratio in shards])
    offsets = np.cumsum(sizes) - sizes
    batches = Batches(sizes, batch, ids=np.arange(len(sizes)), seed=seed)
    drawn = split(batches.draw_all(iteration), batch)
    for mine, size, count, offset in zip(drawn, sizes, batch, offsets, strict=True):
        assert len(mine) == len(set(mine)) == count
        assert offset <= min(mine)
        assert max(mine) < offset + size


def test_everybody_and_of_draw_the_same() -> None:
    batches, again = make(), make()
    for iteration in [*range(200), 10**6]:
        drawn = split(batches.draw_all(iteration), BATCH)
        for rows in ([0], [5], [1, 4], [0, 2, 3, 5], [0, 1, 2, 3, 4, 5]):
            alone = again.draw(iteration, np.array(rows))
            assert split(alone, BATCH[rows]) == [drawn[m] for m in rows]


def test_a_draw_does_not_depend_on_who_else_lives_in_the_process() -> None:
    """Processes that hold some of the workers number their rows by themselves; the places in the shard agree."""
    offsets = np.cumsum(SIZES) - SIZES
    everybody = make()
    for ids in ([0], [5], [3, 1], [4, 5, 0]):
        mine = Batches(SIZES[ids], BATCH[ids], ids=np.array(ids), seed=0)
        for iteration in (0, 1, 57, 58, 3000):
            together = split(everybody.draw_all(iteration), BATCH)
            apart = split(mine.draw_all(iteration), BATCH[ids])
            for m, found, offset in zip(ids, apart, mine.offsets, strict=True):
                assert [n - offset for n in found] == [n - offsets[m] for n in together[m]]


def test_a_draw_does_not_depend_on_what_was_drawn_before() -> None:
    forwards, backwards = make(), make()
    there = [forwards.draw_all(k).tolist() for k in range(300)]
    back = [backwards.draw_all(k).tolist() for k in reversed(range(300))]
    assert there == back[::-1]


def test_iterations_workers_and_seeds_draw_differently() -> None:
    ten = np.full(4, 10)
    batches = Batches(np.full(4, 1000), ten, ids=np.arange(4), seed=0)
    other = Batches(np.full(4, 1000), ten, ids=np.arange(4), seed=1)
    seen = set()
    for k in range(50):
        for source in (batches, other):
            for m, mine in enumerate(split(source.draw_all(k), ten)):
                seen.add(tuple(n - 1000 * m for n in mine))
    assert len(seen) == 50 * 2 * 4


@pytest.mark.parametrize(("size", "batch"), [(10, 2), (12, 3), (10, 3), (10, 5), (10, 9)])
def test_every_sample_and_every_pair_is_equally_likely(size: int, batch: int) -> None:
    """Chi-square over samples and over pairs. Within a draw they exclude each other, which lowers the statistic."""
    rounds = 20_000
    batches = Batches(np.array([3, size, 4]), np.array([1, batch, 1]), ids=np.arange(3), seed=7)
    samples = np.zeros(size)
    pairs = np.zeros((size, size))
    for k in range(rounds):
        mine = batches.draw_all(k)[1:-1] - 3
        samples[mine] += 1
        pairs[np.ix_(mine, mine)] += 1
    expected = rounds * batch / size
    chi2 = ((samples - expected) ** 2 / expected).sum()
    assert chi2 < size + 5 * np.sqrt(2 * size)
    counts = np.array([pairs[i, j] for i, j in combinations(range(size), 2)])
    together = rounds * batch * (batch - 1) / (size * (size - 1))
    chi2 = ((counts - together) ** 2 / together).sum()
    assert chi2 < len(counts) + 5 * np.sqrt(2 * len(counts))


def test_every_subset_is_equally_likely_where_repeats_are_redrawn() -> None:
    """C(12, 3) = 220 subsets, on the path that draws repeats again."""
    rounds = 44_000
    batches = Batches(np.array([12]), np.array([3]), ids=np.array([0]), seed=3)
    assert not batches._layout.thick
    counts: dict[tuple[int, ...], int] = {}
    for k in range(rounds):
        mine = tuple(sorted(batches.draw_all(k).tolist()))
        counts[mine] = counts.get(mine, 0) + 1
    assert len(counts) == 220
    observed = np.array(list(counts.values()))
    chi2 = ((observed - rounds / 220) ** 2 / (rounds / 220)).sum()
    assert 219 - 5 * np.sqrt(2 * 219) < chi2 < 219 + 5 * np.sqrt(2 * 219)


def test_successive_draws_are_independent() -> None:
    """The number of samples shared with the draw before is hypergeometric: mean b^2 / n."""
    size, batch, rounds = 40, 8, 5000
    batches = Batches(np.array([size]), np.array([batch]), ids=np.array([0]), seed=1)
    draws = [set(batches.draw_all(k).tolist()) for k in range(rounds)]
    shared = np.array([len(a & b) for a, b in pairwise(draws)])
    mean = batch * batch / size
    deviation = np.sqrt(mean * (1 - batch / size) * (size - batch) / (size - 1) / len(shared))
    assert abs(shared.mean() - mean) < 5 * deviation


def test_batch_sizes_are_a_share_of_the_shard_and_at_least_one() -> None:
    found = batch_sizes(np.array([1, 3, 100, 149, 151, 9000]), 0.01)
    assert found.tolist() == [1, 1, 1, 1, 2, 90]
    assert batch_sizes(np.array([1, 7, 8]), 1.0).tolist() == [1, 7, 8]


@pytest.mark.parametrize("ratio", [0.0, -0.1, 1.1, float("nan")])
def test_a_ratio_outside_0_to_1_is_refused(ratio: float) -> None:
    with pytest.raises(LasgError, match="share"):
        batch_sizes(np.array([10]), ratio)


def test_of_answers_in_the_order_of_the_rows_that_were_asked() -> None:
    batches = make()
    drawn = split(batches.draw_all(3), BATCH)
    assert split(batches.draw(3, np.array([4, 0])), BATCH[[4, 0]]) == [drawn[4], drawn[0]]
