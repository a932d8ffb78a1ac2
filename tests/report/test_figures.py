"""Figures: every kind in every format, the same bytes twice, labelled axes, legends beside the curves."""

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from lasg.analysis import link_time
from lasg.analysis.compare import shared_target, summarise
from lasg.analysis.link_model import PRESETS, LinkModel
from lasg.analysis.series import series
from lasg.core.algorithms import ALGORITHMS
from lasg.errors import LasgError
from lasg.report import axes, paper, plots
from lasg.report.curves import mean_curve, staleness
from lasg.report.paper_figures import LAZY, PAPER_TASKS, PLAIN, Choice, figures, listed
from lasg.report.style import LINES, MARKERS, sort_series, style, styles
from lasg.runs.store import Run, read
from lasg.runs.tasks import SETTINGS, TASKS
from tests.runs.samples import made_up, small

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAGIC = {"svg": b"<?xml", "png": b"\x89PNG\r\n\x1a\n", "pdf": b"%PDF-"}
ROWS = [(0, 0, 1.0), (10, 100, 0.5), (20, 200, 0.2)]


def chosen(kind: str, runs: Sequence[Run]) -> list[Run]:
    """Return the runs that a figure of a kind is drawn from."""
    if kind in {"raster", "staleness", "sides"}:
        return [run for run in runs if run.spec.algorithm in LAZY and run.spec.seed == 0]
    if kind == "toy":
        return [run for run in runs if run.spec.algorithm in {"lag-wk", "lasg-wk2"}]
    return list(runs)


def title(kind: str) -> str:
    return f"digits, heterogeneous: {kind}"


@pytest.fixture(scope="module")
def drawn(runs: list[Run]) -> "dict[str, Figure]":
    """Return a figure of every kind, laid out as on paper."""
    found = {kind: plots.draw(kind, chosen(kind, runs), title(kind)) for kind in plots.KINDS}
    for figure in found.values():
        laid_out(figure)
    return found


def laid_out(figure: "Figure") -> Any:
    """Draw a figure once, so that everything has its place; return the renderer."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return canvas.get_renderer()


def legends(figure: "Figure") -> list[Any]:
    found = [axis.get_legend() for axis in figure.axes]
    return [*figure.legends, *(legend for legend in found if legend is not None)]


every_kind = pytest.mark.parametrize("kind", list(plots.KINDS))


# -- files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", plots.FORMATS)
@every_kind
def test_every_kind_is_drawn_in_every_format(
    drawn: "dict[str, Figure]", tmp_path: Path, kind: str, suffix: str
) -> None:
    path = tmp_path / "new" / f"{kind}.{suffix}"
    plots.save(drawn[kind], path)
    content = path.read_bytes()
    assert content.startswith(MAGIC[suffix])
    assert len(content) > 2000
    assert [child.name for child in path.parent.iterdir()] == [path.name]
    if suffix == "svg":
        ET.fromstring(content)


@every_kind
def test_the_same_runs_give_the_same_bytes(
    runs: list[Run], drawn: "dict[str, Figure]", tmp_path: Path, kind: str
) -> None:
    again = plots.draw(kind, [read(run.folder) for run in chosen(kind, runs)], title(kind))
    for suffix in plots.FORMATS:
        for name, figure in (("one", drawn[kind]), ("two", again)):
            plots.save(figure, tmp_path / f"{name}.{suffix}")
        assert (tmp_path / f"one.{suffix}").read_bytes() == (tmp_path / f"two.{suffix}").read_bytes()


@pytest.mark.parametrize("kind", ["toy", "staleness", "networks"])
def test_a_file_is_the_same_whatever_was_written_before_it(runs: list[Run], tmp_path: Path, kind: str) -> None:
    """As lasg figure does with --formats png and with --formats svg,png,pdf."""
    figure = plots.draw(kind, chosen(kind, runs), "title")
    for suffix in plots.FORMATS:
        plots.save(figure, tmp_path / "all" / f"figure.{suffix}")
    for suffix in plots.FORMATS:
        plots.save(plots.draw(kind, chosen(kind, runs), "title"), tmp_path / f"alone.{suffix}")
        assert (tmp_path / f"alone.{suffix}").read_bytes() == (tmp_path / "all" / f"figure.{suffix}").read_bytes()


def test_no_date_and_no_reference_to_the_network_is_in_a_picture(drawn: "dict[str, Figure]", tmp_path: Path) -> None:
    for suffix in plots.FORMATS:
        plots.save(drawn["raster"], tmp_path / f"figure.{suffix}")
        assert b"CreationDate" not in (tmp_path / f"figure.{suffix}").read_bytes()
    text = (tmp_path / "figure.svg").read_text(encoding="utf-8")
    assert "dc:date" not in text
    assert not re.search(r'(xlink:)?href="https?:', text)


def test_drawing_leaves_matplotlib_as_it_was(runs: list[Run], tmp_path: Path) -> None:
    some = [run for run in runs if run.spec.algorithm in {"sgd", "lasg-wk2"}]
    plots.save(plots.draw("curves", some, "title"), tmp_path / "one.svg")
    before = dict(mpl.rcParams)
    plots.save(plots.draw("curves", some, "title"), tmp_path / "two.svg")
    assert dict(mpl.rcParams) == before, "drawing leaves matplotlib as it was"
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_a_picture_that_cannot_be_written_leaves_nothing(drawn: "dict[str, Figure]", tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    (tmp_path / "folder.svg").mkdir()
    for path in (tmp_path / "file" / "x.svg", tmp_path / "folder.svg"):
        with pytest.raises(LasgError, match=path.name):
            plots.save(drawn["toy"], path)
    assert (tmp_path / "file").read_text() == "kept"
    assert sorted(child.name for child in tmp_path.iterdir()) == ["file", "folder.svg"]


@pytest.mark.parametrize("name", ["plot.nonsense", "plot", "plot.", ".png", "plot.png.txt"])
def test_a_format_that_does_not_exist_is_refused_before_the_work(name: str) -> None:
    with pytest.raises(LasgError, match="must end in one of") as caught:
        plots.check(Path(name))
    assert "\n" not in str(caught.value)


# -- axes and legends --------------------------------------------------------------------------------------


def labelled(axis: "Axes", which: str) -> bool:
    """Tell whether an axis has a label, or one with which it shares its numbers has."""
    own = axis.get_xlabel() if which == "x" else axis.get_ylabel()
    group = axis.get_shared_x_axes() if which == "x" else axis.get_shared_y_axes()
    others = [other.get_xlabel() if which == "x" else other.get_ylabel() for other in group.get_siblings(axis)]
    return bool(own) or (len(others) > 1 and any(others))


@every_kind
def test_every_axis_has_a_label(drawn: "dict[str, Figure]", kind: str) -> None:
    for axis in drawn[kind].axes:
        if axis.axison:
            for which in ("x", "y"):
                assert labelled(axis, which), f"{kind}: the {which} axis of {axis.get_title(loc='left')!r} has no label"


def test_labels_have_units_and_say_what_is_logarithmic(drawn: "dict[str, Figure]") -> None:
    for kind, figure in drawn.items():
        for axis in figure.axes:
            for label, scale in (
                (axis.get_xlabel(), axis.get_xscale()),
                (axis.get_ylabel(), axis.get_yscale()),
            ):
                if label:
                    assert ("(log)" in label) == (scale == "log"), (kind, label)
    accuracy = [axis.get_ylabel() for axis in drawn["trials"].axes if "accuracy" in axis.get_ylabel()]
    assert accuracy == ["test accuracy (%)"] * 2
    assert all("in rounds" in axis.get_ylabel() for axis in drawn["staleness"].axes)


@every_kind
def test_a_legend_covers_no_axes(drawn: "dict[str, Figure]", kind: str) -> None:
    figure = drawn[kind]
    renderer = laid_out(figure)
    whole = figure.bbox
    for legend in legends(figure):
        box = legend.get_window_extent(renderer)
        assert whole.x0 <= box.x0 <= box.x1 <= whole.x1 + 1
        assert whole.y0 <= box.y0 <= box.y1 <= whole.y1 + 1
        for axis in figure.axes:
            if axis.axison:
                assert not box.overlaps(axis.get_window_extent(renderer)), kind
                assert not box.overlaps(axis.get_tightbbox(renderer)), kind
    if kind != "raster":
        assert len(legends(figure)) == 1


@every_kind
def test_panels_labels_and_titles_do_not_run_into_one_another(drawn: "dict[str, Figure]", kind: str) -> None:
    figure = drawn[kind]
    renderer = laid_out(figure)
    boxes: list[Any] = [axis.get_tightbbox(renderer) for axis in figure.axes if axis.axison]
    for one, other in itertools.combinations(boxes, 2):
        assert not one.overlaps(other), kind
    title = figure._suptitle  # type: ignore[attr-defined]
    box = title.get_window_extent(renderer)
    for other in [*boxes, *(legend.get_window_extent(renderer) for legend in legends(figure))]:
        assert not box.overlaps(other), kind


LONG = "digits, heterogeneous, optimizer=Adam, optimizer_options={'betas': [0.8, 0.9]}, eta=0.001, D=50, window=20"


def test_a_long_title_does_not_run_into_the_legend_or_out_of_the_picture(runs: list[Run]) -> None:
    figure = plots.draw("gradients", runs, LONG)
    renderer = laid_out(figure)
    box = figure._suptitle.get_window_extent(renderer)  # type: ignore[attr-defined]
    (legend,) = legends(figure)
    assert box.x1 <= figure.bbox.x1
    assert not box.overlaps(legend.get_window_extent(renderer))


@every_kind
def test_the_legend_names_every_algorithm_that_is_drawn(drawn: "dict[str, Figure]", runs: list[Run], kind: str) -> None:
    texts = [text.get_text() for legend in legends(drawn[kind]) for text in legend.get_texts()]
    names = {run.spec.algorithm for run in chosen(kind, runs)}
    titles = " ".join(axis.get_title(loc="left") for axis in drawn[kind].axes)
    for name in names:
        assert any(re.match(rf"{name}(,|$| \()", text) for text in texts) or name in titles.replace(":", " ").split()
    assert len(texts) == len(set(texts))


def test_ticks_are_numbers_a_person_reads(drawn: "dict[str, Figure]") -> None:
    for kind in ("curves", "gradients", "trials"):
        for axis in drawn[kind].axes:
            for texts in (axis.get_xticklabels(), axis.get_yticklabels()):
                shown = [text.get_text() for text in texts if text.get_text()]
                assert shown
                assert len(shown) == len(set(shown)), (kind, shown)
                assert all(re.fullmatch(r"\d+(\.\d+)?(e-\d+)?[kMG]?", text) for text in shown), shown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5e-6, "5e-6"),
        (0.5, "0.5"),
        (0, "0"),
        (200, "200"),
        (10_000, "10k"),
        (1e6, "1M"),
        (2.5e9, "2.5G"),
        (1e-3, "0.001"),
    ],
)
def test_ticks_are_written_short(value: float, text: str) -> None:
    assert axes.tick(value) == text


# -- titles ------------------------------------------------------------------------------------------------

TITLES = [
    "costs $5 and $6",
    r"$\frac{1}{",
    "a_b^c {d} \\alpha %",
    "<b> & \"quotes\" 'single'",
    "é ± µ Ω €",
    "",
    "[bold]x[/bold]",
]


@pytest.mark.parametrize("title", TITLES)
def test_any_title_is_drawn_as_it_is(runs: list[Run], tmp_path: Path, title: str) -> None:
    figure = plots.draw("gradients", runs[:2], title)
    for suffix in plots.FORMATS:
        plots.save(figure, tmp_path / f"figure.{suffix}")
    assert figure._suptitle.get_text() == title  # type: ignore[attr-defined]
    ET.fromstring((tmp_path / "figure.svg").read_bytes())


def test_a_title_in_another_script_warns_nobody(runs: list[Run], tmp_path: Path) -> None:
    plots.save(plots.draw("gradients", runs[:2], "libsvm:数据.libsvm"), tmp_path / "figure.svg")


# -- what is drawn is what the runs say --------------------------------------------------------------------


def test_curves_are_the_means_over_seeds(drawn: "dict[str, Figure]", runs: list[Run]) -> None:
    for axis, x in zip(drawn["curves"].axes, ("iterations", "uploads", "bits_up"), strict=True):
        lines = {line.get_label(): line for line in axis.get_lines()}
        for one in series(runs):
            curve = mean_curve(one, x)
            np.testing.assert_array_equal(lines[one.label].get_xdata(), curve.x[curve.x > 0])
            np.testing.assert_array_equal(lines[one.label].get_ydata(), curve.y[curve.x > 0])
        assert list(lines) == list(ALGORITHMS)


def test_accuracies_are_drawn_in_per_cent(drawn: "dict[str, Figure]", runs: list[Run]) -> None:
    axis = drawn["trials"].axes[1]
    (line,) = [line for line in axis.get_lines() if line.get_label() == "sgd"]
    last = np.mean([run.trace["accuracy"][-1] for run in runs if run.spec.algorithm == "sgd"])
    assert np.asarray(line.get_ydata())[-1] == pytest.approx(100 * last)


def test_the_raster_has_a_dot_an_upload(drawn: "dict[str, Figure]", runs: list[Run]) -> None:
    for axis, run in zip(drawn["raster"].axes, chosen("raster", runs), strict=True):
        (line,) = axis.get_lines()
        rounds, who = np.nonzero(run.uploads[:200])
        dots = zip(np.asarray(line.get_xdata()), np.asarray(line.get_ydata()), strict=True)
        assert set(dots) == set(zip(rounds, who, strict=True))
        assert f"{len(rounds):,} uploads of {run.uploads[:200].size:,} possible" in axis.get_title(loc="left")
        low, high = sorted(axis.get_ylim())
        assert low < 0
        assert high > run.spec.workers - 1


def test_staleness_counts_the_rounds_since_the_last_upload() -> None:
    uploaded = np.array([[1, 1, 1], [0, 1, 0], [0, 0, 1], [1, 0, 0], [0, 0, 0]], bool)
    assert staleness(uploaded).tolist() == [[0, 0, 0], [1, 0, 1], [2, 1, 0], [0, 2, 1], [1, 3, 2]]


def test_sides_are_those_of_the_watched_workers(drawn: "dict[str, Figure]", runs: list[Run]) -> None:
    for axis, run in zip(drawn["sides"].axes, chosen("sides", runs), strict=False):
        lines = {line.get_label(): line for line in axis.get_lines()}
        assert set(lines) == {"right side (threshold)", *(f"left side, worker {m}" for m in run.spec.watched)}
        for i, worker in enumerate(run.spec.watched):
            line = lines[f"left side, worker {worker}"]
            at = np.asarray(line.get_xdata())
            np.testing.assert_array_equal(line.get_ydata(), run.trace["watched_left"][at, i])
        line = lines["right side (threshold)"]
        np.testing.assert_array_equal(line.get_ydata(), run.trace["threshold"][np.asarray(line.get_xdata())])
        assert axis.get_title(loc="left") == run.spec.algorithm


def test_networks_are_times_faster_than_sgd(drawn: "dict[str, Figure]", runs: list[Run]) -> None:
    (axis,) = drawn["networks"].axes
    found = {str(line.get_label()): np.asarray(line.get_ydata()) for line in axis.get_lines()}
    lines = {label.removesuffix(" (not reached)"): values for label, values in found.items()}
    for i, link in enumerate(PRESETS.values()):
        for row in summarise(runs, shared_target(runs), link):
            shown = lines[row.label][i]
            assert np.isnan(shown) if row.faster is None else shown == row.faster
    assert [text.get_text() for text in axis.get_xticklabels()] == list(PRESETS)


def test_a_comparison_has_panels_of_seconds_and_megabytes_where_there_is_a_network(
    runs: list[Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Figure] = []
    monkeypatch.setattr(plots, "save", lambda figure, path: seen.append(figure))
    link = LinkModel(name="my [net] $1$", latency=0.1, up=1e3, down=1e3, gradient=0.1)
    assert plots.comparison(runs, tmp_path / "one.svg", "title")
    assert plots.comparison(runs, tmp_path / "two.svg", "title", link)
    plain, timed = ({axis.get_xlabel(): axis for axis in figure.axes} for figure in seen)
    assert list(plain) == ["uploads (log)", "bits uploaded (log)"]
    lines = timed["simulated seconds (my [net] $1$) (log)"].get_lines()
    (line,) = [line for line in lines if line.get_label() == "lasg-wk2"]
    lazy = [run for run in runs if run.spec.algorithm == "lasg-wk2"]
    ends = [link_time.seconds(run, link)[-1] for run in lazy]
    assert np.asarray(line.get_xdata())[-1] == pytest.approx(np.mean(ends))
    (megabytes,) = [axis for label, axis in timed.items() if "megabytes" in label or "MB" in label]
    (line,) = [line for line in megabytes.get_lines() if line.get_label() == "lasg-wk2"]
    bits = [sum(int(run.trace[name][-1]) for name in ("bits_up", "bits_down", "control_bits")) for run in lazy]
    assert np.asarray(line.get_xdata())[-1] == pytest.approx(np.mean(bits) / 8e6)
    for figure in seen:
        renderer = laid_out(figure)
        (legend,) = legends(figure)
        for axis in figure.axes:
            assert not legend.get_window_extent(renderer).overlaps(axis.get_window_extent(renderer))


@pytest.mark.parametrize(("seeds", "words"), [(1, "one seed"), (2, "mean of 2 seeds")])
@pytest.mark.parametrize("kind", ["curves", "toy"])
def test_the_legend_says_over_how_many_seeds_a_mean_is(runs: list[Run], kind: str, seeds: int, words: str) -> None:
    some = [run for run in chosen("toy", runs) if run.spec.seed < seeds]
    title = legends(plots.draw(kind, some, "title"))[0].get_title().get_text()
    assert words in title.replace("1 seed", "one seed")
    assert "1 seeds" not in title


# -- runs that went wrong ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["curves", "gradients", "trials", "networks"])
def test_runs_that_all_diverged_are_one_clear_line(tmp_path: Path, kind: str) -> None:
    runs = [made_up(tmp_path / name, small(name), ROWS, status="diverged") for name in ("sgd", "lag-wk")]
    if kind == "trials":
        for run in runs:
            run.trace["accuracy"][:] = 0.5
    with pytest.raises(LasgError, match="every run diverged"):
        plots.draw(kind, runs, "title")


@every_kind
@pytest.mark.parametrize("length", [1, 2], ids=["no round", "one round"])
def test_a_run_that_diverged_at_once_does_not_stop_the_others(tmp_path: Path, kind: str, length: int) -> None:
    good = made_up(tmp_path / "0", small("lag-wk"), [*ROWS, *((30 + i, 300, 0.19) for i in range(30))])
    bad = made_up(tmp_path / "1", small("lasg-wk1"), ROWS[:length], status="diverged")
    for run in (good, bad):
        run.trace["accuracy"][:] = 0.5
        run.trace["threshold"][:] = run.trace["watched_left"][:] = 0.5
    runs = [good, bad]
    if kind == "networks":
        runs.insert(0, made_up(tmp_path / "2", small("sgd"), ROWS))
    laid_out(plots.draw(kind, runs, "title"))


def test_without_a_test_set_there_are_no_trials(tmp_path: Path) -> None:
    with pytest.raises(LasgError, match="no test set"):
        plots.draw("trials", [made_up(tmp_path / "0", small("sgd"), ROWS)], "title")


@pytest.mark.parametrize("kind", ["curves", "gradients", "raster", "staleness"])
def test_a_run_of_one_round_can_be_drawn(tmp_path: Path, kind: str) -> None:
    laid_out(plots.draw(kind, [made_up(tmp_path / "0", small("lag-wk"), ROWS[:2])], "title"))


def test_networks_without_sgd_say_so(tmp_path: Path) -> None:
    """Times faster than sgd are not there without it: an empty picture would not say why."""
    runs = [made_up(tmp_path / name, small(name), ROWS) for name in ("lag-wk", "lasg-wk2")]
    with pytest.raises(LasgError, match="sgd"):
        plots.draw("networks", runs, "title")


# -- styles ------------------------------------------------------------------------------------------------


def test_the_twelve_are_told_apart_without_colour() -> None:
    looks = {name: style(name) for name in ALGORITHMS}
    plain = {(look.dash, look.marker, look.hollow) for look in looks.values()}
    assert len(plain) == len(ALGORITHMS)
    for one, other in itertools.combinations(looks.values(), 2):
        assert (one.marker, one.hollow) != (other.marker, other.hollow), "dots alone, as in the figure of networks"
    for look in looks.values():
        assert look.dash in LINES
        assert look.marker in MARKERS
        assert re.fullmatch(r"#[0-9a-fA-F]{6}", look.colour)
        assert re.fullmatch(r"#[0-9a-fA-F]{6}", look.dark)


@pytest.mark.parametrize("colour", ["colour", "dark"])
def test_two_algorithms_of_one_colour_differ_in_line_and_marker(colour: str) -> None:
    looks = [style(name) for name in ALGORITHMS]
    for one, other in itertools.combinations(looks, 2):
        if getattr(one, colour) == getattr(other, colour):
            assert one.dash != other.dash
            assert one.hollow != other.hollow


@pytest.mark.parametrize(
    "specs",
    [
        [small("lasg-wk2", eta=eta) for eta in (0.1, 0.2, 0.3)],
        [small("lasg-wk2", eta=eta) for eta in (0.1, 0.2, 0.3, 0.4)],
        [small("wk2+qsgd8"), small("wk2+qsgd4"), small("wk2+dense")],
        [small("laqsg-wk2", eta=0.1), small("laqsg-wk2", eta=0.2), small("wk2+qsgd8")],
        [small("sgd", eta=eta) for eta in (0.1, 0.2)] + [small("qsgd", eta=eta) for eta in (0.1, 0.2)],
    ],
    ids=["3 settings", "4 settings", "compositions", "settings and a composition", "two of two"],
)
def test_settings_of_one_algorithm_look_different(tmp_path: Path, specs: list[Any]) -> None:
    runs = [made_up(tmp_path / str(i), spec, ROWS) for i, spec in enumerate(specs)]
    looks = styles(sort_series(series(runs)))
    assert len(set(looks)) == len(specs)


def test_an_algorithm_looks_the_same_whoever_stands_beside_it(runs: list[Run]) -> None:
    for found in (series(runs), series(runs[::-1]), series(runs[4:9])):
        for one, look in zip(found, styles(found), strict=True):
            assert look == style(one.algorithm)


# -- names -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(listed()))
def test_every_name_that_is_listed_gives_figures_that_can_be_drawn(name: str) -> None:
    found = figures(name, Choice(seeds=1))
    assert found
    for one in found:
        assert one.kind in plots.KINDS
        assert one.specs
        assert one.title
        assert one.name == name or one.name.startswith(f"{name}-")
        assert re.fullmatch(r"[\w.-]+", one.name)


def test_all_is_every_figure_of_the_paper_and_ours_under_different_names() -> None:
    names = [one.name for one in figures("all", Choice())]
    assert len(names) == len(set(names))
    assert {f"{task}-{setting}" for task in PAPER_TASKS for setting in SETTINGS} <= set(names)
    assert {name for name in PLAIN if name != "toy"} <= set(names)


REGRESSIONS = [name for name, task in TASKS.items() if task.spec("sgd").model is None]


@pytest.mark.parametrize("name", REGRESSIONS)
def test_a_task_is_both_its_settings_or_the_one_that_was_chosen(name: str) -> None:
    assert [one.name for one in figures(name, Choice())] == [f"{name}-{setting}" for setting in SETTINGS]
    (one,) = figures(name, Choice(setting="homogeneous", seeds=3, first_seed=4))
    assert one.name == f"{name}-homogeneous"
    assert {spec.partition for spec in one.specs} == {"homogeneous"}
    assert {spec.seed for spec in one.specs} == {4, 5, 6}
    assert {spec.algorithm for spec in one.specs} == set(ALGORITHMS)
    assert len(one.specs) == 36


def test_the_network_figures_are_drawn_from_the_tables_runs() -> None:
    for setting, table in (("heterogeneous", 1), ("homogeneous", 3)):
        (one,) = figures("mnist-nn", Choice(setting=setting))
        assert one.kind == "training"
        assert list(one.specs) == [cell.spec(0) for cell in paper.cells(table, ["mnist-nn"])]


def test_the_figure_of_another_network_leaves_ps_out() -> None:
    (one,) = figures("text-lm-homogeneous", Choice())
    assert one.kind == "curves"
    assert [spec.algorithm for spec in one.specs] == [name for name in ALGORITHMS if not name.endswith("-ps")]


def test_total_time_is_drawn_of_sgd_the_worker_rules_and_local_sgd_with_three_periods() -> None:
    (one,) = figures("tiny-imagenet-homogeneous", Choice(seeds=2))
    assert (one.kind, one.network is not None and one.network.shared) == ("timed", True)
    names = [
        (spec.algorithm, spec.H if spec.algorithm == "local-sgd" else None) for spec in one.specs if spec.seed == 0
    ]
    local = [("local-sgd", H) for H in (2, 4, 6)]
    assert names == [("sgd", None), ("lasg-wk1", None), ("lasg-wk2", None), *local]
    # All are evaluated after the same numbers of iterations, and end after the same number.
    for spec in one.specs:
        H = spec.H if spec.algorithm == "local-sgd" else 1
        assert isinstance(spec.evaluate, int)
        assert (H * spec.evaluate, spec.iterations % H) == (24, 0)


def test_figures_of_one_task_share_their_runs() -> None:
    """What `curves` and `networks` of a task are drawn from is run once."""
    curves = {spec.digest for one in figures("mnist-lr-heterogeneous", Choice()) for spec in one.specs}
    networks = {spec.digest for one in figures("networks", Choice()) for spec in one.specs}
    assert networks == curves


def test_the_choice_of_task_setting_and_workers_reaches_the_runs() -> None:
    (one,) = figures("sides", Choice(task="digits", setting="homogeneous", workers=(0, 9), first_seed=3))
    assert [spec.algorithm for spec in one.specs] == list(LAZY)
    assert {(spec.task, spec.partition, spec.watched, spec.seed) for spec in one.specs} == {
        ("digits", "homogeneous", (0, 9), 3)
    }
    with pytest.raises(LasgError, match="workers"):
        figures("sides", Choice(task="digits", workers=(0, 10)))


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("rastr", "raster"),
        ("side", "sides"),
        ("network", "networks"),
        ("digist", "digits"),
        ("mnist-rl", "mnist-lr"),
        ("digits-homogenous", "digits-homogeneous"),
        ("covtype-lr-hetero", "covtype-lr-heterogeneous"),
        ("stalenes", "staleness"),
    ],
)
def test_an_unknown_name_comes_with_the_one_that_was_meant(name: str, meant: str) -> None:
    with pytest.raises(LasgError, match=re.escape(f"unknown figure {name!r}. Did you mean {meant}?")) as caught:
        figures(name, Choice())
    assert "\n" not in str(caught.value)


def test_a_name_like_nothing_is_answered_with_what_there_is() -> None:
    with pytest.raises(LasgError) as caught:
        figures("xyz", Choice())
    message = str(caught.value)
    assert "Did you mean" not in message
    assert all(name in message for name in (*PLAIN, *TASKS, "all"))


@pytest.mark.parametrize("name", ["raster", "staleness", "sides", "trials", "networks", "toy", "gradients"])
def test_a_task_that_a_figure_cannot_be_drawn_for_is_refused(name: str) -> None:
    with pytest.raises(LasgError, match="nonsense"):
        figures(name, Choice(task="nonsense"))


@pytest.mark.parametrize("name", [*PLAIN, "digits"])
def test_a_setting_that_does_not_exist_is_refused(name: str) -> None:
    with pytest.raises(LasgError, match="mixed"):
        figures(name, Choice(setting="mixed"))


def test_a_name_with_a_setting_and_another_setting_contradict_each_other() -> None:
    with pytest.raises(LasgError, match="setting"):
        figures("digits-homogeneous", Choice(setting="heterogeneous"))


@pytest.mark.parametrize("path", ["my.libsvm", "folder/my.libsvm", "/tmp/my.libsvm", "../my.libsvm"])
def test_the_figure_of_a_file_has_a_name_that_stays_in_its_folder(path: str) -> None:
    for one in figures(f"libsvm:{path}", Choice(seeds=1)):
        assert "/" not in one.name
