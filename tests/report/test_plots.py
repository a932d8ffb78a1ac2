"""Pictures are drawn from stored runs."""

from pathlib import Path

import pytest

from lasg.analysis.series import series
from lasg.core.algorithms import ALGORITHMS
from lasg.errors import LasgError
from lasg.report import plots
from lasg.report.curves import mean_curve
from lasg.report.style import style
from tests.runs.samples import made_up, small

PNG = b"\x89PNG\r\n\x1a\n"


def test_a_comparison_of_all_algorithms_is_a_picture(tmp_path: Path) -> None:
    rows = [(0, 0, 1.0), (10, 100, 0.5), (100, 1000, 0.1)]
    runs = [
        made_up(tmp_path / f"{name}-{seed}", small(name, seed=seed), rows) for name in ALGORITHMS for seed in (0, 1)
    ]
    path = tmp_path / "new" / "plot.png"
    plots.comparison(runs, path, "a title with [brackets] and $")
    assert path.read_bytes().startswith(PNG)


def test_curves_are_means_over_seeds_at_common_rounds(tmp_path: Path) -> None:
    runs = [
        made_up(tmp_path / "0", small("sgd", seed=0), [(0, 0, 1.0), (10, 100, 0.4), (20, 200, 0.2)]),
        made_up(tmp_path / "1", small("sgd", seed=1), [(0, 0, 1.0), (30, 300, 0.8)]),
    ]
    (one,) = series(runs)
    curve = mean_curve(one, "uploads")
    assert curve.x.tolist() == [0, 20]
    assert curve.y.tolist() == [1, pytest.approx(0.6)]
    assert curve.spread.tolist() == [0, pytest.approx(0.08**0.5)]


def test_every_algorithm_looks_different() -> None:
    assert len({style(name) for name in [*ALGORITHMS, "wk2+qsgd8+H4"]}) == len(ALGORITHMS) + 1


@pytest.mark.parametrize("name", ["plot.nonsense", "file/plot.png"])
def test_a_plot_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    run = made_up(tmp_path / "run", small("sgd"), [(0, 0, 1.0), (10, 100, 0.5)])
    with pytest.raises(LasgError, match=name):
        plots.comparison([run], tmp_path / name, "title")
    assert not (tmp_path / "plot.nonsense").exists()


def test_runs_that_diverged_at_once_do_not_stop_the_picture(tmp_path: Path) -> None:
    runs = [
        made_up(tmp_path / "0", small("sgd"), [(0, 0, 1.0), (10, 100, 0.5)]),
        made_up(tmp_path / "1", small("qsgd"), [(0, 0, 1.0)], status="diverged"),
    ]
    plots.comparison(runs, tmp_path / "plot.png", "title")
    assert (tmp_path / "plot.png").read_bytes().startswith(PNG)
