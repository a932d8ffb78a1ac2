"""Pictures of what `lasg theory check` measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lasg.report.axes import line, use_log_scale
from lasg.report.end_labels import End, label_ends
from lasg.report.plots import drawing, finish
from lasg.report.style import style
from lasg.theory.estimates import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GUIDES = {"stronglyconvex": (-1.0, "1 / K"), "nonconvex": (-0.5, "1 / sqrt(K)")}
"""The promised slopes."""
WHAT = {
    "stronglyconvex": "L(theta^K) - L*",
    "nonconvex": "mean squared gradient",
    "variance": "left side over sigma_m^2",
}
"""What is on the other axis."""
TITLES = {
    "stronglyconvex": "Strongly convex, eta_k = 2 / (mu (k + K0))",
    "nonconvex": "Not convex, eta of order 1 / sqrt(K)",
    "variance": "Left sides of the rules: LAG's keeps the noise",
    "descent": "What the descent lemmas leave to their noise term, as a share of it: at most 1",
}
"""The figures by name."""


def draw(name: str, curves: Sequence[Curve]) -> Figure:
    """Draw one of the figures of `TITLES`."""
    from matplotlib.figure import Figure

    with drawing():
        if name == "descent":
            figure = Figure(figsize=(10.5, 6.4), layout="constrained")
            _descents(figure, curves)
        else:
            figure = Figure(figsize=(8.5, 4.4), layout="constrained")
            _decline(figure.subplots(), name, [one for one in curves if one.part == name])
        axes = figure.axes[-1] if name == "descent" else figure.axes[0]
        figure.legend(
            *axes.get_legend_handles_labels(),
            loc="outside right upper",
            title="mean over seeds,\nband: 95 % interval",
            alignment="left",
        )
        return finish(figure, TITLES[name])


def _decline(axis: Axes, name: str, curves: Sequence[Curve]) -> None:
    """Draw curves that fall, their bounds, and the promised slope."""
    for place, one in enumerate(curves):
        _curve(axis, one, place)
    bounds = {one.bound.tobytes(): (one.algorithm, one.x, one.bound) for one in curves if one.bound is not None}
    for (algorithm, x, bound), dashes in zip(reversed(bounds.values()), ("--", ":"), strict=False):
        kind = "quantised" if style(algorithm).hollow else "plain"
        what = "floor of LAG's" if name == "variance" else f"bound, {kind}"
        axis.plot(x, bound, dashes, color="#444444", linewidth=1.1, label=what)
    if name in GUIDES:
        power, label = GUIDES[name]
        x, top = curves[0].x, curves[0].mean
        late = x > x[-1] / 8
        axis.plot(x[late], 0.5 * top[-1] * (x[late] / x[-1]) ** power, color="#999999", linewidth=3, label=label)
    use_log_scale(axis.xaxis)
    use_log_scale(axis.yaxis)
    axis.set_xlabel("rounds K (log)")
    axis.set_ylabel(f"{WHAT[name]} (log)")
    label_ends(axis, [End(one.algorithm, style(one.algorithm).colour, one.x[-1], one.mean[-1]) for one in curves])


def _descents(figure: Figure, curves: Sequence[Curve]) -> None:
    lemmas = {"lossdescent": "Lemma 1", "lyapunovdescent": "Lemma 2"}
    problems = ("quadratics", "ripples")
    axes = figure.subplots(2, 2, sharex=True, sharey="col")
    for (part, lemma), row in zip(lemmas.items(), axes, strict=True):
        for problem, axis in zip(problems, row, strict=True):
            for place, one in enumerate(one for one in curves if one.part == f"{part}-{problem}"):
                _curve(axis, one, place)
            axis.set_title(f"{lemma}, {problem}", loc="left")
            axis.set_ylabel("share of the noise term")
    for axis in axes[-1]:
        axis.set_xlabel("round")


def _curve(axis: Axes, one: Curve, place: int) -> None:
    look = style(one.algorithm)
    axis.plot(one.x, one.mean, label=one.algorithm, markevery=(0.02 + 0.013 * place, 0.16), **line(look))
    low = one.mean - one.half
    if (one.mean > 0).all():
        low = np.maximum(low, 0.01 * one.mean)  # below zero a logarithmic axis has no place
    axis.fill_between(one.x, low, one.mean + one.half, color=look.colour, alpha=0.13, linewidth=0)
