"""Whether all workers upload in a round, or nobody: what the server makes of their reports."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lasg.core.arrays import FloatArray, Mask
from lasg.core.messages import Uploads
from lasg.core.rules import Record, Rule

MEASURED = 10
"""Rounds in which all upload, and whose mean is the bound, where none is given (FDA-Opt, Theologitis et al. 2025)."""


class Agreement:
    """Decides round k by what was reported in round k - 1: a report of round k would come too late for its uploads."""

    def __init__(self, rule: Rule, workers: int, bound: float | None) -> None:
        """Take the rule, and Theta; None: it is measured."""
        self.rule, self.bound = rule, bound
        self.left = 0.0
        """The rule's left side: 0 after a round with uploads, since then workers begin from one model."""
        self.fresh = True
        """Whether the last round changed the model."""
        self.measured: list[float] = []
        """The left sides of the rounds that the bound is measured in, as they were before the uploads."""
        self._everybody, self._nobody = np.ones(workers, np.bool_), np.zeros(workers, np.bool_)

    @property
    def threshold(self) -> float:
        """Theta; NaN while it is measured."""
        return math.nan if self.bound is None else self.bound

    def uploading(self, k: int, tau: int, longest: float) -> Mask:
        """Return who uploads in round k: everybody if the left side has reached Theta, or after D rounds."""
        due = k == 0 or tau >= longest or self.bound is None or not self.left < self.bound
        return self._everybody if due else self._nobody

    def close(self, k: int, uploads: Uploads, weights: FloatArray | None) -> bool:
        """Take what was reported in round k; tell whether it counts: a round without uploads is void."""
        self.fresh = uploads.uploads > 0
        reports = uploads.reports
        if reports is not None and not np.isnan(reports[:, 0]).all():
            weights = self._everybody.astype(np.float64) if weights is None else weights
            with np.errstate(over="ignore", invalid="ignore"):
                self.left = float(self.rule.left(Record(reports=reports, weights=weights), Record()))  # type: ignore[misc]
            if self.bound is None and k:  # in round 0 nobody knows a direction yet
                self.measured.append(self.left)
        if self.bound is None and k >= MEASURED - 1 and self.measured:
            self.bound = float(np.mean(self.measured))
        if self.fresh:
            self.left = 0.0
        return self.fresh

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold."""
        bound = math.nan if self.bound is None else self.bound
        return {"bound": bound, "left": self.left, "fresh": self.fresh, "measured": list(self.measured)}

    def restore(self, state: dict[str, Any]) -> None:
        """Take a checkpoint's state."""
        bound = float(state["bound"])
        self.bound = None if math.isnan(bound) else bound
        self.left, self.fresh, self.measured = float(state["left"]), bool(state["fresh"]), list(state["measured"])
