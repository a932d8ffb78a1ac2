"""The scoreboard: equal trials on a seed of their own, one target per seed, results that only grow."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import lasg
from lasg.analysis import races, scoreboard
from lasg.analysis.races import RACES, TUNING_SEED, Contender, Race, grid
from lasg.analysis.scoreboard import Results, Row
from lasg.core.algorithms import KNOWN
from lasg.errors import LasgError
from lasg.runs.pool import obtain_all
from lasg.runs.spec import Spec
from lasg.runs.store import Run

STEPS = grid(eta=[2.0, 4.0])
SMALL = Race(
    name="small",
    task="breast-cancer",
    setting="heterogeneous",
    settings={"workers": 4},
    reference="lasg-wk2",
    until={"bits": 5e4},
    limit=400,
    evaluate=10,
    contenders=(
        Contender(name="lasg-wk2", algorithm="lasg-wk2", trials=STEPS),
        Contender(name="sgd", algorithm="sgd", trials=STEPS),
        Contender(name="hardly moves", algorithm="sgd", trials=grid(eta=[1e-6, 1e-7])),
        Contender(name="diloco", algorithm="diloco", trials=grid(eta=[2.0], outer_eta=[0.3, 0.7])),
    ),
)
EVERYBODY = [one.name for one in SMALL.contenders]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, list[tuple[str, Spec]]]:
    """The small race with two seeds, and all that it ran."""
    out = tmp_path_factory.mktemp("runs")
    listed: list[tuple[str, Spec]] = []

    def execute(specs: Sequence[Spec], what: str) -> list[Run]:
        listed.extend((what, spec) for spec in specs)
        return obtain_all(specs, out)

    return scoreboard.run(SMALL, EVERYBODY, 2, execute), listed


def of(results: Results, name: str) -> list[Row]:
    return [row for row in results.rows if row["contender"] == name]


def test_every_contender_has_a_row_per_seed_and_as_many_trials(ran: Any) -> None:
    results, _ = ran
    for name in EVERYBODY:
        assert [row["seed"] for row in of(results, name)] == ["0", "1"]
        assert sum(row["contender"] == name for row in results.trials) == 2


def test_no_reported_seed_is_tuned_on(ran: Any) -> None:
    _, listed = ran
    for what, spec in listed:
        assert (spec.seed == TUNING_SEED) == ("trials" in what), (what, spec.seed)


def test_the_target_of_a_seed_is_the_references_loss_on_it(ran: Any) -> None:
    results, _ = ran
    reference = {row["seed"]: row["loss"] for row in of(results, "lasg-wk2")}
    assert len(set(reference.values())) == 2, "two seeds, two losses"
    assert all(row["target"] == reference[row["seed"]] for row in results.rows)


def test_the_trial_with_the_fewest_bits_to_the_target_is_reported(ran: Any) -> None:
    results, _ = ran
    for name in ("sgd", "diloco"):
        tried = [row for row in results.trials if row["contender"] == name]
        assert all(row["reached"] == "True" for row in tried)
        best = min(tried, key=lambda row: float(row["bits_up"]))
        assert best["best"] == "True"
        assert {**json.loads(of(results, name)[0]["settings"]), **json.loads(best["trial"])} == json.loads(
            of(results, name)[0]["settings"]
        )


def test_who_does_not_arrive_stays_on_the_board_and_comes_last(ran: Any) -> None:
    results, _ = ran
    shown = scoreboard.standings(results.rows)
    assert shown[-1].contender == "hardly moves"
    assert (shown[-1].reached, shown[-1].front) == (0, False)
    assert float(of(results, "hardly moves")[0]["rounds"]) == SMALL.limit, "what was spent by the end"
    assert {one.contender for one in shown if one.arrived} == set(EVERYBODY) - {"hardly moves"}


def test_downloads_are_the_messages_of_the_others_or_the_model(ran: Any) -> None:
    results, _ = ran
    (row, _) = of(results, "sgd")
    assert float(row["bits_down"]) == float(row["bits_up"]), "all upload: the model is less than three messages"
    (row, _) = of(results, "lasg-wk2")
    assert float(row["bits_down"]) <= 3 * float(row["bits_up"])


def test_the_front_is_who_nobody_beats_in_both(ran: Any) -> None:
    results, _ = ran
    arrived = [one for one in scoreboard.standings(results.rows) if one.arrived]
    for one in arrived:
        mine = (one.counts["bits_up"].mean, one.counts["rounds"].mean)
        beaten = any(
            other.counts["bits_up"].mean <= mine[0] and other.counts["rounds"].mean <= mine[1]
            for other in arrived
            if other is not one
        )
        assert one.front == (not beaten), one.contender
    assert any(one.front for one in arrived)


def test_results_are_added_to_and_never_shortened(ran: Any, tmp_path: Path) -> None:
    results, _ = ran
    some = replace(results, rows=[row for row in results.rows if row["contender"] == "sgd"], trials=results.trials[:1])
    scoreboard.write(results, tmp_path)
    before = scoreboard.read(tmp_path / "small.csv")
    scoreboard.write(some, tmp_path)
    assert scoreboard.read(tmp_path / "small.csv") == before
    assert len(scoreboard.read(tmp_path / "small-trials.csv")) == 8


def test_rows_of_another_version_are_refused(ran: Any, tmp_path: Path) -> None:
    results, _ = ran
    old = replace(results, rows=[{**results.rows[0], "seed": "7", "version": "0.1.0"}])
    with pytest.raises(LasgError, match=rf"small\.csv has rows of lasg 0\.1\.0 and {lasg.__version__}"):
        scoreboard.write(old, tmp_path)


@pytest.mark.parametrize("damage", ["", "race,contender\n1,2\n", "\0\0", "cut"])
def test_a_damaged_file_is_refused_in_one_line(ran: Any, tmp_path: Path, damage: str) -> None:
    results, _ = ran
    scoreboard.write(results, tmp_path)
    path = tmp_path / "small.csv"
    path.write_text(path.read_text()[:-40] if damage == "cut" else damage)
    with pytest.raises(LasgError, match=r"small\.csv") as error:
        scoreboard.read(path)
    assert "\n" not in str(error.value)


def test_the_results_are_plain_csv(ran: Any, tmp_path: Path) -> None:
    results, _ = ran
    scoreboard.write(results, tmp_path)
    with (tmp_path / "small.csv").open(newline="") as lines:
        assert list(csv.DictReader(lines)) == list(results.rows)


def test_a_race_whose_contenders_have_different_numbers_of_trials_is_refused() -> None:
    unfair = Contender(name="more", algorithm="sgd", trials=grid(eta=[1.0, 2.0, 3.0]))
    with pytest.raises(LasgError, match="same number of trials"):
        replace(SMALL, contenders=(*SMALL.contenders, unfair))


@pytest.mark.parametrize("name", RACES)
def test_every_trial_of_every_race_is_a_valid_spec(name: str) -> None:
    race = RACES[name]
    race.contender(race.reference)
    for one in race.contenders:
        for trial in one.trials:
            spec = one.spec(race, TUNING_SEED, trial, iterations=race.limit)
            assert spec.algorithm in KNOWN or "+" in spec.algorithm
            assert {**spec.to_dict(), **trial} == spec.to_dict(), "a trial changes what it says"


def test_races_are_found_by_task_and_by_name() -> None:
    assert [race.name for race in races.races("ijcnn1-lr, text-lm")] == [
        *("ijcnn1-lr-homogeneous", "ijcnn1-lr-heterogeneous", "text-lm")
    ]
    assert len(races.races("all")) == len(RACES)
    with pytest.raises(LasgError, match=r"unknown race 'text-ml'. Did you mean"):
        races.races("text-ml")
