"""Many runs side by side: what each algorithm spent to reach a loss, or reached within a budget."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from typing import Any

import numpy as np

from lasg.core.ledger import COUNTS
from lasg.core.network import Network
from lasg.errors import LasgError
from lasg.experiments import clock
from lasg.experiments.series import Series, series
from lasg.experiments.spec import Spec
from lasg.experiments.store import Run

BASELINE = "sgd"
SPENT = (*COUNTS, "bits_total")
"""What is summed up of every run; with a network also seconds, and megabytes (10^6 bytes, both ways)."""


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

    label: str
    """The algorithm, and what tells it from another setting of it."""
    spec: Spec
    """Of its first seed."""
    algorithm: str
    seeds: int
    reached: int
    """Seeds that reached the target loss; all of them where there is no target."""
    diverged: int
    counts: Mapping[str, Spread]
    """`SPENT` when the loss was reached, or at the end; empty unless every seed got there. With a network, seconds and
    megabytes too."""
    loss: Spread
    accuracy: Spread | None
    fewer_uploads: float | None
    """SGD's uploads / this one's."""
    fewer_bits: float | None
    """SGD's upload bits / this one's."""
    faster: float | None = None
    """SGD's simulated seconds / this one's, where there is a network."""
    timed: bool = False
    """Whether there is a network."""

    @property
    def remark(self) -> str:
        """Why there are no counts; nothing where there are some."""
        if self.diverged:
            return f"diverged ({self.diverged} of {self.seeds} seeds)"
        if not self.counts:
            missed = self.seeds - self.reached
            return "not reached" if missed == self.seeds else f"not reached ({missed} of {self.seeds} seeds)"
        return ""

    @property
    def complete(self) -> bool:
        """Whether every seed got there."""
        return self.reached == self.seeds and not self.diverged

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values; numbers that do not exist are null."""
        values: dict[str, Any] = {
            "label": self.label,
            "algorithm": self.algorithm,
            "seeds": self.seeds,
            "reached": self.reached,
            "diverged": self.diverged,
        }
        for name in (*SPENT, *(("seconds", "megabytes") if self.timed else ())):
            found = self.counts.get(name)
            values[name], values[f"{name}_spread"] = (found.mean, found.std) if found else (None, None)
        values |= {"loss": _number(self.loss.mean), "loss_spread": _number(self.loss.std)}
        values["accuracy"] = self.accuracy.mean if self.accuracy else None
        values |= {"fewer_uploads": self.fewer_uploads, "fewer_bits": self.fewer_bits}
        if self.timed:
            values["faster"] = self.faster
        return values


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def summarise(runs: Iterable[Run], target: float | None = None, network: Network | None = None) -> list[Summary]:
    """Summarise runs by series, in order of appearance, against the runs of sgd among them."""
    groups = series(runs)
    counts = [_counts(group, target, network) for group in groups]
    of_sgd = [found for group, found in zip(groups, counts, strict=True) if group.algorithm == BASELINE and found]
    baseline = of_sgd[0] if of_sgd else {}
    return [
        _summary(group, target, found, baseline, timed=network is not None)
        for group, found in zip(groups, counts, strict=True)
    ]


def row_at(run: Run, target: float | None) -> int | None:
    """Return the evaluation at which the target loss was first reached (the last one without a target)."""
    loss = run.trace["loss"]
    if target is None:
        return len(loss) - 1
    reached = np.flatnonzero(loss <= target)
    return int(reached[0]) if len(reached) else None


def shared_target(runs: Sequence[Run]) -> float:
    """Return a loss at which to compare runs: the one they were to reach; else one that they did reach.

    That is the loss which every seed of every series reached, rounded up to two digits (more, where two would be above
    the loss they began with); or, where somebody stayed more than a tenth above sgd, the loss which every seed of sgd
    reached. Diverged series do not count.
    """
    shown = series(runs)
    goals = {run.spec.until.get("loss") for one in shown for run in one.runs}
    if len(goals) == 1 and None not in goals:
        return float(goals.pop() or 0)
    good = [one for one in shown if not one.diverged]
    if not good:
        raise LasgError("every run diverged: there is nothing to compare")
    lowest = [max(float(run.trace["loss"].min()) for run in one.runs) for one in good]
    of_sgd = [loss for one, loss in zip(good, lowest, strict=True) if one.algorithm == BASELINE]
    everybody = max(lowest)
    reached = everybody if not of_sgd or everybody <= 1.1 * of_sgd[0] else of_sgd[0]
    begun = min(float(run.trace["loss"][0]) for one in good for run in one.runs)
    rounded = (_rounded_up(reached, digits) for digits in range(2, 8))
    return next((target for target in rounded if target < begun), reached)


def _rounded_up(value: float, digits: int) -> float:
    """Round a positive number up to so many digits; others stay."""
    if value <= 0:
        return value
    exact = Decimal(repr(value))
    return float(exact.quantize(Decimal((0, (1,), exact.adjusted() - digits + 1)), ROUND_CEILING))


def _counts(group: Series, target: float | None, network: Network | None) -> dict[str, Spread]:
    rows = [row_at(run, target) for run in group.runs]
    if None in rows or group.diverged:
        return {}
    found = [(spent(run, network), row) for run, row in zip(group.runs, rows, strict=True) if row is not None]
    return {name: Spread.of([float(columns[name][row]) for columns, row in found]) for name in found[0][0]}


def spent(run: Run, network: Network | None) -> dict[str, Any]:
    """Return `SPENT` at every evaluation; where there is a network, simulated seconds and megabytes too."""
    columns = {name: run.trace[name] for name in COUNTS} | {"bits_total": clock.bits_total(run)}
    if network is None:
        return columns
    return columns | {"seconds": clock.seconds(run, network), "megabytes": columns["bits_total"] / 8e6}


def _summary(
    group: Series,
    target: float | None,
    counts: Mapping[str, Spread],
    baseline: Mapping[str, Spread],
    *,
    timed: bool,
) -> Summary:
    accuracies = [float(run.trace["accuracy"][-1]) for run in group.runs]
    losses = [math.nan if run.status == "diverged" else float(run.trace["loss"][-1]) for run in group.runs]

    def ratio(key: str) -> float | None:
        known = key in counts and key in baseline and counts[key].mean
        return baseline[key].mean / counts[key].mean if known else None

    return Summary(
        label=group.label,
        spec=group.runs[0].spec,
        algorithm=group.algorithm,
        seeds=len(group.runs),
        reached=sum(row_at(run, target) is not None for run in group.runs),
        diverged=group.diverged,
        counts=counts,
        loss=Spread.of(losses),
        accuracy=None if group.diverged or any(map(math.isnan, accuracies)) else Spread.of(accuracies),
        fewer_uploads=ratio("uploads"),
        fewer_bits=ratio("bits_up"),
        faster=ratio("seconds"),
        timed=timed,
    )
