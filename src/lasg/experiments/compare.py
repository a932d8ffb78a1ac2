"""Many runs side by side: what each algorithm spent to reach a loss, or reached within a budget."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lasg.core.ledger import COUNTS
from lasg.experiments.store import Run

BASELINE = "sgd"


@dataclass(frozen=True)
class Spread:
    """A mean over seeds and the standard deviation (0 for one seed)."""

    mean: float
    std: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarise the values of several seeds."""
        return cls(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0)


@dataclass(frozen=True)
class Summary:
    """One algorithm over its seeds."""

    algorithm: str
    seeds: int
    reached: int
    """Seeds that reached the target loss; all of them where there is no target."""
    diverged: int
    counts: Mapping[str, Spread]
    """The ledger when the loss was reached, or at the end; empty unless every seed got there."""
    loss: Spread
    accuracy: Spread | None
    fewer_uploads: float | None
    """SGD's uploads / this one's."""
    fewer_bits: float | None
    """SGD's upload bits / this one's."""

    @property
    def complete(self) -> bool:
        """Whether every seed got there."""
        return self.reached == self.seeds and not self.diverged

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values; numbers that do not exist are null."""
        values: dict[str, Any] = {
            "algorithm": self.algorithm,
            "seeds": self.seeds,
            "reached": self.reached,
            "diverged": self.diverged,
        }
        for name in COUNTS:
            found = self.counts.get(name)
            values[name], values[f"{name}_spread"] = (found.mean, found.std) if found else (None, None)
        values |= {"loss": _number(self.loss.mean), "loss_spread": _number(self.loss.std)}
        values["accuracy"] = self.accuracy.mean if self.accuracy else None
        values |= {"fewer_uploads": self.fewer_uploads, "fewer_bits": self.fewer_bits}
        return values


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def summarise(runs: Iterable[Run], target: float | None) -> list[Summary]:
    """Summarise runs by algorithm, in order of appearance, against the runs of sgd among them."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.spec.algorithm, []).append(run)
    counts = {name: _counts(group, target) for name, group in groups.items()}
    baseline = counts.get(BASELINE, {})
    return [_summary(name, group, target, counts[name], baseline) for name, group in groups.items()]


def row_at(run: Run, target: float | None) -> int | None:
    """Return the evaluation at which the target loss was first reached (the last one without a target)."""
    loss = run.trace["loss"]
    if target is None:
        return len(loss) - 1
    reached = np.flatnonzero(loss <= target)
    return int(reached[0]) if len(reached) else None


def _counts(group: Sequence[Run], target: float | None) -> dict[str, Spread]:
    rows = [row_at(run, target) for run in group]
    if None in rows or any(run.status == "diverged" for run in group):
        return {}
    found = [(run, row) for run, row in zip(group, rows, strict=True) if row is not None]
    return {name: Spread.of([float(run.trace[name][row]) for run, row in found]) for name in COUNTS}


def _summary(
    name: str,
    group: Sequence[Run],
    target: float | None,
    counts: Mapping[str, Spread],
    baseline: Mapping[str, Spread],
) -> Summary:
    diverged = sum(run.status == "diverged" for run in group)
    accuracies = [float(run.trace["accuracy"][-1]) for run in group]
    ratios = {
        key: baseline[key].mean / counts[key].mean if counts and baseline and counts[key].mean else None
        for key in ("uploads", "bits_up")
    }
    return Summary(
        algorithm=name,
        seeds=len(group),
        reached=sum(row_at(run, target) is not None for run in group),
        diverged=diverged,
        counts=counts,
        loss=Spread.of([math.nan if run.status == "diverged" else float(run.trace["loss"][-1]) for run in group]),
        accuracy=None if any(map(math.isnan, accuracies)) else Spread.of(accuracies),
        fewer_uploads=ratios["uploads"],
        fewer_bits=ratios["bits_up"],
    )
