"""Pictures of stored runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lasg.core.algorithms import ALGORITHMS
from lasg.errors import LasgError, missing_extra
from lasg.experiments.store import Run

# Okabe and Ito's colours, told apart by colour-blind readers: one a rule. Quantised algorithms are dashed.
_RULE_COLOURS = {
    "always": "#000000",
    "lag": "#999999",
    "wk1": "#E69F00",
    "wk2": "#0072B2",
    "ps": "#009E73",
    "pse": "#D55E00",
}
_LOCAL_COLOUR = "#CC79A7"


def style(name: str) -> dict[str, Any]:
    """Return the colour and line of an algorithm: the same everywhere."""
    known = ALGORITHMS.get(name)
    if known is None:
        return {"color": "#56B4E9", "linestyle": "-."}
    colour = _LOCAL_COLOUR if known.local else _RULE_COLOURS[known.rule.name]
    return {"color": colour, "linestyle": "--" if known.quantised else "-"}


def check(path: Path) -> None:
    """Say before the work is done what would stop the picture after it."""
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError:
        raise missing_extra("matplotlib", "plot") from None
    kinds = FigureCanvasBase.get_supported_filetypes()
    if path.suffix[1:].lower() not in kinds:
        raise LasgError(f"cannot write the plot {path}: its name must end in one of {', '.join(kinds)}")


def comparison(runs: Sequence[Run], path: Path, title: str) -> bool:
    """Draw loss against uploads and against upload bits, one curve an algorithm (mean over seeds).

    Diverged runs are left out; returns False, and draws nothing, if no other is left.
    """
    check(path)
    runs = [run for run in runs if run.status != "diverged"]
    if not runs:
        return False
    from matplotlib.figure import Figure
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

    figure = Figure(figsize=(11, 4.6), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.spec.algorithm, []).append(run)
    for axis, (column, label) in zip(axes, (("uploads", "uploads"), ("bits_up", "bits uploaded")), strict=True):
        for name, group in groups.items():
            x, y = mean_curve(group, column)
            axis.plot(x, y, label=name, linewidth=1.6, **style(name))
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
        axis.yaxis.set_major_formatter(FormatStrFormatter("%g"))
        axis.yaxis.set_minor_formatter(NullFormatter())
        axis.set_xlabel(label)
        axis.grid(True, which="both", color="#dddddd", linewidth=0.5)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("training loss")
    figure.suptitle(title)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as error:
        raise LasgError(f"cannot write the plot {path}: {error}") from None
    return True


def mean_curve(runs: Sequence[Run], column: str) -> tuple[Any, Any]:
    """Return a count and the loss at the evaluations that all runs have, averaged; the start (count 0) left out."""
    length = min(len(run.trace["loss"]) for run in runs)
    x = np.mean([run.trace[column][:length] for run in runs], axis=0)
    y = np.mean([run.trace["loss"][:length] for run in runs], axis=0)
    return x[x > 0], y[x > 0]
