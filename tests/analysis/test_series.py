"""Runs are grouped by their settings, called by what tells them apart, and mixed only where their losses compare."""

import random
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lasg.analysis.series import PROBLEM, check_one_problem, series
from lasg.core.algorithms import ALGORITHMS
from lasg.errors import LasgError
from lasg.report.style import sort_series
from lasg.runs.spec import Spec
from lasg.runs.store import Run
from tests.runs.samples import made_up, small


def run_of(spec: Spec, folder: str = "runs", sha: str = "0" * 64, status: str = "done") -> Run:
    """Return a run that was never stored: groups and labels look at spec and meta data only."""
    return Run(Path(folder) / spec.label, spec, {"status": status, "data_sha256": sha})


def labels(*specs: Spec) -> list[str]:
    return [one.label for one in series([run_of(spec) for spec in specs])]


# -- groups --------------------------------------------------------------------------------------------------


def test_the_seeds_of_one_setting_are_one_series() -> None:
    runs = [run_of(small("sgd", seed=seed)) for seed in (4, 0, 2)]
    (one,) = series(runs)
    assert (one.algorithm, one.label, one.diverged) == ("sgd", "sgd", 0)
    assert one.runs == tuple(runs)


def test_groups_and_their_runs_keep_the_order_of_appearance() -> None:
    specs = [small(name, seed=seed) for seed in (1, 0) for name in ("qsgd", "sgd", "lasg-wk2")]
    found = series([run_of(spec) for spec in specs])
    assert [one.algorithm for one in found] == ["qsgd", "sgd", "lasg-wk2"]
    assert [[run.spec.seed for run in one.runs] for one in found] == [[1, 0]] * 3


def test_every_run_is_in_exactly_one_series() -> None:
    runs = [run_of(small(n, seed=s, c=c)) for c in (0.4, 4) for s in (0, 1) for n in ("lasg-wk2", "lag-wk")]
    found = [run for one in series(runs) for run in one.runs]
    assert sorted(run.spec.digest for run in found) == sorted(run.spec.digest for run in runs)


def test_no_runs_are_no_series() -> None:
    assert series([]) == []


def test_a_series_counts_the_seeds_that_diverged() -> None:
    ends = ("done", "diverged", "diverged")
    (one,) = series([run_of(small("sgd", seed=seed), status=end) for seed, end in enumerate(ends)])
    assert one.diverged == 2


def test_a_seed_that_is_there_twice_is_not_two_seeds() -> None:
    runs = [run_of(small("sgd", seed=0), folder) for folder in ("first", "second")]
    try:
        (one,) = series(runs)
    except LasgError:
        return  # to refuse them is as good
    assert len(one.runs) == 1, "a copy of a run makes `mean of 2 seeds` of one, with a spread of 0"


# -- labels --------------------------------------------------------------------------------------------------


def test_a_label_is_the_algorithms_name_alone_where_it_has_one_setting() -> None:
    assert labels(small("sgd", c=0.4), small("lag-wk", c=4), small("local-sgd", H=7)) == ["sgd", "lag-wk", "local-sgd"]


def test_two_settings_of_one_algorithm_are_called_by_what_differs() -> None:
    assert labels(small("lag-wk", c=0.4), small("lag-wk", c=4), small("sgd")) == ["lag-wk c=0.4", "lag-wk c=4", "sgd"]


def test_settings_of_another_algorithm_are_not_in_a_label() -> None:
    found = labels(small("local-sgd", H=4), small("local-sgd", H=8), small("sgd", H=9, eta=0.7))
    assert found == ["local-sgd H=4", "local-sgd H=8", "sgd"]


def test_all_that_differs_is_in_a_label() -> None:
    found = labels(small("lag-wk", c=0.4, D=5), small("lag-wk", c=4, D=5), small("lag-wk", c=4, D=6))
    assert found == ["lag-wk D=5 c=0.4", "lag-wk D=5 c=4", "lag-wk D=6 c=4"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            [{"optimizer": "SGD"}, {"optimizer": "SGD", "optimizer_options": {"momentum": 0.9}}],
            ["optimizer_options=-", "optimizer_options=momentum:0.9"],
        ),
        (
            [{"optimizer": "Adam", "optimizer_options": {"betas": betas}} for betas in ([0.9, 0.99], [0.8, 0.99])],
            ["optimizer_options=betas:[0.9, 0.99]", "optimizer_options=betas:[0.8, 0.99]"],
        ),
        ([{}, {"bucket": 512}], ["bucket=-", "bucket=512"]),
        ([{"eta": 1}, {"eta": 1e-5}], ["eta=1", "eta=1e-05"]),
        ([{"evaluate": "geometric"}, {"evaluate": 3}], ["evaluate=geometric", "evaluate=3"]),
        ([{"bits": 4, "evaluate": 4}, {"bits": 6, "evaluate": 3}], ["bits=4", "bits=6"]),
    ],
    ids=str,
)
def test_settings_of_every_kind_are_written_in_a_label(changes: list[dict[str, Any]], expected: list[str]) -> None:
    assert labels(*(small("qsgd", **change) for change in changes)) == [f"qsgd {text}" for text in expected]


def test_a_label_does_not_depend_on_seeds() -> None:
    specs = [small("lag-wk", c=c, seed=seed) for seed in (3, 5) for c in (0.4, 4)]
    assert labels(*specs) == ["lag-wk c=0.4", "lag-wk c=4"]


numbers = st.floats(1e-6, 1e6)


@given(numbers, numbers)
@example(0.1234567, 0.1234568)
def test_two_series_never_share_a_label(one: float, other: float) -> None:
    found = labels(small("sgd", eta=one), small("sgd", eta=other))
    assert len(found) == len(set(found)) == len({one, other})


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("sgd", {"c": 4.0}),
        ("sgd", {"D": 5}),
        ("sgd", {"c_d": 0.5}),
        ("lag-wk", {"start": "zero"}),
        ("lasg-wk2", {"smoothness": "tight"}),
        ("lasg-pse", {"smoothness": "tight"}),
        ("lasg-wk2", {"H": 7, "bits": 2}),
        ("wk2+qsgd8+H4", {"H": 7, "bits": 2, "bucket": 3}),
    ],
    ids=str,
)
def test_settings_that_an_algorithm_does_not_use_make_no_second_series(name: str, change: dict[str, Any]) -> None:
    assert labels(small(name), small(name, seed=1, **change)) == [name]


def test_of_runs_that_differ_in_their_end_alone_the_longest_stands_for_all(tmp_path: Path) -> None:
    short = made_up(tmp_path / "short", small("sgd", until={"loss": 0.5}), [(0, 0, 1.0), (6, 60, 0.5)])
    rows = [(0, 0, 1.0), (6, 60, 0.5), (12, 120, 0.2)]
    long = made_up(tmp_path / "long", small("sgd", until={"loss": 0.2}, watch=[1]), rows)
    for runs in ([short, long], [long, short]):
        (one,) = series(runs)
        assert (one.label, one.runs) == ("sgd", (long,))


def test_a_budget_written_as_1000_and_as_1e3_does_not_give_two_series_of_one_name() -> None:
    found = labels(small("sgd", until={"uploads": 1000}), small("sgd", until={"uploads": 1000.0}, seed=1))
    assert len(found) == len(set(found))


# -- order ---------------------------------------------------------------------------------------------------


def test_series_come_in_the_order_in_which_the_twelve_are_listed() -> None:
    names = list(ALGORITHMS)
    random.Random(1).shuffle(names)
    assert [one.label for one in sort_series(series([run_of(small(name)) for name in names]))] == list(ALGORITHMS)


def test_composed_algorithms_come_last_as_they_appeared() -> None:
    names = ["wk2+qsgd8", "qsgd", "always+H4", "sgd", "lag+dense"]
    found = sort_series(series([run_of(small(name)) for name in names]))
    assert [one.algorithm for one in found] == ["sgd", "qsgd", "wk2+qsgd8", "always+H4", "lag+dense"]


def test_settings_of_one_algorithm_come_by_their_numbers() -> None:
    specs = [small("lag-wk", c=c) for c in (4, 10, 0.4, 1)] + [small("sgd")]
    found = [one.label for one in sort_series(series([run_of(spec) for spec in specs]))]
    assert found == ["sgd", "lag-wk c=0.4", "lag-wk c=1", "lag-wk c=4", "lag-wk c=10"]


# -- one problem ---------------------------------------------------------------------------------------------


def refused(*runs: Run) -> str:
    with pytest.raises(LasgError) as error:
        check_one_problem(runs)
    message = str(error.value)
    assert "\n" not in message
    assert "cannot be compared" in message
    return message


@pytest.mark.parametrize(
    "change",
    [{"seed": 3}, {"eta": 0.7}, {"batch": 0.5}, {"D": 5}, {"dtype": "float64"}, {"until": {"loss": 0.3}}, {"H": 9}],
    ids=str,
)
def test_what_leaves_the_loss_as_it_is_can_be_compared(change: dict[str, Any]) -> None:
    check_one_problem([run_of(small("sgd")), run_of(small("laqsg-pse", **change))])


def test_one_run_is_of_one_problem() -> None:
    check_one_problem([run_of(small("sgd"))])


OTHER: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "task": ({}, {"task": "mine"}, "small and mine"),
    "data": ({}, {"data": "digits"}, "breast-cancer and digits"),
    "label_column": ({"data": "csv:a.csv"}, {"data": "csv:a.csv", "label_column": "b"}, "none and b"),
    "scale": ({"data": "csv:a.csv"}, {"data": "csv:a.csv", "scale": True}, "none and True"),
    "workers": ({}, {"workers": 7}, "6 and 7"),
    "partition": ({}, {"partition": "homogeneous"}, "sorted and homogeneous"),
    "alpha": (
        {"partition": "dirichlet", "alpha": 0.5},
        {"partition": "dirichlet", "alpha": 2.0},
        "0.5 and 2.0",
    ),
    "classes": ({"partition": "classes", "classes": 1}, {"partition": "classes", "classes": 2}, "1 and 2"),
    "sizes": (
        {"partition": "sizes", "sizes": [1, 2, 3, 4, 5, 6]},
        {"partition": "sizes", "sizes": [6, 5, 4, 3, 2, 1]},
        "(1, 2, 3, 4, 5, 6) and (6, 5, 4, 3, 2, 1)",
    ),
    "cut": ({"cut": 2}, {"cut": 3}, "2 and 3"),
    "lam": ({}, {"lam": 0.5}, "1e-05 and 0.5"),
    "model": ({}, {"model": "mlp"}, "none and mlp"),
}


def test_every_part_of_a_problem_is_tested() -> None:
    assert tuple(OTHER) == PROBLEM


@pytest.mark.parametrize("key", OTHER)
def test_runs_of_two_problems_are_refused_with_what_differs(key: str) -> None:
    one, other, shown = OTHER[key]
    message = refused(run_of(small("sgd", **one)), run_of(small("qsgd", **other)))
    assert f"2 different problems ({key}: {shown})" in message


def test_runs_on_two_versions_of_a_data_file_are_refused() -> None:
    message = refused(run_of(small("sgd")), run_of(small("qsgd"), sha="1" * 64))
    assert "the data file" in message
    assert "two versions" in message


def test_three_problems_are_counted_with_their_runs() -> None:
    specs = [small("sgd"), small("qsgd"), small("sgd", task="mine"), small("sgd", partition="homogeneous")]
    message = refused(*map(run_of, specs))
    assert "3 different problems" in message
    assert "2 x small, sorted; 1 x mine, sorted; 1 x small, homogeneous" in message


@pytest.mark.parametrize("first", ["sgd", "lasg-wk2", "laqsg-pse", "local-sgd"])
def test_the_suggested_name_takes_all_runs_of_one_problem_and_none_of_the_other(first: str) -> None:
    names = [first, *(name for name in ALGORITHMS if name != first)]
    mine = [run_of(small(name)) for name in names]
    others = [run_of(small(name, partition="homogeneous")) for name in names]
    pattern = refused(*mine, *others).rpartition("such as ")[2]
    assert all(fnmatch(str(run.folder), pattern) for run in mine), pattern
    assert not any(fnmatch(str(run.folder), pattern) for run in others), pattern
