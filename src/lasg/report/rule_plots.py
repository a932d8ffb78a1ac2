"""Pictures of what the rules do: who uploads when, how stale gradients get, both sides of a rule."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lasg.report.axes import line, use_log_scale
from lasg.report.curves import staleness
from lasg.report.style import style
from lasg.runs.store import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RASTER_ROUNDS = 200


def raster(runs: Sequence[Run]) -> Figure:
    """Who uploads when: workers x rounds, a dot per upload."""
    from matplotlib.figure import Figure

    workers = runs[0].spec.workers
    tall = min(2.4, max(0.9, 0.065 * workers))
    figure = Figure(figsize=(9.5, tall * len(runs) + 0.9), layout="constrained")
    axes = figure.subplots(len(runs), 1, sharex=True, squeeze=False).ravel()
    for axis, run in zip(axes, runs, strict=True):
        uploaded = run.uploads[:RASTER_ROUNDS]
        rounds, who = np.nonzero(uploaded)
        axis.plot(rounds, who, "s", color=style(run.spec.composition).colour, markersize=1.9, markeredgewidth=0)
        axis.set_title(
            f"{run.spec.algorithm}: {len(rounds):,} uploads of {uploaded.size:,} possible", loc="left", pad=3
        )
        axis.set_ylabel("worker")
        axis.set_ylim(workers - 0.4, -0.6)
        axis.set_xlim(-1, RASTER_ROUNDS)
        axis.grid(visible=False)
    axes[-1].set_xlabel("round")
    return figure


def ages(runs: Sequence[Run]) -> Figure:
    """Staleness over time: the mean over workers, and the oldest, for each run."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 3.6), layout="constrained")
    mean, oldest = figure.subplots(1, 2)
    for run in runs:
        tau = staleness(run.uploads)
        if not len(tau):
            continue
        chunks = _windows(len(tau))
        look = line(style(run.spec.composition)) | {"label": run.spec.algorithm, "markevery": 0.15}
        middle = [(start + end) / 2 for start, end in chunks]
        mean.plot(middle, [tau[start:end].mean() for start, end in chunks], **look)
        oldest.plot(middle, [tau[start:end].max() for start, end in chunks], **look)
    for axis, name in ((mean, "mean over workers"), (oldest, "the oldest gradient in use")):
        use_log_scale(axis.xaxis)
        axis.set_xlabel("round (log)")
        axis.set_title(name, loc="left")
        axis.set_ylabel("staleness in rounds")
        axis.set_ylim(bottom=0)
    figure.legend(*mean.get_legend_handles_labels(), loc="outside right upper", title="one run each", alignment="left")
    return figure


def _windows(rounds: int) -> list[tuple[int, int]]:
    """Cut the rounds into pieces that grow: about 60 to the end."""
    edges = np.unique(np.geomspace(1, rounds + 1, 60).round().astype(int)) - 1
    return [(int(a), int(b)) for a, b in itertools.pairwise(edges)]


def sides(runs: Sequence[Run]) -> Figure:
    """Both sides of the rule: the innovation of the watched workers against the threshold."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5.6), layout="constrained")
    axes = figure.subplots(2, 3, sharex=True, sharey=True).ravel()
    colours = ("#0072B2", "#D55E00", "#009E73", "#c98500", "#b0508a", "#808080")
    marks = ("o", "^", "s", "v", "D", "*")
    for axis, run in zip(axes, runs, strict=False):
        threshold, left = run.trace["threshold"], run.trace["watched_left"]
        axis.set_title(run.spec.algorithm, loc="left")
        if not len(threshold):
            continue
        chosen = np.unique(np.geomspace(1, len(threshold), 160).round().astype(int)) - 1
        for i, worker in enumerate(run.spec.watched):
            look = {"color": colours[i % 6], "marker": marks[i % 6], "markersize": 2.6, "alpha": 0.8}
            axis.plot(chosen, left[chosen, i], linestyle="none", label=f"left side, worker {worker}", **look)
        axis.plot(chosen, threshold[chosen], color="black", linewidth=1.4, label="right side (threshold)")
        use_log_scale(axis.xaxis)
        use_log_scale(axis.yaxis)
    for axis in axes[len(runs) :]:
        axis.set_axis_off()
    for axis in axes[max(0, len(runs) - 3) : len(runs)]:
        axis.tick_params(labelbottom=True)
        axis.set_xlabel("round (log)")
    for axis in axes[::3]:
        axis.set_ylabel("squared norm (log)")
    handles, labels = axes[0].get_legend_handles_labels()
    title = "a worker uploads when its\nleft side is above the line"
    if math.isfinite(runs[0].spec.D):
        title += f",\nor after {runs[0].spec.D} silent rounds"
    axes[-1].legend(handles, labels, loc="center left", title=title, alignment="left", markerscale=2)
    return figure
