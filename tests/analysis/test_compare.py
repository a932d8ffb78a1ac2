"""Comparisons and grid searches say what the stored runs say."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lasg.analysis.compare import Spread, row_at, spent_at, summarise
from lasg.cli.options import parse_grid
from lasg.cli.tune import points, rank
from lasg.core.ledger import COUNTS
from lasg.errors import LasgError
from lasg.report import formatting
from lasg.report.verdict import why_no_savings
from lasg.runs.store import Run
from tests.runs.samples import made_up, small

Rows = Sequence[tuple[int, int, float]]


def runs_of(folder: Path, algorithm: str, *seeds: Rows, status: Sequence[str] = ()) -> list[Run]:
    """Store one made-up run a seed."""
    return [
        made_up(folder / f"{algorithm}-{i}", small(algorithm, seed=i), rows, status[i] if status else "done")
        for i, rows in enumerate(seeds)
    ]


def reaching(uploads: int, bits: int) -> Rows:
    """Return evaluations that reach loss 0.5 with so many uploads and bits, and go on."""
    return [(0, 0, 1.0), (uploads, bits, 0.5), (uploads * 9, bits * 9, 0.2)]


def test_savings_are_the_ratio_of_means(tmp_path: Path) -> None:
    runs = [
        *runs_of(tmp_path, "sgd", reaching(100, 4000), reaching(300, 8000)),
        *runs_of(tmp_path, "qsgd", reaching(10, 100), reaching(90, 500)),
    ]
    baseline, other = summarise(runs, 0.5)
    assert (baseline.fewer_uploads, baseline.fewer_bits) == (1, 1)
    assert (other.fewer_uploads, other.fewer_bits) == (200 / 50, 6000 / 300)
    assert other.counts["uploads"].mean == 50
    assert other.counts["uploads"].std == pytest.approx(80 / 2**0.5)


def test_a_loss_that_one_seed_misses_is_not_reached(tmp_path: Path) -> None:
    runs = [
        *runs_of(tmp_path, "sgd", reaching(100, 4000), reaching(300, 8000)),
        *runs_of(tmp_path, "qsgd", reaching(10, 100), [(0, 0, 1.0), (5, 5, 0.51)]),
    ]
    other = summarise(runs, 0.5)[1]
    assert (other.reached, other.seeds, other.complete) == (1, 2, False)
    assert (other.counts, other.fewer_uploads, other.fewer_bits) == ({}, None, None)
    assert other.to_dict()["uploads"] is None


def test_a_loss_that_no_seed_reaches_is_not_reached(tmp_path: Path) -> None:
    summary = summarise(runs_of(tmp_path, "qsgd", [(0, 0, 1.0)], [(0, 0, 1.0)]), 0.5)[0]
    assert (summary.reached, summary.complete, summary.to_dict()["bits_up"]) == (0, False, None)


def test_nothing_is_saved_against_a_baseline_that_does_not_get_there(tmp_path: Path) -> None:
    runs = [*runs_of(tmp_path, "sgd", [(0, 0, 1.0)]), *runs_of(tmp_path, "qsgd", reaching(10, 100))]
    assert summarise(runs, 0.5)[1].fewer_uploads is None
    assert summarise(runs_of(tmp_path, "qsgd", reaching(10, 100)), 0.5)[0].fewer_uploads is None


def test_without_a_target_the_end_of_the_run_counts(tmp_path: Path) -> None:
    summary = summarise(runs_of(tmp_path, "sgd", reaching(10, 100)), None)[0]
    assert summary.counts["uploads"].mean == 90
    assert summary.loss == Spread(0.2, 0.0)


def test_without_a_target_savings_are_at_a_loss_that_all_reached(tmp_path: Path) -> None:
    """At the end 90 uploads stand against 4, but at losses of 0.1 and 0.3."""
    further: Rows = [(0, 0, 1.0), (10, 1000, 0.5), (20, 2000, 0.3), (90, 9000, 0.1)]
    runs = [*runs_of(tmp_path, "sgd", further), *runs_of(tmp_path, "lasg-wk2", [(0, 0, 1.0), (4, 400, 0.3)])]
    baseline, other = summarise(runs, None)
    assert (baseline.counts["uploads"].mean, other.counts["uploads"].mean) == (90, 4)
    assert (baseline.loss.mean, other.loss.mean) == (0.1, 0.3)
    assert (baseline.savings_loss, other.savings_loss) == (0.3, 0.3)
    assert (other.fewer_uploads, other.fewer_bits) == (20 / 4, 2000 / 400)


def test_counts_at_a_loss_are_interpolated_between_the_evaluations_around_it(tmp_path: Path) -> None:
    (run,) = runs_of(tmp_path, "sgd", [(0, 0, 1.0), (10, 1000, 0.5), (50, 7000, 0.25)])
    found = spent_at(run, 0.4, None)
    assert found is not None
    assert found["uploads"] == pytest.approx(10 + 0.4 * 40)
    assert found["bits_up"] == pytest.approx(1000 + 0.4 * 6000)
    assert spent_at(run, 0.2, None) is None
    for target, uploads in ((2.0, 0), (0.5, 10), (0.25, 50), (None, 50)):
        found = spent_at(run, target, None)
        assert found is not None
        assert found["uploads"] == uploads


def test_a_run_that_was_to_stop_at_a_loss_spent_what_it_spent(tmp_path: Path) -> None:
    run = made_up(tmp_path / "run", small("sgd", until={"loss": 0.4}), [(0, 0, 1.0), (10, 1000, 0.5), (50, 7000, 0.25)])
    found = spent_at(run, 0.4, None)
    assert found is not None
    assert found["uploads"] == 50


def test_who_is_far_above_sgd_is_told_to_have_no_savings(tmp_path: Path) -> None:
    low: Rows = [(0, 0, 1.0), (8, 800, 0.1)]
    runs = [
        *runs_of(tmp_path, "sgd", low),
        *runs_of(tmp_path, "qsgd", low),
        *runs_of(tmp_path, "lag-wk", [(0, 0, 1.0), (1, 100, 0.9)]),
    ]
    rows = summarise(runs, None)
    assert [row.fewer_uploads for row in rows] == [1, 1, None]
    assert [row.remark for row in rows] == ["", "", "no savings, since not every seed reached loss 0.1"]


def test_a_loss_that_rose_again_is_told(tmp_path: Path) -> None:
    low: Rows = [(0, 0, 1.0), (8, 800, 0.1)]
    runs = [*runs_of(tmp_path, "sgd", low), *runs_of(tmp_path, "lasg-wk2", [(0, 0, 1.0), (2, 200, 0.1), (4, 400, 0.3)])]
    sgd, lazy = summarise(runs, None)
    assert not sgd.remark
    assert lazy.remark == "reached loss 0.1, then rose to 0.3 by the end: a smaller step or c may keep it down"


@pytest.mark.parametrize(
    ("algorithms", "status", "reason"),
    [
        (["sgd", "qsgd"], "done", ""),
        (["qsgd", "lag-wk"], "done", "not among the algorithms"),
        (["sgd", "qsgd"], "diverged", "which diverged"),
    ],
)
def test_why_there_are_no_savings_is_told(tmp_path: Path, algorithms: list[str], status: str, reason: str) -> None:
    first, second = algorithms
    rows: Rows = [(0, 0, 1.0), (8, 800, 0.1)]
    found = summarise([*runs_of(tmp_path, first, rows, status=[status]), *runs_of(tmp_path, second, rows)], None)
    assert reason in why_no_savings(found)
    assert bool(reason) == bool(why_no_savings(found))


def test_a_loss_that_nobody_got_below_gives_no_savings_and_says_so(tmp_path: Path) -> None:
    runs = [*runs_of(tmp_path, "sgd", reaching(1, 1)), *runs_of(tmp_path, "qsgd", [(0, 0, 1.0), (9, 9, 1.5)])]
    found = summarise(runs, None)
    assert [row.fewer_uploads for row in found] == [None, None]
    assert why_no_savings(found) == "loss 1, the lowest that all reached, was there before the first upload"
    assert [row.remark for row in found] == ["", ""]


def test_a_diverged_seed_shows_as_diverged_and_has_no_loss(tmp_path: Path) -> None:
    runs = runs_of(tmp_path, "sgd", reaching(1, 1), reaching(1, 1), status=["done", "diverged"])
    summary = summarise(runs, None)[0]
    assert (summary.diverged, summary.complete, summary.counts) == (1, False, {})
    assert summary.to_dict()["loss"] is None


def test_the_first_evaluation_at_the_target_counts(tmp_path: Path) -> None:
    run = runs_of(tmp_path, "sgd", [(0, 0, 1.0), (5, 5, 0.5), (6, 6, 0.7), (7, 7, 0.4)])[0]
    assert [row_at(run, target) for target in (1.0, 0.6, 0.45, 0.1, None)] == [0, 1, 3, None, 3]


def test_a_summary_as_json_has_every_count_and_its_spread(tmp_path: Path) -> None:
    values = summarise(runs_of(tmp_path, "sgd", reaching(10, 100)), 0.5)[0].to_dict()
    for name in COUNTS:
        assert values[name] is not None
        assert values[f"{name}_spread"] == 0
    assert values["algorithm"] == "sgd"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (950, "950"),
        (9999, "9999"),
        (12_345, "12.3k"),
        (999_999, "1.00M"),
        (4_560_000, "4.56M"),
        (3e9, "3.00G"),
    ],
)
def test_counts_are_written_in_four_digits(value: float, text: str) -> None:
    assert formatting.short(value) == text


@pytest.mark.parametrize(("value", "text"), [(None, "-"), (1.0, "1.0x"), (4.26, "4.3x"), (41.4, "41x"), (9.96, "10x")])
def test_savings_are_written_in_two_digits(value: float | None, text: str) -> None:
    assert formatting.factor(value) == text


# -- tune ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "grid"),
    [
        (["eta=0.1,0.2,c=0.1,1,H=5"], {"eta": [0.1, 0.2], "c": [0.1, 1], "H": [5]}),
        (["eta=0.1", "c=1,2"], {"eta": [0.1], "c": [1, 2]}),
        ([" eta = 0.1 , 0.2 "], {"eta": [0.1, 0.2]}),
        (["partition=homogeneous,sorted"], {"partition": ["homogeneous", "sorted"]}),
    ],
)
def test_a_grid_is_names_with_values(texts: list[str], grid: dict[str, list[Any]]) -> None:
    assert parse_grid(texts) == grid


@pytest.mark.parametrize("texts", [["0.1,0.2"], ["eta"], ["eta="], ["eta=0.1,,0.2"], ["=3"], ["eta=1,eta=2"], [""], []])
def test_a_grid_that_makes_no_sense_shows_how_to_write_one(texts: list[str]) -> None:
    with pytest.raises(LasgError, match="--grid eta="):
        parse_grid(texts)


def test_every_combination_is_tried_with_every_seed() -> None:
    found = points(small("sgd"), {"eta": [0.1, 0.2], "D": [1, 2, 3]}, range(4, 6))
    assert [values for values, _ in found] == [{"eta": e, "D": d} for e in (0.1, 0.2) for d in (1, 2, 3)]
    for values, specs in found:
        assert [(s.seed, s.eta, s.D) for s in specs] == [(seed, values["eta"], values["D"]) for seed in (4, 5)]


@pytest.mark.parametrize("key", ["seed", "nonsense"])
def test_a_grid_over_what_is_no_setting_is_refused(key: str) -> None:
    with pytest.raises(LasgError, match=key):
        points(small("sgd"), {key: [1, 2]}, range(2))


def tried(folder: Path, **found: tuple[Rows, str]) -> list[tuple[dict[str, Any], list[Run]]]:
    return [
        ({"name": name}, runs_of(folder / name, "sgd", rows, status=[status])) for name, (rows, status) in found.items()
    ]


def test_the_best_point_is_first_and_diverged_points_are_last(tmp_path: Path) -> None:
    low: Rows = [(0, 0, 1.0), (9, 9, 0.1)]
    high: Rows = [(0, 0, 1.0), (1, 1, 0.9)]
    found = rank(tried(tmp_path, bad=(low, "diverged"), high=(high, "done"), low=(low, "done")), None)
    assert [point.values["name"] for point in found] == ["low", "high", "bad"]


def test_with_a_target_the_fewest_uploads_win_then_the_lowest_loss(tmp_path: Path) -> None:
    missed: Rows = [(0, 0, 1.0), (1, 1, 0.6)]
    worse: Rows = [(0, 0, 1.0), (1, 1, 0.9)]
    points_ = tried(
        tmp_path,
        worse=(worse, "done"),
        bad=(reaching(1, 1), "diverged"),
        missed=(missed, "done"),
        many=(reaching(50, 1), "done"),
        few=(reaching(5, 100), "done"),
    )
    assert [point.values["name"] for point in rank(points_, 0.5)] == ["few", "many", "missed", "worse", "bad"]
