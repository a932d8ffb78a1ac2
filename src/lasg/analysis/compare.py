"""Many runs side by side: what each algorithm spent to reach a loss, or reached within a budget."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Decimal
from typing import Any

import numpy as np

from lasg.analysis import link_time
from lasg.analysis.link_model import LinkModel
from lasg.analysis.series import Series, series
from lasg.core.ledger import COUNTS
from lasg.errors import LasgError
from lasg.runs.spec import Spec
from lasg.runs.store import Run

BASELINE = "sgd"
ROSE = 1.1
"""A final loss so many times the one that was reached on the way is worth a word."""
SPENT = (*COUNTS, "bits_total")
"""What is summed up of every run; with a network also seconds, and megabytes (10^6 bytes, both ways)."""


@dataclass(frozen=True)
class Spread:
    """A mean over seeds and the standard deviation (0 for one seed)."""

    mean: float
    std: float

    @classmethod
    def from_values(cls, values: Sequence[float]) -> Spread:
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
    """`SPENT` when the target loss was reached, or at the end; empty unless every seed got there. With a network,
    seconds and megabytes too."""
    loss: Spread
    accuracy: Spread | None
    fewer_uploads: float | None
    """SGD's uploads / this one's, both to `savings_loss`."""
    fewer_bits: float | None
    """SGD's upload bits / this one's."""
    faster: float | None = None
    """SGD's simulated seconds / this one's, where there is a network."""
    timed: bool = False
    """Whether there is a network."""
    savings_loss: float | None = None
    """The loss at which savings are taken: the target, or one that the runs reached; None where there is none."""
    to_savings_loss: Mapping[str, Spread] = field(default_factory=dict)
    """`counts` when that loss was reached; empty unless every seed got there."""

    @property
    def remark(self) -> str:
        """Why there are no counts or no savings, or that the loss did not stay where they were taken; else nothing."""
        if self.diverged:
            return f"diverged ({self.diverged} of {self.seeds} seeds)"
        if not self.counts:
            missed = self.seeds - self.reached
            return "not reached" if missed == self.seeds else f"not reached ({missed} of {self.seeds} seeds)"
        if self.savings_loss is not None and not self.to_savings_loss:
            return f"no savings, since not every seed reached loss {self.savings_loss:g}"
        if self.savings_loss is not None and self.loss.mean > ROSE * self.savings_loss > 0 and self._had_to_train:
            after = f"reached loss {self.savings_loss:g}, then rose to {self.loss.mean:.3g} by the end"
            return f"{after}: a smaller step{' or c' if self.spec.composition.rule.left else ''} may keep it down"
        return ""

    @property
    def _had_to_train(self) -> bool:
        """Whether the loss at which savings are taken was not there from the start."""
        return "uploads" in self.to_savings_loss and self.to_savings_loss["uploads"].mean > 0

    @property
    def complete(self) -> bool:
        """Whether every seed got there."""
        return self.reached == self.seeds and not self.diverged

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values; numbers that do not exist are null."""
        names = ("label", "algorithm", "seeds", "reached", "diverged")
        values: dict[str, Any] = {name: getattr(self, name) for name in names}
        for name in (*SPENT, *(("seconds", "megabytes") if self.timed else ())):
            spread = self.counts.get(name)
            values[name], values[f"{name}_spread"] = (spread.mean, spread.std) if spread else (None, None)
        values |= {"loss": _number(self.loss.mean), "loss_spread": _number(self.loss.std)}
        values["accuracy"] = self.accuracy.mean if self.accuracy else None
        for name in ("fewer_uploads", "fewer_bits", *(("faster",) if self.timed else ()), "savings_loss"):
            values[name] = getattr(self, name)
        for name in ("uploads", "bits_up", *(("seconds",) if self.timed else ())):
            spread = self.to_savings_loss.get(name)
            values[f"{name}_to_savings_loss"] = spread.mean if spread else None
        return values


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def summarise(runs: Iterable[Run], target: float | None = None, network: LinkModel | None = None) -> list[Summary]:
    """Summarise runs by series, in order of appearance, against the runs of sgd among them.

    Without a target the counts are those at the end of each run; savings are taken at `shared_target` all the same,
    since who stopped at a higher loss has saved nothing by that.
    """
    groups = series(runs)
    good = any(not group.diverged for group in groups)
    loss = target if target is not None or not good else shared_target([run for group in groups for run in group.runs])
    to_loss = [_counts(group, loss, network) for group in groups]
    spent_by = zip(groups, to_loss, strict=True)
    baseline = next((spent for group, spent in spent_by if group.algorithm == BASELINE and spent), {})
    found = []
    for group, reached in zip(groups, to_loss, strict=True):
        accuracies = [float(run.trace["accuracy"][-1]) for run in group.runs]
        losses = [math.nan if run.status == "diverged" else float(run.trace["loss"][-1]) for run in group.runs]
        summary = Summary(
            label=group.label,
            spec=group.runs[0].spec,
            algorithm=group.algorithm,
            seeds=len(group.runs),
            reached=sum(row_at(run, target) is not None for run in group.runs),
            diverged=group.diverged,
            counts=reached if target is not None else _counts(group, None, network),
            loss=Spread.from_values(losses),
            accuracy=None if group.diverged or any(map(math.isnan, accuracies)) else Spread.from_values(accuracies),
            fewer_uploads=_ratio("uploads", reached, baseline),
            fewer_bits=_ratio("bits_up", reached, baseline),
            faster=_ratio("seconds", reached, baseline),
            timed=network is not None,
            savings_loss=loss,
            to_savings_loss=reached,
        )
        found.append(summary)
    return found


def _ratio(key: str, reached: Mapping[str, Spread], baseline: Mapping[str, Spread]) -> float | None:
    """Return how many times less was spent than by sgd to the same loss."""
    known = key in reached and key in baseline and reached[key].mean and baseline[key].mean
    return baseline[key].mean / reached[key].mean if known else None


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
    the loss they began with). Series that stayed more than a tenth above sgd do not count, unless all others did: one
    that is stuck would have all compared at the loss where it is. Diverged series do not count.
    """
    shown = series(runs)
    goals = {run.spec.until.get("loss") for group in shown for run in group.runs}
    if len(goals) == 1 and None not in goals:
        return float(goals.pop() or 0)
    good = [group for group in shown if not group.diverged]
    if not good:
        raise LasgError("every run diverged: there is nothing to compare")
    lowest = [max(float(run.trace["loss"].min()) for run in group.runs) for group in good]
    of_sgd = [loss for group, loss in zip(good, lowest, strict=True) if group.algorithm == BASELINE]
    reached = max(lowest)
    if of_sgd and reached > 1.1 * of_sgd[0]:
        beside = [loss for loss in lowest if loss <= 1.1 * of_sgd[0]]
        reached = of_sgd[0] if len(beside) > 1 else reached
    begun = min(float(run.trace["loss"][0]) for group in good for run in group.runs)
    rounded = (_rounded_up(reached, digits) for digits in range(2, 8))
    return next((target for target in rounded if target < begun), reached)


def _rounded_up(value: float, digits: int) -> float:
    """Round a positive number up to so many digits; others stay."""
    if value <= 0:
        return value
    exact = Decimal(repr(value))
    return float(exact.quantize(Decimal((0, (1,), exact.adjusted() - digits + 1)), ROUND_CEILING))


def _counts(group: Series, target: float | None, network: LinkModel | None) -> dict[str, Spread]:
    spent_by = [spent_at(run, target, network) for run in group.runs]
    reached = [spent for spent in spent_by if spent is not None]
    if len(reached) < len(spent_by) or group.diverged:
        return {}
    return {name: Spread.from_values([spent[name] for spent in reached]) for name in reached[0]}


def spent_at(run: Run, target: float | None, network: LinkModel | None) -> dict[str, float] | None:
    """Return `spent` when the target loss was first reached, None where it was not; without a target, at the end.

    A run that was to stop at this loss spent what it spent. Of one that went on, the counts are interpolated between
    the evaluations around the loss: these are up to 10 % apart, and more where they are rare.
    """
    row, columns = row_at(run, target), spent(run, network)
    if row is None:
        return None
    share = 1.0
    if target is not None and row and run.spec.until.get("loss") != target:
        above, below = run.trace["loss"][row - 1 : row + 1]
        share = float((above - target) / (above - below)) if math.isfinite(above) else 1.0
    before = max(0, row - 1)
    return {
        name: float(column[row]) if share == 1 else float(column[before] + share * (column[row] - column[before]))
        for name, column in columns.items()
    }


def spent(run: Run, network: LinkModel | None) -> dict[str, Any]:
    """Return `SPENT` at every evaluation; where there is a network, simulated seconds and megabytes too."""
    columns = {name: run.trace[name] for name in COUNTS}
    columns["bits_total"] = columns["bits_up"] + columns["bits_down"] + columns["control_bits"]
    if network is None:
        return columns
    return columns | {"seconds": link_time.seconds(run, network), "megabytes": columns["bits_total"] / 8e6}
