"""How curves and axes look in matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lasg.report.curves import LABELS
from lasg.report.formatting import prefixed
from lasg.report.style import LINES, MARKERS, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis


def line(look: Style) -> dict[str, Any]:
    """Return the look of a curve in matplotlib's words."""
    return {
        "color": look.colour,
        "linestyle": LINES[look.dash],
        "linewidth": 1.4,
        "marker": MARKERS[look.marker],
        "markersize": {"star": 7.5, "cross": 5.5}.get(look.marker, 4.5),
        "markerfacecolor": "white" if look.hollow else look.colour,
    }


def label_axes(axis: Axes, y: str, label: str) -> None:
    """Label a panel of y against something, and make the axes logarithmic where they should be."""
    use_log_scale(axis.xaxis)
    axis.set_xlabel(f"{label} (log)")
    axis.set_ylabel(LABELS[y] + (" (log)" if y == "loss" else ""))
    if y == "loss":
        use_log_scale(axis.yaxis)


def use_log_scale(axis: Axis) -> None:
    """Make an axis logarithmic, its numbers written as 0.5, 200, 10k, 1M."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    scale = axis.axes.set_xscale if axis is axis.axes.xaxis else axis.axes.set_yscale
    scale("log")
    low, high = axis.get_view_interval()
    # Within one decade the powers of ten say nothing: round numbers do.
    axis.set_major_locator(
        MaxNLocator(6) if high < 6 * low else LogLocator(subs=(1, 2, 5) if high < 60 * low else (1,))
    )
    axis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
    axis.set_minor_formatter(NullFormatter())


def tick(value: float) -> str:
    """Write a number on an axis: 5e-6, 0.5, 200, 10k, 1M."""
    if 0 < value < 1e-3:
        digits, power = f"{value:.2e}".split("e")
        return f"{float(digits):g}e{int(power)}"
    scaled, unit = prefixed(value)
    return f"{scaled:g}{unit}"
