"""`--track` on the command line: every command that runs has it, and wrong ones are one line."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import typer.main

from lasg.cli.main import app
from tests.cli.conftest import Lasg

RUNS = ("demo", "run", "resume", "compare", "tune", "pretrain", "figure", "paper", "scoreboard")
SMALL = ("run", "breast-cancer", "-a", "lasg-wk2", "--until", "iterations=20")


@pytest.mark.parametrize("name", RUNS)
def test_every_command_that_runs_takes_track(name: str) -> None:
    commands: Any = typer.main.get_command(app)
    assert "--track" in [option for parameter in commands.commands[name].params for option in parameter.opts]


def test_commands_that_store_runs_are_all_in_that_list() -> None:
    commands: Any = typer.main.get_command(app)
    storing = {
        name
        for name, command in commands.commands.items()
        if {"--csv", "--fresh", "--jobs"} & {option for parameter in command.params for option in parameter.opts}
    }
    assert storing <= set(RUNS)


def test_the_older_options_are_names_of_two_trackers(lasg: Lasg) -> None:
    done = lasg(*SMALL, "--csv", "a.csv", "--track", "csv=b.csv", "--tensorboard", "tb", "--track", "tensorboard=more")
    assert done.code == 0, done.err
    assert Path("a.csv").read_text() == Path("b.csv").read_text()
    with Path("a.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) > 2
    (label,) = (path.name for path in Path("runs").iterdir())
    assert [path.name for path in Path("tb").iterdir()] == [path.name for path in Path("more").iterdir()] == [label]


@pytest.mark.parametrize(
    ("to", "line"),
    [
        ("tensorbord=tb", "unknown tracker 'tensorbord'. Did you mean tensorboard?"),
        ("csv", "the tracker csv needs a place: csv=FILE"),
        ("", "unknown tracker ''"),
        ("csv=.", "cannot write"),
    ],
)
def test_a_wrong_tracker_is_one_line_and_nothing_runs(lasg: Lasg, to: str, line: str) -> None:
    done = lasg(*SMALL, "--track", to)
    assert done.code == 2
    assert line in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not Path("runs").exists()
