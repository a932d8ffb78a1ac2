"""Runs can be found: which there are, how far each is, and how to go on with those that were stopped."""

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest

from lasg.runs import runner, store
from lasg.runs.files import LOCK
from lasg.runs.spec import Spec
from lasg.runs.status import Status
from lasg.runs.tasks import task

from .conftest import Lasg, said


def spec(algorithm: str = "sgd", iterations: int = 20, **changes: Any) -> Spec:
    return task("breast-cancer").spec(algorithm, iterations=iterations, evaluate=5, **changes)


def stop(out: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Store a run that was stopped after some rounds, with a checkpoint."""
    monkeypatch.setattr(runner, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(runner, "REPORT_SECONDS", 0.0)

    def report(status: Status) -> None:
        if status.ledger.rounds >= 12:
            raise KeyboardInterrupt

    folder = runner.folder_for(spec(seed=seed), out)
    with pytest.raises(KeyboardInterrupt):
        runner.run(spec(seed=seed), folder, report=report)
    return folder


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    out = Path("runs")
    done = runner.run(spec("lasg-wk2"), runner.folder_for(spec("lasg-wk2"), out)).folder
    return {"done": done, "unfinished": stop(out, 3, monkeypatch)}


def test_list_runs_says_what_is_stored_and_how_far_it_is(lasg: Lasg, stored: dict[str, Path]) -> None:
    rows = {row["run"]: row for row in json.loads(lasg("list", "runs", "--json").out)}
    assert set(rows) == {str(folder) for folder in stored.values()}
    done, unfinished = rows[str(stored["done"])], rows[str(stored["unfinished"])]
    trace = store.read(stored["done"]).trace
    assert (done["task"], done["algorithm"], done["seed"], done["status"]) == ("breast-cancer", "lasg-wk2", 0, "done")
    assert (done["iterations"], done["loss"]) == (20, trace["loss"][-1])
    assert done["uploads"] == trace["uploads"][-1]
    assert (unfinished["status"], unfinished["seed"], unfinished["iterations"]) == ("unfinished", 3, 10)
    printed = lasg("list", "runs").out
    for row in rows.values():
        assert row["run"] in printed
        assert f"{row['loss']:.4g}" in printed
    assert lasg("list", "runs", stored["done"]).out.count("lasg-wk2") >= 1


def test_a_run_that_a_process_is_at_is_running_and_not_offered(lasg: Lasg, stored: dict[str, Path]) -> None:
    handle = os.open(stored["unfinished"] / LOCK, os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        rows = json.loads(lasg("list", "runs", "--json").out)
        assert sorted(row["status"] for row in rows) == ["done", "running"]
        assert lasg("resume").code == 0
    finally:
        os.close(handle)


def test_damaged_and_foreign_folders_are_skipped_with_a_line(lasg: Lasg, stored: dict[str, Path]) -> None:
    (stored["done"] / store.META).write_text("{")
    for name in ("photos", "notes"):
        Path("runs", name).mkdir()
    Path("runs/report.html").touch()
    done = lasg("list", "runs")
    assert done.code == 0
    assert str(stored["unfinished"]) in done.out
    damaged, foreign = done.err.splitlines()
    assert damaged.startswith(f"skipped {stored['done']}: cannot read")
    assert foreign == "skipped in runs, which are no runs: notes, photos"


def test_without_runs_it_says_where_they_would_be(lasg: Lasg) -> None:
    assert "No runs are stored here" in lasg("list", "runs").out
    assert json.loads(lasg("list", "runs", "--json").out) == []
    assert "is not a folder" in said(lasg("list", "runs", "nowhere"))


def test_resume_without_a_run_offers_the_unfinished_ones_and_touches_none(lasg: Lasg, stored: dict[str, Path]) -> None:
    done = lasg("resume")
    assert done.code == 2
    command = f"lasg resume {stored['unfinished']}"
    assert command in [line.strip() for line in done.out.splitlines()]
    assert str(stored["done"]) not in done.out
    assert store.read(stored["unfinished"]).status == "running"
    (offered,) = json.loads(lasg("resume", "--json").out)
    assert offered["command"] == command
    assert lasg(*command.split()[1:]).code == 0
    again = lasg("resume")
    assert again.code == 0
    assert "Nothing to resume" in again.out
    assert "Nothing to resume: no unfinished run in elsewhere" in lasg("resume", "--out", "elsewhere").out


def test_a_damaged_checkpoint_is_a_line_and_hides_no_other_run(lasg: Lasg, stored: dict[str, Path]) -> None:
    (stored["unfinished"] / store.CHECKPOINT).write_bytes(b"nonsense")
    done = lasg("list", "runs")
    assert str(stored["done"]) in done.out
    assert "cannot read" in done.err
