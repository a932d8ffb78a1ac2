"""Names at the right ends of curves, where a panel has so many that a legend alone is slow to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lasg.core.arrays import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CROWDED = 7
"""Panels with fewer curves have the legend alone."""
TOGETHER = 0.05
"""Where the middle half of the ends is within this share of a panel, both ways, most curves end at one place: names
there would tell nothing apart."""
SIZE = 7.0
"""Of the letters, in points; a line of them is 1.2 times as high, and a letter about 0.6 times as wide."""
LEADER = {"arrowstyle": "-", "alpha": 0.45, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 2}


class End(NamedTuple):
    """Where a curve ends."""

    name: str
    colour: str
    x: float
    y: float


def label_ends(axis: Axes, ends: Sequence[End]) -> None:
    """Write each curve's name at its end: beside the panel if the ends differ in height, else above or below them.

    Call it when the axes have their scales and all curves are drawn: it may make room in the panel.
    """
    if len(ends) < CROWDED:
        return
    places = _fractions(axis, ends)
    wide, tall = np.subtract(*np.percentile(places, [75, 25], axis=0))
    if max(wide, tall) < TOGETHER:
        return
    if tall >= wide:
        _beside(axis, ends, places[:, 1])
    else:
        _along(axis, ends, below=bool(places[:, 1].mean() < 0.5))


def spread(wanted: FloatArray, gap: float, most: float = 1.0) -> FloatArray:
    """Move sorted places within 0 and `most` apart, so that two are a gap from each other, as little as possible.

    Least squares: without the gaps it is isotonic regression, by pooling neighbours that are in the wrong order.
    """
    steps = gap * np.arange(len(wanted))
    pools: list[tuple[float, int]] = []
    for place in wanted - steps:
        pools.append((float(place), 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (one, n), (other, m) = pools[-2:]
            pools[-2:] = [((n * one + m * other) / (n + m), n + m)]
    pooled = np.concatenate([np.full(count, place) for place, count in pools])
    return np.asarray(np.clip(pooled, 0.0, max(0.0, most - steps[-1])) + steps, np.float64)


def _fractions(axis: Axes, ends: Sequence[End]) -> FloatArray:
    """Return where the ends are, as shares of the panel, `(n, 2)`."""
    on_screen = axis.transData.transform([(end.x, end.y) for end in ends])
    return np.asarray(axis.transAxes.inverted().transform(on_screen), np.float64)


def _points(axis: Axes) -> tuple[float, float]:
    """Return how wide and how high the panel is, in points."""
    box = axis.get_window_extent()
    per_point = axis.get_figure(root=True).dpi / 72  # type: ignore[union-attr]
    return float(box.width) / per_point, float(box.height) / per_point


def _beside(axis: Axes, ends: Sequence[End], heights: FloatArray) -> None:
    order = np.argsort(heights, kind="stable")
    placed = spread(heights[order], 1.2 * SIZE / _points(axis)[1])
    for i, height in zip(order, placed, strict=True):
        _write(axis, ends[i], (1.03, float(height)), ha="left", va="center")


def _along(axis: Axes, ends: Sequence[End], *, below: bool) -> None:
    """Write the names upright under the ends, or over them, where the panel is made higher for it."""
    width, height = _points(axis)
    _make_room(axis, ends, (0.6 * SIZE * max(len(end.name) for end in ends) + 10) / height, below)
    places = _fractions(axis, ends)
    order = np.argsort(places[:, 0], kind="stable")
    placed = spread(places[order, 0], 1.2 * SIZE / width)
    level = float(places[:, 1].min() - 0.035 if below else places[:, 1].max() + 0.035)
    for i, place in zip(order, placed, strict=True):
        _write(axis, ends[i], (float(place), level), ha="center", va="top" if below else "bottom", rotation=90)


def _make_room(axis: Axes, ends: Sequence[End], share: float, below: bool) -> None:
    """Move the panel's lower or upper limit until so much of it is free beyond all ends."""
    scale: Any = axis.yaxis.get_transform()
    low, high = scale.transform(np.array(axis.get_ylim()))
    values = scale.transform(np.array([end.y for end in ends]))
    share = min(share, 0.5)
    if below:
        low = min(low, values.min() - (high - values.min()) * share / (1 - share))
    else:
        high = max(high, values.max() + (values.max() - low) * share / (1 - share))
    axis.set_ylim(*scale.inverted().transform(np.array([low, high])))


def _write(axis: Axes, end: End, place: tuple[float, float], **more: Any) -> None:
    axis.annotate(
        end.name,
        (end.x, end.y),
        place,
        textcoords="axes fraction",
        color=end.colour,
        fontsize=SIZE,
        arrowprops={**LEADER, "color": end.colour},
        annotation_clip=False,
        **more,
    )
