"""The scoreboard as a picture: upload bits against rounds to one loss, a panel per race, the Pareto front marked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lasg.analysis.scoreboard import Standing
from lasg.errors import LasgError
from lasg.report.axes import line, use_log_scale
from lasg.report.end_labels import spread
from lasg.report.plots import check, drawing, finish, rendered, require_matplotlib, save
from lasg.report.style import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 2
GAP = 0.062
"""Between two names beside a panel, as a share of its height."""


def figure_of(found: Mapping[str, Sequence[Standing]]) -> Figure:
    """Draw the races that somebody finished."""
    from matplotlib.figure import Figure

    shown = {name: [row for row in rows if row.arrived] for name, rows in found.items()}
    shown = {name: rows for name, rows in shown.items() if rows}
    if not shown:
        raise LasgError("nobody arrived in any of these races: there is nothing to draw")
    columns = min(COLUMNS, len(shown))
    lines = math.ceil(len(shown) / columns)
    with drawing():
        figure = Figure(figsize=(6.4 * columns, 0.7 + 3.6 * lines), layout="constrained")
        axes = figure.subplots(lines, columns, squeeze=False).flatten()
        for ax, (name, rows) in zip(axes, shown.items(), strict=False):
            _panel(ax, name, rows)
        for ax in axes[len(shown) :]:
            ax.set_visible(False)
        return finish(figure, "Upload bits against rounds to one loss: the line joins those that nobody beats in both")


def _panel(ax: Axes, name: str, rows: Sequence[Standing]) -> None:
    front = sorted((_point(row) for row in rows if row.front), key=lambda point: point[0])
    ax.plot(*zip(*front, strict=True), color="#999999", linewidth=1, zorder=1)
    for row in rows:
        look = style(row.algorithm)
        error: Any = {"xerr": row.counts["rounds"].std, "yerr": row.counts["bits_up"].std}
        ax.errorbar(*_point(row), **error, fmt="none", ecolor=look.colour, elinewidth=0.8, alpha=0.6, zorder=2)
        ax.plot(*_point(row), **{**line(look), "linestyle": "none", "markersize": 6.5}, zorder=3)
    ax.margins(x=0.1, y=0.12)
    use_log_scale(ax.xaxis)
    use_log_scale(ax.yaxis)
    ax.set(title=name, xlabel="rounds (log)", ylabel="bits uploaded (log)")
    _label(ax, rows)


def _label(ax: Axes, rows: Sequence[Standing]) -> None:
    """Write the names to the right of the panel, each on the height of its point or as near as there is room."""
    low, high = (math.log(value) for value in ax.get_ylim())
    wanted = sorted((((math.log(_point(row)[1]) - low) / (high - low), row) for row in rows), key=lambda pair: pair[0])
    heights = spread(np.array([height for height, _ in wanted]), GAP)
    for height, (_, row) in zip(heights, wanted, strict=True):
        look = style(row.algorithm)
        ax.annotate(
            row.contender,
            _point(row),
            (1.03, float(height)),
            textcoords="axes fraction",
            va="center",
            fontsize=8,
            fontweight="bold" if row.front else "normal",
            arrowprops={"arrowstyle": "-", "color": look.colour, "alpha": 0.35, "linewidth": 0.7, "shrinkB": 4},
            annotation_clip=False,
        )


def _point(row: Standing) -> tuple[float, float]:
    return row.counts["rounds"].mean, row.counts["bits_up"].mean


def draw(found: Mapping[str, Sequence[Standing]], path: Path) -> None:
    """Write the picture."""
    check(path)
    save(figure_of(found), path)


def svg(found: Mapping[str, Sequence[Standing]]) -> bytes:
    """Return the picture as SVG."""
    require_matplotlib()
    return rendered(figure_of(found), "svg")
