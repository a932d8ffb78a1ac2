"""Curves of stored runs as numbers: means over seeds with their spread, staleness, thinned traces."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lasg.analysis.compare import spent
from lasg.analysis.link_model import LinkModel
from lasg.analysis.series import Series
from lasg.core.arrays import FloatArray, IntArray, Mask

LABELS = {
    "iterations": "iterations",
    "uploads": "uploads",
    "bits_up": "bits uploaded",
    "bits_total": "bits in both directions",
    "gradients": "gradient evaluations",
    "seconds": "simulated seconds",
    "megabytes": "megabytes in both directions",
    "loss": "training loss",
    "accuracy": "test accuracy (%)",
}
"""What stands beside an axis."""


@dataclass(frozen=True)
class Curve:
    """A mean over seeds. Point i is the mean count and the mean value after the same number of rounds."""

    x: FloatArray
    y: FloatArray
    spread: FloatArray
    """The standard deviation of the value over seeds; 0 for one seed."""


def mean_curve(one: Series, x: str, y: str = "loss", network: LinkModel | None = None) -> Curve:
    """Average the runs of a series at the evaluations that all of them have; diverged seeds are left out."""
    runs = [run for run in one.runs if run.status != "diverged"]
    if not runs:
        nothing = np.empty(0)
        return Curve(nothing, nothing, nothing)
    common = runs[0].trace["rounds"]
    for run in runs[1:]:
        common = np.intersect1d(common, run.trace["rounds"])
    rows = [np.searchsorted(run.trace["rounds"], common) for run in runs]
    xs = np.array([spent(run, network)[x][row] for run, row in zip(runs, rows, strict=True)], np.float64)
    ys = np.array([run.trace[y][row] for run, row in zip(runs, rows, strict=True)], np.float64)
    spread = ys.std(0, ddof=1) if len(runs) > 1 else np.zeros(len(common))
    return Curve(xs.mean(0), ys.mean(0), spread)


def staleness(uploaded: Mask) -> IntArray:
    """Return tau, `(rounds, workers)`: how many rounds old each contribution is when the server uses it, from 0 on."""
    rounds = np.arange(len(uploaded))[:, None]
    last = np.maximum.accumulate(np.where(uploaded, rounds, 0), axis=0)
    found: IntArray = rounds - last
    return found


def thin(length: int, most: int) -> IntArray:
    """Choose at most `most` of `length` rows: both ends, half of the rest spread evenly and half early."""
    if length <= most:
        return np.arange(length)
    even = np.linspace(0, length - 1, most // 2)
    early = np.geomspace(1, length, most - most // 2) - 1
    return np.unique(np.concatenate([even, early]).round().astype(np.int64))
