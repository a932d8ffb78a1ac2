"""One race in one picture: megabytes uploaded against the loss that was reached, a point per seed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lasg.analysis.races import Race
from lasg.analysis.scoreboard import Row
from lasg.errors import LasgError
from lasg.report.axes import use_log_scale
from lasg.report.formatting import factor
from lasg.report.plots import check, drawing, finish, save
from lasg.runs.tasks import TASKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE = (1280 / 150, 640 / 150)
"""In inches, at the 150 dots per inch of `plots`: the shape that social previews have."""
SHORT = {"ddp": "DDP (sends every gradient)", "diloco": "DiLoCo", "sparseloco": "SparseLoCo"}
"""Names that readers know, where a contender has one."""
OURS: dict[str, Any] = {"color": "#0072b2", "marker": "D", "markersize": 9}
OTHERS = ("#555555", "#d55e00", "#000000", "#cc79a7", "#009e73")
"""Colours of the others, in the order of the results."""


def heading(race: Race) -> str:
    """Say in words what a race trains, for readers who know none of its names."""
    what = TASKS[race.task].summary.partition(",")[0].partition(" (")[0]
    workers = race.contender(race.reference).spec(race, 0, {}).workers
    known = SHORT.get(race.reference, race.reference)
    return f"{what[:1].upper()}{what[1:]}, {race.setting}, {workers} workers: what each uploads to reach {known}'s loss"


def figure_of(rows: Sequence[Row], reference: str, title: str) -> Figure:
    """Draw a race. A hollow point did not reach the loss of its seed's reference."""
    from matplotlib.figure import Figure

    shown = [row for row in rows if row["loss"] != "diverged"]
    names = list(dict.fromkeys(row["contender"] for row in shown))
    if not shown:
        raise LasgError("every run of this race diverged: there is nothing to draw")
    with drawing():
        figure = Figure(figsize=SIZE, layout="constrained")
        ax = figure.subplots()
        goals = [float(row["target"]) for row in shown]
        ax.axhspan(min(goals), max(goals), color="#0072b2", alpha=0.10, linewidth=0)
        rest, all_x = iter(OTHERS * len(names)), _megabytes(shown)
        middle = (min(all_x) * max(all_x)) ** 0.5
        for name in names:
            look = OURS if name.startswith("lasg") else {"color": next(rest), "marker": "o", "markersize": 8}
            _draw(ax, [row for row in shown if row["contender"] == name], _words(rows, name, reference), look, middle)
        ax.margins(x=0.06, y=0.16)
        use_log_scale(ax.xaxis)
        use_log_scale(ax.yaxis)
        ax.set(xlabel="megabytes uploaded by all workers together (log)", ylabel="training loss reached (log)")
        seeds = len({row["seed"] for row in shown})
        note = f"band: the loss to reach. One point for each of {seeds} seeds; hollow: missed. Lower left is better."
        ax.annotate(note, (0.01, 0.015), xycoords="axes fraction", fontsize=8, color="#444444")
        return finish(figure, title)


def _megabytes(rows: Sequence[Row]) -> list[float]:
    return [float(row["bits_up"]) / 8e6 for row in rows]


def _words(rows: Sequence[Row], name: str, reference: str) -> str:
    """Name a contender, and say how many fewer bytes than the reference's it took, or that it did not arrive."""
    own = [row for row in rows if row["contender"] == name]
    known = SHORT.get(name, name)
    reached = sum(row["reached"] == "True" for row in own)
    if reached < len(own):
        return f"{known}: {reached} of {len(own)} arrived"
    theirs = [row for row in rows if row["contender"] == reference]
    if name == reference or not theirs:
        return known
    fewer = factor(float(np.mean(_megabytes(theirs)) / np.mean(_megabytes(own))))
    return f"{known}: {fewer} fewer bytes than {SHORT.get(reference, reference)}"


def _draw(ax: Axes, rows: Sequence[Row], words: str, look: dict[str, Any], middle: float) -> None:
    for x, row in zip(_megabytes(rows), rows, strict=True):
        face = look["color"] if row["reached"] == "True" else "white"
        ax.plot(x, float(row["loss"]), **look, linestyle="none", markerfacecolor=face)
    highest = max(float(row["loss"]) for row in rows)
    where = max(x for x, row in zip(_megabytes(rows), rows, strict=True) if float(row["loss"]) == highest)
    bold = "bold" if look is OURS else "normal"
    is_left = where < middle
    place: dict[str, Any] = {
        "textcoords": "offset points",
        "ha": "left" if is_left else "right",
        "fontsize": 10,
        "fontweight": bold,
    }
    ax.annotate(words, (where, highest), (-5 if is_left else 5, 10), color=look["color"], **place)


def draw(rows: Sequence[Row], reference: str, title: str, path: Path) -> None:
    """Write the picture."""
    check(path)
    save(figure_of(rows, reference, title), path)
