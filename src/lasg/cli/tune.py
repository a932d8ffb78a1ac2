"""Grid search: fair comparisons need tuned baselines. The paper grid-searched its own."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lasg.analysis.compare import Summary, summarise
from lasg.errors import LasgError
from lasg.runs.spec import Spec
from lasg.runs.store import Run


@dataclass(frozen=True)
class Tried:
    """One point of the grid."""

    values: Mapping[str, Any]
    summary: Summary
    target: float | None = None

    @property
    def score(self) -> tuple[bool, float]:
        """What is smallest for the best point: uploads to the target where every seed reached it, else the loss."""
        if self.summary.diverged:
            return (True, math.inf)
        if self.target is not None and self.summary.complete:
            return (False, self.summary.counts["uploads"].mean)
        return (self.target is not None, self.summary.loss.mean)


def points(
    base: Spec, grid: Mapping[str, Sequence[Any]], seeds: Sequence[int]
) -> list[tuple[dict[str, Any], list[Spec]]]:
    """Return every point of the grid with its specs, one per seed."""
    if "seed" in grid:
        raise LasgError("seed is no setting to tune: every point runs with the seeds of --seeds and --first-seed")
    chosen = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    return [(values, [base.but(**values, seed=seed) for seed in seeds]) for values in chosen]


def rank(tried: Sequence[tuple[Mapping[str, Any], Sequence[Run]]], target: float | None) -> list[Tried]:
    """Return the points, best first."""
    results = [Tried(values, summarise(runs, target)[0], target) for values, runs in tried]
    return sorted(results, key=lambda point: point.score)
