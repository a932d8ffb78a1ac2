"""What a run leaves behind and says: its folder, its last line, and its one line when the model fails everywhere."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'lasg[flower]'")
pytest.importorskip("sklearn", reason="the data is scikit-learn's")

from rich.console import Console
from torch import nn

import lasg
from lasg import ModuleProblem, trackers
from lasg.cli import watch
from lasg.core.robust import as_bound
from lasg.errors import LasgError
from lasg.flower import Settings, client_app, storage
from lasg.report.page import build
from lasg.runs import progress
from tests.flower.networks import WORKERS, digits, federated, measure, problem, shards


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return all that server and nodes log."""
    found: list[str] = []

    def log(_: int, text: str, *values: Any, **__: Any) -> None:
        found.append(text % values)

    monkeypatch.setattr("lasg.flower.apps.log", log)
    return found


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_second_run_gets_a_folder_of_its_own_and_says_so(tmp_path: Path, lines: list[str]) -> None:
    out = tmp_path / "federation"
    federated(out, rounds=2)
    before = contents(out)
    federated(out, rounds=1, eta=0.1)
    federated(out, rounds=1, eta=0.3)
    assert contents(out) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["federation", "federation-2", "federation-3"]
    told = [line for line in lines if "has a run in it" in line]
    assert [line.partition("this one goes to ")[2].split()[0] for line in told] == [f"{out}-2", f"{out}-3"]


def test_to_resume_is_to_go_on_with_the_last_run(tmp_path: Path, lines: list[str]) -> None:
    out = tmp_path / "federation"
    federated(out, rounds=2)
    federated(out, rounds=1)
    before = contents(out)
    federated(out, rounds=3, resume=True)
    assert contents(out) == before
    assert f"lasg: going on at round 1 of {out}-2" in lines
    assert len(storage.RoundLog(tmp_path / "federation-2" / "trace.csv").lines()) == 3


def test_a_folder_without_a_round_in_it_is_used_and_resuming_there_is_said_to_begin(
    tmp_path: Path, lines: list[str]
) -> None:
    (tmp_path / "trace.csv").write_text("round\n")  # of a run that nobody came to
    run = federated(tmp_path, rounds=1, resume=True)
    assert run.server.k == 1
    assert any("no checkpoint" in line and "begins at round 0" in line for line in lines)
    assert (tmp_path / "model.safetensors").exists()


def test_a_run_ends_with_a_line_of_model_uploads_saved_and_bytes(tmp_path: Path, lines: list[str]) -> None:
    run = federated(tmp_path, rule="wk2", c=0.5, rounds=10)
    possible = 10 * WORKERS
    saved = possible - run.ledger.uploads
    assert saved > 0
    expected = f"lasg: done: {tmp_path / 'model.safetensors'}, 10 rounds, {saved} of {possible} uploads saved"
    assert lines[-1].startswith(expected)
    assert re.search(r"\d\.\d\d MB up, \d\.\d\d MB down$", lines[-1])


def wrong_shape(_: Any, worker: int) -> ModuleProblem:
    """Fail where the problem is made: the module does not take the data."""
    return ModuleProblem(nn.Linear(3, 2), nn.functional.cross_entropy, digits(), [shards()[worker]], batch=0.1)


def fails_in_training(_: Any, worker: int) -> ModuleProblem:
    """Fail in the first round: in evaluation mode, which is tried first, the module works."""
    found = problem([shards()[worker]], ids=[worker])

    def refuse(module: nn.Module, _: Any) -> None:
        if module.training:
            raise RuntimeError("no kernel for this\nand a second line")

    found.module.register_forward_pre_hook(refuse)
    return found


def missing_file(_: Any, worker: int) -> ModuleProblem:
    raise FileNotFoundError(2, "No such file or directory", f"/data/part-{worker // 9}.npz")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (wrong_shape, "mat1 and mat2"),
        (fails_in_training, "worker 0: RuntimeError: no kernel for this"),
        (missing_file, "FileNotFoundError: .*/data/part-0.npz"),
    ],
)
def test_a_model_or_data_that_fails_on_every_node_ends_the_run_with_one_line(
    make: Callable[[Any, int], Any], said: str, tmp_path: Path, lines: list[str]
) -> None:
    with pytest.raises(LasgError, match=rf"every node failed 3 times in a row.*{said}") as error:
        federated(tmp_path, client=client_app(make), wait=300.0)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300
    assert len(lines) <= 5 * WORKERS  # per node: here, the error, the first and the second in a row; two rounds
    assert not storage.has_run(tmp_path)


def test_what_a_user_gets_without_choosing_is_the_plain_method_in_eight_bits_bounded() -> None:
    settings = Settings.from_config({"workers": 2})
    assert (settings.rule, settings.codec) == ("always", "qsgd8:512")
    assert settings.stages.robust == as_bound("median-clip3")


def test_a_federations_folder_is_a_stored_run_that_is_read_listed_and_reported(tmp_path: Path) -> None:
    run = federated(tmp_path / "federation", rule="wk2", c=0.5, rounds=6)
    stored = lasg.read(tmp_path / "federation")
    assert (stored.status, stored.meta["engine"]) == ("done", "flower")
    assert stored.spec.algorithm == "wk2+H5"
    assert stored.uploads.sum() == run.ledger.uploads
    assert stored.trace["rounds"].tolist() == [1, 2, 3, 4, 5, 6]
    assert stored.trace["bits_up"][-1] == run.ledger.bits_up
    page = build([stored])
    assert "federation" in page
    assert f"{run.ledger.uploads} uploads" in page


def test_without_a_measure_the_run_is_stored_and_the_report_says_what_is_missing(tmp_path: Path) -> None:
    federated(tmp_path, rounds=2, measured=False)
    stored = lasg.read(tmp_path)
    assert stored.status == "done"
    with pytest.raises(LasgError, match="its server measured nothing"):
        build([stored])


def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path: Path, lines: list[str]) -> None:
    federated(tmp_path, rounds=3)
    (tmp_path / "checkpoint.safetensors").write_bytes(b"not a checkpoint")
    run = federated(tmp_path, rounds=4, resume=True)
    assert run.server.k == 4
    assert f"lasg: going on at round 2 of {tmp_path}" in lines


def test_what_track_names_gets_every_round_also_those_before_a_resume(tmp_path: Path, lines: list[str]) -> None:
    out, log = tmp_path / "federation", tmp_path / "log.csv"
    federated(out, rule="wk2", c=0.5, rounds=3, track=f"csv={log}")
    run = federated(out, rule="wk2", c=0.5, rounds=6, resume=True, track=f"csv={log}, csv={tmp_path / 'second.csv'}")
    with log.open(newline="") as file:
        found = list(csv.DictReader(file))
    trace = list(csv.DictReader((out / "trace.csv").read_text().splitlines()))
    assert [int(row["step"]) for row in found] == [1, 2, 3, 4, 5, 6]
    assert [int(float(row["uploads"])) for row in found] == [int(line["uploads_so_far"]) for line in trace]
    assert [float(row["bytes_up"]) for row in found] == [float(line["bytes_up"]) for line in trace]
    assert [WORKERS - float(row["silent"]) for row in found] == [float(line["uploads"]) for line in trace]
    assert all(float(row["seconds_per_round"]) >= 0 and row["threshold"] for row in found)
    assert float(found[-1]["uploads_saved"]) == 1 - run.ledger.uploads / (6 * WORKERS)
    assert (tmp_path / "second.csv").read_text() == log.read_text()
    assert not [line for line in lines if "tracker" in line]


def test_a_tracker_that_fails_is_named_once_and_the_federation_goes_on(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError("the tracker's server is gone")

    monkeypatch.setattr(trackers.CsvRun, "log", fail)
    run = federated(tmp_path / "federation", rounds=2, track=f"csv={tmp_path / 'log.csv'}")
    assert run.server.k == 2
    assert [line for line in lines if "the tracker csv failed" in line] == [
        "lasg: the tracker csv failed, and gets nothing more: the tracker's server is gone"
    ]
    with pytest.raises(LasgError, match="unknown tracker 'wandbb'"):
        federated(tmp_path / "other", rounds=1, track="wandbb")


def test_watch_shows_a_federations_members_and_who_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def look(model: nn.Module) -> tuple[float, float]:
        if (tmp_path / "meta.json").exists():
            console = Console(width=120, file=io.StringIO())
            console.print(watch.frame(progress.read(tmp_path)))
            seen.append(console.file.getvalue())  # type: ignore[attr-defined]
        return measure(model)

    def make(_: Any, worker: int) -> ModuleProblem:
        if worker == 1 and seen:
            raise ConnectionError("gone")
        return problem([shards()[worker]], ids=[worker])

    monkeypatch.setattr("tests.flower.networks.measure", look)
    federated(tmp_path, client=client_app(make), rounds=5)
    assert "running (flower)" in seen[0]
    assert "no answer" not in seen[0]
    rows = [line for line in seen[-1].splitlines() if "●" in line]
    assert len(rows) == WORKERS
    assert [row.split()[0] for row in rows] == [str(m) for m in range(WORKERS)]
    assert [row.partition("no answer for ")[2] for row in rows if "no answer" in row] == ["2 rounds"]
    assert "no answer" in rows[1]
