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

    The label is the algorithm's name; where one algorithm has several settings, what differs is added to it.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
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
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def in_order(found: Iterable[Series]) -> list[Series]:
    """Sort series as the twelve algorithms are listed everywhere; others come after them."""
    place = {name: i for i, name in enumerate(ALGORITHMS)}
    return sorted(found, key=lambda one: place.get(one.algorithm, len(place)))


def check_one_problem(runs: Sequence[Run]) -> None:
    """Refuse runs whose losses cannot be compared."""
    kinds: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        key = (*(getattr(run.spec, name) for name in PROBLEM), run.meta["data_sha256"])
        kinds.setdefault(key, []).append(run)
    if len(kinds) == 1:
        return
    names = (*PROBLEM, "the data file")
    one, other = list(kinds)[:2]
    differing = next(i for i in range(len(names)) if one[i] != other[i])
    shown = f"{one[differing]} and {other[differing]}" if differing < len(PROBLEM) else "two versions of it"
    found = "; ".join(f"{len(group)} x {group[0].spec.task}, {group[0].spec.partition}" for group in kinds.values())
    raise LasgError(
        f"these runs are of {len(kinds)} different problems ({names[differing]}: {shown}) and cannot be compared: "
        f"{found}. Choose one with --task and --partition, or name the runs, such as "
        f"{runs[0].folder.parent}/{runs[0].spec.label.partition('-seed')[0].rsplit('-', 1)[0]}*"
    )
