"""Runs that belong together: the seeds of one algorithm under one setting are one series, one curve, one row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lasg.core.algorithms import ALGORITHMS
from lasg.errors import LasgError
from lasg.experiments.store import Run

PROBLEM = ("task", "data", "workers", "partition", "alpha", "classes", "sizes", "cut", "lam")
"""What two runs must share for their losses to be comparable."""


@dataclass(frozen=True)
class Series:
    """One algorithm under one setting, over its seeds."""

    label: str
    runs: tuple[Run, ...]

    @property
    def algorithm(self) -> str:
        """The algorithm's name."""
        return self.runs[0].spec.algorithm

    @property
    def diverged(self) -> int:
        """How many seeds diverged."""
        return sum(run.status == "diverged" for run in self.runs)


def series(runs: Iterable[Run]) -> list[Series]:
    """Group runs by all of the spec but the seed, in order of appearance.

    The label is the algorithm's name; where one algorithm has several settings, what differs is added to it. A copy of
    a run is the same run, and counts once.
    """
    groups: dict[str, list[Run]] = {}
    seen = set()
    for run in runs:
        if run.spec.digest in seen:
            continue
        seen.add(run.spec.digest)
        groups.setdefault(run.spec.but(seed=0).digest, []).append(run)
    found = list(groups.values())
    return [Series(_label(group[0], [other[0] for other in found]), tuple(group)) for group in found]


def _label(run: Run, firsts: Sequence[Run]) -> str:
    rivals = [other.spec.to_dict() for other in firsts if other.spec.algorithm == run.spec.algorithm]
    own = run.spec.to_dict()
    keys = [key for key in dict.fromkeys(k for values in rivals for k in values) if key != "seed"]
    differing = [key for key in keys if any(other.get(key) != own.get(key) for other in rivals)]
    return " ".join([run.spec.algorithm, *(f"{key}={_shown(own.get(key))}" for key in differing)])


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ",".join(f"{key}:{_shown(part)}" for key, part in value.items()) or "-"
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    return "-" if value is None else str(value)


def in_order(found: Iterable[Series]) -> list[Series]:
    """Sort series as the twelve algorithms are listed everywhere; others come after them."""
    place = {name: i for i, name in enumerate(ALGORITHMS)}
    return sorted(found, key=lambda one: place.get(one.algorithm, len(place)))


def check_one_problem(runs: Sequence[Run]) -> None:
    """Refuse runs whose losses cannot be compared."""
    if not runs:
        raise LasgError("there are no runs to compare")
    kinds: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        key = (*(getattr(run.spec, name) for name in PROBLEM), run.meta["data_sha256"])
        kinds.setdefault(key, []).append(run)
    if len(kinds) == 1:
        return
    one, other = list(kinds)[:2]
    differing = [name for name, left, right in zip(PROBLEM, one, other, strict=False) if left != right]
    parts = [
        f"{name}: {_brief(one[PROBLEM.index(name)])} and {_brief(other[PROBLEM.index(name)])}" for name in differing
    ]
    found = [f"{len(group)} x {group[0].spec.task}, {group[0].spec.partition}" for group in kinds.values()]
    advice = "Name the folders of one of them"
    if {"task", "partition"} & set(differing):
        where = runs[0].folder.parent / f"{runs[0].spec.family}-*"
        advice = f"Choose one with --task and --partition, or by name, such as {where}"
    shown = "; ".join(parts) or "the data file: two versions of it"
    raise LasgError(
        f"these runs are of {len(kinds)} different problems ({shown}) "
        f"and cannot be compared: {'; '.join(found[:5])}{'; ...' if len(found) > 5 else ''}. {advice}"
    )


def _brief(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
