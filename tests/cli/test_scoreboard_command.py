"""`lasg scoreboard`: what it prints, what it keeps, and one line for every wrong input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lasg.analysis import races, scoreboard
from lasg.report import overview_plot
from tests.analysis.test_scoreboard import EVERYBODY, SMALL
from tests.cli.conftest import Lasg


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(races.RACES, "small", SMALL)


def test_a_race_is_run_shown_again_drawn_and_reported(lasg: Lasg) -> None:
    ran = lasg("scoreboard", "--task", "small", "--seeds", "1", "-j", "1", "--plot", "board.svg")
    assert ran.code == 0, ran.err
    assert all(name in ran.out for name in EVERYBODY)
    assert "to the loss of lasg-wk2 after 50000 bits" in ran.out
    assert "Core hours" in ran.out
    assert Path("board.svg").read_text().count('<g id="line2d') > len(EVERYBODY)
    shown = lasg("scoreboard", "--task", "small", "--show", "--json")
    rows = json.loads(shown.out)["small"]
    assert {row["contender"] for row in rows} == set(EVERYBODY)
    assert [row["reached"] for row in rows] == [1, 1, 1, 0]
    reported = lasg("report", *map(str, Path("runs").glob("*-sgd-seed0-*")), "--scoreboard", "results/scoreboard")
    assert reported.code == 0, reported.err
    page = Path("report.html").read_text()
    assert '<h2 id="scoreboard-head">Scoreboard</h2>' in page
    assert all(f'<th scope="row">{name}' in page for name in EVERYBODY)


def test_a_second_run_adds_what_is_new_and_runs_nothing_again(lasg: Lasg) -> None:
    assert lasg("scoreboard", "--task", "small", "--seeds", "1", "--methods", "sgd", "-j", "1").code == 0
    before = {path: path.stat().st_mtime_ns for path in Path("runs").glob("*/trace.npz")}
    first = Path("results/scoreboard/small.csv").read_text().splitlines()
    again = lasg("scoreboard", "--task", "small", "--seeds", "1", "--methods", "diloco", "-j", "1")
    assert again.code == 0, again.err
    assert "small: not run yet: hardly moves" in again.out
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert set(first) < set(Path("results/scoreboard/small.csv").read_text().splitlines())


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--task", "mnits-nn"], "unknown race 'mnits-nn'. Did you mean"),
        (["--task", "small", "--methods", "sdg"], "'sdg' does not run in small. Did you mean sgd?"),
        (["--task", "small", "--show"], "there are no results of small in results/scoreboard: run lasg scoreboard"),
        (["--task", "small", "--seeds", "0"], "--seeds"),
        (["--task", "small", "--plot", "board.txt"], "its name must end in one of svg, png, pdf"),
    ],
)
def test_wrong_input_gives_one_line_and_exit_2(lasg: Lasg, arguments: list[str], line: str) -> None:
    failed = lasg("scoreboard", *arguments)
    assert failed.code == 2
    assert line in failed.err
    assert failed.err.count("\n") == 1
    assert not Path("runs").exists(), "nothing was run"


def test_results_of_another_version_stop_it_before_anything_runs(lasg: Lasg) -> None:
    assert lasg("scoreboard", "--task", "small", "--seeds", "1", "--methods", "sgd", "-j", "1").code == 0
    path = Path("results/scoreboard/small.csv")
    path.write_text(path.read_text().replace(",0.2.0\n", ",0.1.0\n"))
    failed = lasg("scoreboard", "--task", "small", "--out", "others")
    assert failed.code == 2
    assert "small.csv has rows of lasg 0.1.0 and" in failed.err
    assert not Path("others").exists()


def test_a_report_without_scoreboard_results_is_refused_in_one_line(lasg: Lasg) -> None:
    assert lasg("run", "breast-cancer", "-a", "sgd", "--until", "iterations=20").code == 0
    failed = lasg("report", "runs", "--scoreboard", "nowhere")
    assert failed.code == 2
    assert "nowhere is no folder of scoreboard results" in failed.err


def test_a_picture_of_one_race_shows_every_seed_and_who_did_not_arrive(lasg: Lasg) -> None:
    assert lasg("scoreboard", "--task", "small", "--seeds", "2", "-j", "1").code == 0
    drawn = lasg("scoreboard", "--task", "small", "--show", "--picture", "race.svg")
    assert drawn.code == 0, drawn.err
    rows = scoreboard.read(Path("results/scoreboard/small.csv"))
    figure = overview_plot.figure_of(rows, "lasg-wk2", "small")
    (axes,) = figure.axes
    points = {tuple(np.concatenate(line.get_data()).tolist()) for line in axes.lines}
    assert points == {(float(row["bits_up"]) / 8e6, float(row["loss"])) for row in rows}
    hollow = [line for line in axes.lines if line.get_markerfacecolor() == "white"]
    assert len(hollow) == sum(row["reached"] != "True" for row in rows) > 0
    words = " ".join(text.get_text() for text in axes.texts)
    assert "hardly moves: 0 of 2 arrived" in words
    assert "x fewer bytes than lasg-wk2" in words
    assert Path("race.svg").read_bytes().startswith(b"<?xml")


def test_a_picture_is_of_one_race(lasg: Lasg) -> None:
    refused = lasg("scoreboard", "--task", "all", "--show", "--picture", "race.svg")
    assert refused.code == 2
    assert "--picture draws one race: name it with --task" in refused.err
