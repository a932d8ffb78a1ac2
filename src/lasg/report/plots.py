"""Pictures of stored runs, drawn with matplotlib: SVG, PNG and PDF. The same runs give the same bytes."""

from __future__ import annotations

import functools
import io
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lasg.analysis.compare import shared_target, summarise
from lasg.analysis.link_model import PRESETS, LinkModel
from lasg.analysis.series import Series, check_one_problem, series
from lasg.errors import LasgError, missing_extra
from lasg.report.axes import label_axes, line
from lasg.report.curves import LABELS, mean_curve
from lasg.report.end_labels import End, label_ends
from lasg.report.figure_data import uploads_per
from lasg.report.formatting import seeds_of
from lasg.report.rule_plots import ages, raster, sides
from lasg.report.style import Style, sort_series, styles
from lasg.runs.files import write_atomically
from lasg.runs.store import Run, read_runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("svg", "png", "pdf")
SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "lasg",
    "svg.fonttype": "path",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "font.size": 9.5,
    "axes.titlesize": 10,
    "text.parse_math": False,
}
NOBODY = "every run diverged: there is no curve to draw"


def require_matplotlib() -> None:
    """Refuse to draw where matplotlib is not installed."""
    try:
        import matplotlib as mpl  # noqa: F401
    except ImportError:
        raise missing_extra("matplotlib", "plot") from None


def check(path: Path) -> None:
    """Say before the work is done what would stop the picture after it."""
    require_matplotlib()
    if path.suffix[1:].lower() not in FORMATS:
        raise LasgError(f"cannot write the plot {path}: its name must end in one of {', '.join(FORMATS)}")


@contextmanager
def drawing() -> Iterator[None]:
    """Draw in the one style of this program, without a warning for a title in a script that the font lacks."""
    from matplotlib import rc_context

    with rc_context(SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")
        yield


def save(figure: Figure, path: Path | str) -> None:
    """Write a picture whole or not at all, without the date, so that the same picture is the same file."""
    path = Path(path)
    write_atomically(path, rendered(figure, path.suffix[1:].lower()))


def rendered(figure: Figure, kind: str) -> bytes:
    """Return a picture as the bytes of a file."""
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": None}[kind]
    buffer = io.BytesIO()
    with drawing():
        figure.savefig(buffer, format=kind, dpi=150, metadata=undated)
    return buffer.getvalue()


def draw(kind: str, runs: Sequence[Run], title: str, network: LinkModel | None = None) -> Figure:
    """Draw a figure of one of the `KINDS`."""
    if kind in {"raster", "staleness", "sides"} and not any(len(run.trace["uploaded"]) for run in runs):
        raise LasgError(f"every run ended before its first round: there is no {kind} to draw")
    with drawing():
        return finish(KINDS[kind](runs) if network is None else KINDS[kind](runs, network), title)


def plot(runs: Run | Sequence[Run] | Path | str, title: str | None = None) -> Figure:
    """Draw loss against iterations, uploads and upload bits: a curve per algorithm, the mean over its seeds.

    `runs` are runs, or the folder of one or of several.

    The figure is not pyplot's: notebooks show it when it is the value of a cell, `savefig` writes it.
    """
    require_matplotlib()
    given = read_runs(runs) if isinstance(runs, Path | str) else runs
    shown = [given] if isinstance(given, Run) else list(given)
    check_one_problem(shown)
    first = shown[0].spec
    figure = draw("curves", shown, f"{first.task}, {first.partition}" if title is None else title)
    # Without pyplot a notebook knows no picture of a figure; this is what it asks an object for.
    figure.__dict__["_repr_png_"] = functools.partial(_png, figure)
    return figure


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    with drawing():
        figure.savefig(buffer, format="png", dpi=100)
    return buffer.getvalue()


def comparison(runs: Sequence[Run], path: Path | str, title: str, network: LinkModel | None = None) -> bool:
    """Draw loss against uploads and upload bits; where there is a network, against megabytes and seconds too.

    Diverged runs are left out; returns False, and draws nothing, if no other is left.
    """
    path = Path(path)
    check(path)
    if all(run.status == "diverged" for run in runs):
        return False
    columns = ["uploads", "bits_up", *([] if network is None else ["megabytes", "seconds"])]
    with drawing():
        pairs = [(column, "loss") for column in columns]
        figure = finish(_panels(series(runs), pairs, network, columns=2), title)
    save(figure, path)
    return True


def finish(figure: Figure, title: str) -> Figure:
    """Add the title, and lay the figure out once: saving it in one format must not change it for the next."""
    per_line = int(8 * figure.get_figwidth())
    figure.suptitle(textwrap.fill(title, per_line), x=0.01, ha="left", fontweight="bold")
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


# -- curves of many algorithms -----------------------------------------------------------------------------


def curves(runs: Sequence[Run]) -> Figure:
    """Loss against iterations, uploads and upload bits: mean over seeds, the band one standard deviation."""
    return _panels(sort_series(series(runs)), [("iterations", "loss"), ("uploads", "loss"), ("bits_up", "loss")])


def training(runs: Sequence[Run]) -> Figure:
    """Loss and test accuracy against iterations, uploads and upload bits."""
    pairs = [(x, y) for y in ("loss", "accuracy") for x in ("iterations", "uploads", "bits_up")]
    return _panels(sort_series(series(runs)), pairs, columns=3)


def timed(runs: Sequence[Run], network: LinkModel = PRESETS["wireless"]) -> Figure:
    """Loss and test accuracy against simulated seconds."""
    return _panels(sort_series(series(runs)), [("seconds", "loss"), ("seconds", "accuracy")], network)


def gradients(runs: Sequence[Run]) -> Figure:
    """Loss against gradient evaluations."""
    return _panels(sort_series(series(runs)), [("gradients", "loss")])


def trials(runs: Sequence[Run]) -> Figure:
    """Loss and test accuracy against uploads and iterations, over many seeds."""
    shown = sort_series(series(runs))
    pairs = [("uploads", "loss"), ("uploads", "accuracy"), ("iterations", "loss"), ("iterations", "accuracy")]
    if any(np.isnan(run.trace["accuracy"]).any() for run in runs):
        raise LasgError(f"{runs[0].spec.data} has no test set, so there is no test accuracy to draw")
    return _panels(shown, pairs, columns=2)


def _panels(
    shown: Sequence[Series],
    pairs: Sequence[tuple[str, str]],
    network: LinkModel | None = None,
    columns: int | None = None,
) -> Figure:
    """Draw one panel per pair (x, y), a curve per series; one legend for all, to the right."""
    from matplotlib.figure import Figure

    if all(one.diverged == len(one.runs) for one in shown):
        raise LasgError(NOBODY)
    width = columns or len(pairs)
    height = -(-len(pairs) // width)
    figure = Figure(figsize=(3.9 * width + 1.6, 3.3 * height + 0.6), layout="constrained")
    axes = figure.subplots(height, width, squeeze=False).ravel()
    for axis, (x, y) in zip(axes, pairs, strict=True):
        looks = enumerate(zip(shown, styles(shown), strict=True))
        ends = [_curve(axis, one, look, (x, y), place, network) for place, (one, look) in looks]
        label_axes(axis, y, LABELS[x] if network is None or x != "seconds" else f"simulated seconds ({network.name})")
        label_ends(axis, [end for end in ends if end is not None])
    seeds = max(len(one.runs) for one in shown)
    note = f"mean of {seeds} seeds,\nband: ± 1 standard\ndeviation" if seeds > 1 else "one seed"
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", title=note, alignment="left")
    return figure


def _curve(
    axis: Axes, one: Series, look: Style, pair: tuple[str, str], place: int, network: LinkModel | None
) -> End | None:
    """Draw a series: the mean, its band, and a few markers, at other places for each. Return where it ends."""
    curve = mean_curve(one, *pair, network)
    scale = 100 if pair[1] == "accuracy" else 1
    seen = curve.x > 0
    x, y, spread = curve.x[seen], scale * curve.y[seen], scale * curve.spread[seen]
    lost = f" ({one.diverged} of {len(one.runs)} diverged)" if one.diverged else ""
    axis.plot(x, y, label=one.label + lost, markevery=(0.02 + 0.011 * place, 0.16), **line(look))
    if spread.any():
        # Below zero a logarithmic axis has no place: the band ends at a hundredth of the mean.
        axis.fill_between(x, np.maximum(y - spread, 0.01 * y), y + spread, color=look.colour, alpha=0.13, linewidth=0)
    return End(one.label, look.colour, float(x[-1]), float(y[-1])) if len(x) else None


# -- other pictures ----------------------------------------------------------------------------------------


def toy(runs: Sequence[Run]) -> Figure:
    """Uploads in every 10 iterations, one curve per series."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 3.6), layout="constrained")
    axis = figure.subplots()
    shown = series(runs)
    for place, (one, look) in enumerate(zip(shown, styles(shown), strict=True)):
        y = uploads_per(one.runs, 10)
        name = f"{one.algorithm}, c = {one.runs[0].spec.laziness.c:g}"
        axis.plot(10 * np.arange(len(y)), y, label=name, markevery=(4 + 5 * place, 20), **line(look))
    axis.set_xlabel("iterations")
    axis.set_ylabel(f"uploads in 10 iterations (at most {10 * runs[0].spec.workers})")
    axis.set_ylim(bottom=0)
    figure.legend(loc="outside right upper", title=seeds_of(len(shown[0].runs)), alignment="left")
    return figure


def networks(runs: Sequence[Run]) -> Figure:
    """Simulated seconds to one loss, as a multiple of SGD's, for every preset."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    target = shared_target(runs)
    faster = [{row.label: row.faster for row in summarise(runs, target, network)} for network in PRESETS.values()]
    if not any(faster[0].values()):
        raise LasgError("no run of sgd reached the loss at which the others are compared: there is nothing to draw")
    figure = Figure(figsize=(9.5, 4.4), layout="constrained")
    axis = figure.subplots()
    shown = sort_series(series(runs))
    for place, (one, look) in enumerate(zip(shown, styles(shown), strict=True)):
        found = [rows[one.label] or np.nan for rows in faster]
        at = np.arange(len(PRESETS)) + 0.05 * (place - len(shown) / 2)
        missed = " (not reached)" if faster[0][one.label] is None else ""
        axis.plot(at, found, label=one.label + missed, **(line(look) | {"linestyle": "none", "markersize": 6.5}))
    axis.set_xlabel("network")
    axis.axhline(1, color="black", linewidth=0.8)
    axis.set_xticks(range(len(PRESETS)), list(PRESETS))
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    axis.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}x" if f"{value:g}"[0] in "25" else ""))
    axis.set_ylabel(f"times faster than sgd to loss {target:g} (log)\nbelow the line: slower")
    over = seeds_of(max(len(one.runs) for one in shown))
    figure.legend(loc="outside right upper", title=over, alignment="left")
    return figure


KINDS: Mapping[str, Callable[..., Figure]] = {
    "curves": curves,
    "training": training,
    "timed": timed,
    "toy": toy,
    "gradients": gradients,
    "trials": trials,
    "raster": raster,
    "staleness": ages,
    "sides": sides,
    "networks": networks,
}
"""The drawings by name."""
