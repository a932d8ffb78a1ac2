"""Pictures of stored runs, drawn with matplotlib: SVG, PNG and PDF. The same runs give the same bytes."""

from __future__ import annotations

import functools
import io
import itertools
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lasg.analysis.compare import shared_target, summarise
from lasg.analysis.link_model import PRESETS, LinkModel
from lasg.analysis.series import Series, check_one_problem, in_order, series
from lasg.errors import LasgError, missing_extra
from lasg.report.curves import LABELS, mean_curve, staleness
from lasg.report.figure_data import uploads_per
from lasg.report.formatting import prefixed, seeds_of
from lasg.report.style import LINES, MARKERS, Style, style, styles
from lasg.runs.files import write_atomically
from lasg.runs.store import Run, read_runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
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
    kind = path.suffix[1:].lower()
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": None}[kind]
    buffer = io.BytesIO()
    with drawing():
        figure.savefig(buffer, format=kind, dpi=150, metadata=undated)
    write_atomically(path, buffer.getvalue())


def draw(kind: str, runs: Sequence[Run], title: str, network: LinkModel | None = None) -> Figure:
    """Draw a figure of one of the `KINDS`."""
    if kind in {"raster", "staleness", "sides"} and not any(len(run.trace["uploaded"]) for run in runs):
        raise LasgError(f"every run ended before its first round: there is no {kind} to draw")
    with drawing():
        return settled(KINDS[kind](runs) if network is None else KINDS[kind](runs, network), title)


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
        figure = settled(_panels(series(runs), pairs, network, columns=2), title)
    save(figure, path)
    return True


def settled(figure: Figure, title: str) -> Figure:
    """Add the title, and lay the figure out once: saving it in one format must not change it for the next."""
    per_line = int(8 * figure.get_figwidth())
    figure.suptitle(textwrap.fill(title, per_line), x=0.01, ha="left", fontweight="bold")
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


# -- curves of many algorithms -----------------------------------------------------------------------------


def curves(runs: Sequence[Run]) -> Figure:
    """Loss against iterations, uploads and upload bits: mean over seeds, the band one standard deviation."""
    return _panels(in_order(series(runs)), [("iterations", "loss"), ("uploads", "loss"), ("bits_up", "loss")])


def training(runs: Sequence[Run]) -> Figure:
    """Loss and test accuracy against iterations, uploads and upload bits."""
    pairs = [(x, y) for y in ("loss", "accuracy") for x in ("iterations", "uploads", "bits_up")]
    return _panels(in_order(series(runs)), pairs, columns=3)


def timed(runs: Sequence[Run], network: LinkModel = PRESETS["wireless"]) -> Figure:
    """Loss and test accuracy against simulated seconds."""
    return _panels(in_order(series(runs)), [("seconds", "loss"), ("seconds", "accuracy")], network)


def gradients(runs: Sequence[Run]) -> Figure:
    """Loss against gradient evaluations."""
    return _panels(in_order(series(runs)), [("gradients", "loss")])


def trials(runs: Sequence[Run]) -> Figure:
    """Loss and test accuracy against uploads and iterations, over many seeds."""
    shown = in_order(series(runs))
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
    """Draw one panel a pair (x, y), a curve a series; one legend for all, to the right."""
    from matplotlib.figure import Figure

    if all(one.diverged == len(one.runs) for one in shown):
        raise LasgError(NOBODY)
    width = columns or len(pairs)
    height = -(-len(pairs) // width)
    figure = Figure(figsize=(3.9 * width + 1.6, 3.3 * height + 0.6), layout="constrained")
    axes = figure.subplots(height, width, squeeze=False).ravel()
    for axis, (x, y) in zip(axes, pairs, strict=True):
        for place, (one, look) in enumerate(zip(shown, styles(shown), strict=True)):
            _curve(axis, one, look, (x, y), place, network)
        _axes(axis, y, LABELS[x] if network is None or x != "seconds" else f"simulated seconds ({network.name})")
    seeds = max(len(one.runs) for one in shown)
    note = f"mean of {seeds} seeds,\nband: ± 1 standard\ndeviation" if seeds > 1 else "one seed"
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", title=note, alignment="left")
    return figure


def _curve(axis: Axes, one: Series, look: Style, pair: tuple[str, str], place: int, network: LinkModel | None) -> None:
    """Draw a series: the mean, its band, and a few markers, at other places for each."""
    curve = mean_curve(one, *pair, network)
    scale = 100 if pair[1] == "accuracy" else 1
    seen = curve.x > 0
    x, y, spread = curve.x[seen], scale * curve.y[seen], scale * curve.spread[seen]
    lost = f" ({one.diverged} of {len(one.runs)} diverged)" if one.diverged else ""
    axis.plot(x, y, label=one.label + lost, markevery=(0.02 + 0.011 * place, 0.16), **line(look))
    if spread.any():
        # Below zero a logarithmic axis has no place: the band ends at a hundredth of the mean.
        axis.fill_between(x, np.maximum(y - spread, 0.01 * y), y + spread, color=look.colour, alpha=0.13, linewidth=0)


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


def _axes(axis: Axes, y: str, label: str) -> None:
    logarithmic(axis.xaxis)
    axis.set_xlabel(f"{label} (log)")
    axis.set_ylabel(LABELS[y] + (" (log)" if y == "loss" else ""))
    if y == "loss":
        logarithmic(axis.yaxis)


def logarithmic(axis: Axis) -> None:
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


# -- what the rules do --------------------------------------------------------------------------------------


def toy(runs: Sequence[Run]) -> Figure:
    """Uploads in every 10 iterations, one curve a series."""
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


RASTER_ROUNDS = 200


def raster(runs: Sequence[Run]) -> Figure:
    """Who uploads when: workers x rounds, a dot an upload."""
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
        logarithmic(axis.xaxis)
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
        logarithmic(axis.xaxis)
        logarithmic(axis.yaxis)
    for axis in axes[len(runs) :]:
        axis.set_axis_off()
    for axis in axes[max(0, len(runs) - 3) : len(runs)]:
        axis.tick_params(labelbottom=True)
        axis.set_xlabel("round (log)")
    for axis in axes[::3]:
        axis.set_ylabel("squared norm (log)")
    handles, labels = axes[0].get_legend_handles_labels()
    title = f"a worker uploads when its\nleft side is above the line,\nor after {runs[0].spec.D} silent rounds"
    axes[-1].legend(handles, labels, loc="center left", title=title, alignment="left", markerscale=2)
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
    shown = in_order(series(runs))
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
