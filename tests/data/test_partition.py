"""Partitions: every sample in exactly one shard, no worker without one, and nothing but the seed decides."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lasg.data import partition
from lasg.data.partition import PARTITIONS, Shards, split
from lasg.errors import LasgError

Labels = NDArray[np.int64]

LABELS = st.lists(st.integers(0, 4), min_size=1, max_size=120).map(lambda x: np.array(x, dtype=np.int64))
SEEDS = st.integers(0, 2**32)


def options(kind: str, labels: Labels, workers: int, data: st.DataObject) -> dict[str, Any]:
    """Draw options under which the kind is possible for these labels."""
    if kind == "dirichlet":
        return {"alpha": data.draw(st.floats(1e-3, 1e3))}
    if kind == "sorted":
        most = (len(labels) - 1) // (workers - 1) if workers > 1 else 50
        return {"cut": data.draw(st.none() | st.integers(1, max(1, most)))}
    if kind == "classes":
        values, sizes = np.unique(labels, return_counts=True)
        classes = data.draw(st.integers(1, len(values)))
        assume(classes * workers >= len(values))
        assume(sizes.min() >= -(-classes * workers // len(values)))
        return {"classes": classes}
    if kind == "sizes":
        cuts = data.draw(st.permutations(range(1, len(labels))))[: workers - 1]
        return {"sizes": np.diff([0, *sorted(cuts), len(labels)]).tolist()}
    return {}


@pytest.mark.parametrize("kind", PARTITIONS)
@settings(deadline=None)
@given(labels=LABELS, seed=SEEDS, data=st.data())
def test_every_sample_is_in_exactly_one_shard_and_no_shard_is_empty(
    kind: str, labels: Labels, seed: int, data: st.DataObject
) -> None:
    workers = data.draw(st.integers(1, min(12, len(labels))))
    chosen = options(kind, labels, workers, data)
    before = labels.copy()
    shards = split(kind, labels, workers, seed, **chosen)
    assert len(shards) == workers
    assert all(len(shard) > 0 and shard.dtype == np.int64 for shard in shards)
    np.testing.assert_array_equal(np.sort(np.concatenate(shards)), np.arange(len(labels)))
    np.testing.assert_array_equal(labels, before)
    assert_same(shards, split(kind, labels, workers, seed, **chosen))


def assert_same(one: Shards, other: Shards) -> None:
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


THREE = np.repeat(np.arange(3), 400)
EXAMPLES: dict[str, dict[str, Any]] = {
    "homogeneous": {},
    "sorted": {},
    "dirichlet": {"alpha": 0.5},
    "classes": {"classes": 2},
    "sizes": {"sizes": [100, 200, 300, 600]},
}


@pytest.mark.parametrize("kind", sorted(set(PARTITIONS) - {"sizes"}))
def test_another_seed_gives_another_partition(kind: str) -> None:
    first, second = (split(kind, THREE, 4, seed, **EXAMPLES[kind]) for seed in (1, 2))
    assert any(not np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("kind", PARTITIONS)
def test_the_global_generator_is_neither_used_nor_moved(kind: str) -> None:
    before = np.random.get_state()[1].copy()  # type: ignore[index]  # noqa: NPY002
    split(kind, THREE, 4, 0, **EXAMPLES[kind])
    after = np.random.get_state()[1]  # type: ignore[index]  # noqa: NPY002
    np.testing.assert_array_equal(before, after)


@settings(deadline=None)
@given(labels=LABELS, seed=SEEDS, data=st.data())
def test_homogeneous_shards_differ_by_at_most_one(labels: Labels, seed: int, data: st.DataObject) -> None:
    workers = data.draw(st.integers(1, len(labels)))
    sizes = [len(shard) for shard in partition.homogeneous(labels, workers, seed)]
    assert max(sizes) - min(sizes) <= 1


@settings(deadline=None)
@given(labels=LABELS, seed=SEEDS, data=st.data())
def test_sorted_uneven_is_the_stable_label_order_cut_at_multiples(
    labels: Labels, seed: int, data: st.DataObject
) -> None:
    workers = data.draw(st.integers(1, min(12, len(labels))))
    cut = data.draw(st.integers(1, max(1, (len(labels) - 1) // max(1, workers - 1))))
    shards = partition.sorted_uneven(labels, workers, seed, cut)
    expected = sorted(range(len(labels)), key=lambda row: labels[row])  # Python's sort is stable
    assert np.concatenate(shards).tolist() == expected
    assert all(len(shard) % cut == 0 for shard in shards[:-1])


@pytest.mark.parametrize(
    ("samples", "workers", "cut"),
    [
        (90_000, 10, 1000),
        (581_012, 20, 1000),
        (10_000, 10, 1000),
        (9_999, 10, 50),
        (11_552, 24, 20),
        (569, 5, 10),
        (10, 10, 1),
        (1, 1, 1),
    ],
)
def test_the_cut_is_the_papers_where_it_fits_and_a_round_tenth_of_a_shard_elsewhere(
    samples: int, workers: int, cut: int
) -> None:
    assert partition.default_cut(samples, workers) == cut
    shards = partition.sorted_uneven(np.zeros(samples, dtype=np.int64), workers, 0)
    assert all(len(shard) % cut == 0 for shard in shards[:-1])


def test_cut_points_are_equally_likely() -> None:
    labels = np.zeros(60, dtype=np.int64)
    firsts = [len(partition.sorted_uneven(labels, 2, seed, 10)[0]) // 10 for seed in range(2000)]
    frequency = np.bincount(firsts, minlength=6)[1:]
    # five cut points, 400 expected each, standard deviation 18
    assert frequency.sum() == 2000
    assert (abs(frequency - 400) < 90).all()


def test_dirichlet_proportions_have_the_right_spread() -> None:
    alpha, workers = 0.7, 5
    labels = np.zeros(20_000, dtype=np.int64)
    shares = np.array(
        [[len(s) / 2e4 for s in partition.dirichlet(labels, workers, seed, alpha)] for seed in range(200)]
    )
    mean = 1 / workers
    variance = mean * (1 - mean) / (workers * alpha + 1)
    assert abs(shares.mean() - mean) < 1e-12
    assert abs(shares.var() / variance - 1) < 0.2


def test_dirichlet_gives_an_empty_worker_one_sample_of_the_largest_shard() -> None:
    labels = np.zeros(1000, dtype=np.int64)
    shards = partition.dirichlet(labels, 8, 3, 1e-6)
    assert sorted(len(shard) for shard in shards) == [1] * 7 + [993]


def test_dirichlet_with_as_many_workers_as_samples_gives_one_each() -> None:
    shards = partition.dirichlet(np.arange(9) % 3, 9, 0, 0.1)
    assert [len(shard) for shard in shards] == [1] * 9


@pytest.mark.parametrize(("workers", "classes"), [(10, 2), (4, 3), (5, 10), (20, 1), (7, 4)])
def test_every_worker_holds_exactly_so_many_classes(workers: int, classes: int) -> None:
    labels = np.random.default_rng(0).integers(10, size=3000)
    for shard in partition.classes_per_worker(labels, workers, 5, classes):
        assert len(np.unique(labels[shard])) == classes


def test_given_sizes_are_given_sorted_or_shuffled() -> None:
    labels = np.array([1, 0, 1, 0, 0, 1])
    assert [s.tolist() for s in partition.given_sizes(labels, 2, 0, [2, 4])] == [[1, 3], [4, 0, 2, 5]]
    shuffled = partition.given_sizes(np.zeros(100, dtype=np.int64), 2, 0, [30, 70], sort=False)
    assert [len(shard) for shard in shuffled] == [30, 70]
    assert shuffled[0].tolist() != list(range(30))


TEN = np.arange(10) % 5


@pytest.mark.parametrize(
    ("kind", "workers", "given_options", "message"),
    [
        ("homogeneous", 11, {}, "11 workers cannot share 10 samples: use at most 10"),
        ("homogeneous", 0, {}, "workers must be a whole number >= 1, got 0"),
        ("homogeneous", -3, {}, "workers must be a whole number >= 1, got -3"),
        ("homogeneous", 2.5, {}, "workers must be a whole number >= 1, got 2.5"),
        ("homogeneous", True, {}, "workers must be a whole number >= 1, got True"),
        ("sorted", 3, {"cut": 0}, "cut must be a whole number >= 1, got 0"),
        ("sorted", 4, {"cut": 4}, "2 cut points at multiples of 4, but 4 workers need 3: .* at most 3"),
        ("dirichlet", 3, {"alpha": 0}, "alpha must be above 0"),
        ("dirichlet", 3, {"alpha": float("nan")}, "alpha must be above 0"),
        ("dirichlet", 3, {"alpha": float("inf")}, "alpha must be above 0 and at most 1e"),
        ("classes", 2, {"classes": 6}, "classes must be at most 5"),
        ("classes", 2, {"classes": 0}, "classes must be a whole number >= 1, got 0"),
        ("classes", 2, {"classes": 2}, "2 workers .* cannot hold all 5 classes: use at least 3"),
        ("classes", 10, {"classes": 3}, "class . has 2 samples for 6 workers: use fewer"),
        ("sizes", 2, {"sizes": [5, 4]}, "must sum to the 10 samples, got 9: add 1"),
        ("sizes", 2, {"sizes": [5, 7]}, "must sum to the 10 samples, got 12: take away 2"),
        ("sizes", 3, {"sizes": [5, 5]}, "one number per worker: expected 3, got 2"),
        ("sizes", 2, {"sizes": [10, 0]}, "every size must be a whole number >= 1, got 0"),
        ("homogeneous", 2, {"alpha": 1.0}, "'homogeneous' has no option alpha, which belongs to dirichlet"),
        ("dirichlet", 2, {}, "'dirichlet' needs the option alpha"),
        ("classes", 2, {}, "needs the option classes"),
        ("sizes", 2, {}, "needs the option sizes"),
        ("sorteed", 2, {}, "unknown partition 'sorteed': did you mean 'sorted'"),
        ("zzz", 2, {}, "unknown partition 'zzz': The kinds are homogeneous, "),
    ],
)
def test_an_impossible_request_says_what_to_change(
    kind: str, workers: Any, given_options: dict[str, Any], message: str
) -> None:
    with pytest.raises(LasgError, match=message) as caught:
        split(kind, TEN, workers, 0, **given_options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("seed", [-1, 0.5, None])
def test_a_seed_must_be_a_whole_number(seed: Any) -> None:
    with pytest.raises(LasgError, match="seed must be a whole number >= 0"):
        split("homogeneous", TEN, 2, seed)


def test_labels_must_be_flat() -> None:
    with pytest.raises(LasgError, match=r"shape \(5, 2\)"):
        split("homogeneous", TEN.reshape(5, 2), 2, 0)
