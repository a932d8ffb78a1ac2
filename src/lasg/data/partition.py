"""Divide samples among workers: every sample into exactly one shard, every shard with at least one.

All functions are pure in (labels, workers, seed, options) and return one array of row indices a worker.
"""

import difflib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lasg.errors import LasgError

Shards = list[NDArray[np.int64]]

# Second word of the seed, so that this stream differs from those of other purposes under the same seed.
_PURPOSE = 0x70617274
_DIRICHLET_DRAWS = 20
_MAX_ALPHA = 1e6
_ROUND_CUTS = (500, 200, 100, 50, 20, 10, 5, 2, 1)


def homogeneous(labels: NDArray[Any], workers: int, seed: int) -> Shards:
    """Shuffle, then split evenly: sizes differ by at most one."""
    count, workers = _checked(labels, workers)
    return _shards(np.array_split(_rng(seed).permutation(count), workers))


def sorted_uneven(labels: NDArray[Any], workers: int, seed: int, cut: int | None = None) -> Shards:
    """Sort by label (stably), cut at distinct random multiples of `cut`: the paper's uneven setting."""
    count, workers = _checked(labels, workers)
    unit = default_cut(count, workers) if cut is None else _whole("cut", cut, 1)
    possible = (count - 1) // unit
    if possible < workers - 1:
        raise LasgError(
            f"{count} samples have {possible} cut points at multiples of {unit}, but {workers} workers need"
            f" {workers - 1}: use a cut of at most {(count - 1) // (workers - 1)}, or fewer workers"
        )
    points = unit * (1 + np.sort(_rng(seed).choice(possible, size=workers - 1, replace=False)))
    return _shards(np.split(np.argsort(labels, kind="stable"), points))


def default_cut(samples: int, workers: int) -> int:
    """Return the cut that `sorted_uneven` takes by itself.

    1,000, the paper's, from 10,000 samples on, if that leaves workers - 1 cut points; else the largest of
    500, 200, 100, 50, ... 1 that is at most a tenth of an even shard.
    """
    if samples >= 10_000 and (samples - 1) // 1000 >= workers - 1:
        return 1000
    return next(unit for unit in _ROUND_CUTS if unit <= max(1, samples // (10 * workers)))


def dirichlet(labels: NDArray[Any], workers: int, seed: int, alpha: float) -> Shards:
    """Share out each class by proportions drawn from Dirichlet(alpha); a small alpha gives unequal shards.

    Draws that leave a worker without a sample are repeated, at most 20 times; if the last one does so too,
    each empty worker gets one sample from the shard that is then the largest.
    """
    count, workers = _checked(labels, workers)
    if not 0 < alpha <= _MAX_ALPHA:
        raise LasgError(f"alpha must be above 0 and at most {_MAX_ALPHA:g}, got {alpha}: 0.1 is very uneven, 100 even")
    rng = _rng(seed)
    members = [rng.permutation(rows) for rows in _rows_by_class(labels)]
    owner = np.zeros(count, dtype=np.int64)
    for _ in range(_DIRICHLET_DRAWS):
        for rows in members:
            bounds = np.cumsum(rng.dirichlet(np.full(workers, alpha)))[:-1]
            owner[rows] = np.searchsorted(np.floor(bounds * len(rows)), np.arange(len(rows)), side="right")
        if len(np.unique(owner)) == workers:
            break
    sizes = np.bincount(owner, minlength=workers)
    for empty in np.flatnonzero(sizes == 0):
        largest = int(sizes.argmax())
        owner[np.flatnonzero(owner == largest)[-1]] = empty
        sizes[largest] -= 1
        sizes[empty] = 1
    return [np.flatnonzero(owner == worker) for worker in range(workers)]


def classes_per_worker(labels: NDArray[Any], workers: int, seed: int, classes: int) -> Shards:
    """Give every worker samples of exactly `classes` classes; workers that hold a class share it evenly."""
    _, workers = _checked(labels, workers)
    members = _rows_by_class(labels)
    number = _whole("classes", classes, 1)
    if number > len(members):
        raise LasgError(f"classes must be at most {len(members)}, the classes in the data, got {number}")
    if number * workers < len(members):
        raise LasgError(
            f"{workers} workers with {number} classes each cannot hold all {len(members)} classes:"
            f" use at least {math.ceil(len(members) / workers)} classes each, or more workers"
        )
    rng = _rng(seed)
    order = rng.permutation(len(members))
    # Dealt round and round in a random order: a worker's classes differ, and holders differ by at most one.
    dealt = np.resize(order, (workers, number))[rng.permutation(workers)]
    pieces: list[list[NDArray[np.int64]]] = [[] for _ in range(workers)]
    for index, rows in enumerate(members):
        holders = np.flatnonzero((dealt == index).any(axis=1))
        if len(holders) > len(rows):
            raise LasgError(
                f"class {labels[rows[0]]} has {len(rows)} samples for {len(holders)} workers:"
                " use fewer workers or fewer classes each"
            )
        for holder, share in zip(holders, np.array_split(rng.permutation(rows), len(holders)), strict=True):
            pieces[holder].append(share)
    return [np.concatenate(piece) for piece in pieces]


def given_sizes(labels: NDArray[Any], workers: int, seed: int, sizes: Sequence[int], sort: bool = True) -> Shards:
    """Cut into shards of the given sizes, sorted by label (stably) or, with `sort=False`, shuffled."""
    count, workers = _checked(labels, workers)
    counts = [_whole("every size", size, 1) for size in sizes]
    if len(counts) != workers:
        raise LasgError(f"sizes must have one number per worker: expected {workers}, got {len(counts)}")
    if sum(counts) != count:
        off = count - sum(counts)
        change = f"add {off}" if off > 0 else f"take away {-off}"
        raise LasgError(f"sizes must sum to the {count} samples, got {sum(counts)}: {change}")
    rng = _rng(seed)
    order = np.argsort(labels, kind="stable") if sort else rng.permutation(count)
    bounds = [0, *np.cumsum(counts).tolist()]
    return _shards([order[start:stop] for start, stop in pairwise(bounds)])


@dataclass(frozen=True)
class Kind:
    """One way to divide: its function, the options it must have, those it may have, and a line about it."""

    function: Callable[..., Shards]
    needs: tuple[str, ...]
    takes: tuple[str, ...]
    summary: str


PARTITIONS: dict[str, Kind] = {
    "homogeneous": Kind(homogeneous, (), (), "shuffled and split evenly"),
    "sorted": Kind(sorted_uneven, (), ("cut",), "sorted by label and cut at random (the paper's)"),
    "dirichlet": Kind(dirichlet, ("alpha",), (), "class proportions drawn from Dirichlet(alpha)"),
    "classes": Kind(classes_per_worker, ("classes",), (), "so many classes for every worker"),
    "sizes": Kind(given_sizes, ("sizes",), (), "sorted by label and cut into the given sizes"),
}


def split(
    kind: str,
    labels: NDArray[Any],
    workers: int,
    seed: int,
    *,
    alpha: float | None = None,
    classes: int | None = None,
    sizes: Sequence[int] | None = None,
    cut: int | None = None,
) -> Shards:
    """Divide by a kind's name, with exactly the options that belong to it."""
    if kind not in PARTITIONS:
        close = difflib.get_close_matches(kind.lower(), PARTITIONS, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise LasgError(f"unknown partition {kind!r}: {hint}The kinds are {', '.join(PARTITIONS)}")
    row = PARTITIONS[kind]
    all_options = {"alpha": alpha, "classes": classes, "sizes": sizes, "cut": cut}
    options = {name: value for name, value in all_options.items() if value is not None}
    for name in row.needs:
        if name not in options:
            raise LasgError(f"partition {kind!r} needs the option {name}: give it a value")
    for name in options:
        if name not in row.needs + row.takes:
            homes = ", ".join(other for other, its in PARTITIONS.items() if name in its.needs + its.takes)
            raise LasgError(f"partition {kind!r} has no option {name}, which belongs to {homes}: leave it out")
    return row.function(labels, workers, seed, **options)


def _rng(seed: int) -> np.random.Generator:
    return np.random.default_rng([_whole("seed", seed, 0), _PURPOSE])


def _whole(name: str, value: object, least: int) -> int:
    """Return `value` as an int, or say that it must be a whole number >= least."""
    if isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= least:
        return int(value)
    raise LasgError(f"{name} must be a whole number >= {least}, got {value!r}")


def _checked(labels: NDArray[Any], workers: int) -> tuple[int, int]:
    """Return the number of samples and of workers, both sound."""
    if labels.ndim != 1:
        raise LasgError(f"labels must be one number per sample, got an array of shape {labels.shape}: flatten it")
    workers = _whole("workers", workers, 1)
    if workers > len(labels):
        raise LasgError(f"{workers} workers cannot share {len(labels)} samples: use at most {len(labels)} workers")
    return len(labels), workers


def _rows_by_class(labels: NDArray[Any]) -> Shards:
    return [np.flatnonzero(labels == value) for value in np.unique(labels)]


def _shards(pieces: Sequence[NDArray[Any]]) -> Shards:
    return [piece.astype(np.int64, copy=False) for piece in pieces]
