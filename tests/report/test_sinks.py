"""What runs write besides their folder, as CSV and for TensorBoard, are the numbers of their traces."""

import contextlib
import csv
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lasg.core.ledger import COUNTS
from lasg.errors import LasgError
from lasg.report.sinks import Csv, Sinks, TensorBoard
from lasg.runs import pool, runner, store
from lasg.runs.runner import resume, run
from lasg.runs.spec import Spec
from lasg.runs.status import Status
from lasg.runs.store import Run
from lasg.trackers import EVENTS
from tests.runs.samples import Stopped, made_up, small, stop_after

SPECS = [
    small("lasg-wk2", evaluate=7),
    small("laqsg-pse", seed=3, evaluate="geometric"),
    small("local-sgd", iterations=50, evaluate=2),
]
Rows = dict[str, list[dict[str, str]]]


def read(path: Path) -> Rows:
    """Return the rows of a CSV file by run, in their order."""
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
    assert tuple(reader.fieldnames or ()) == Csv.COLUMNS
    assert {"loss", "accuracy", "uploads", "bytes_up", "bytes_down"} < set(Csv.COLUMNS)
    assert {"silent", "threshold", "innovation", "seconds_per_round"} < set(Csv.COLUMNS)
    found: Rows = {}
    for row in rows:
        assert None not in row
        assert None not in row.values()
        found.setdefault(row["run"], []).append(row)
    return found


def check_csv(path: Path, runs: Sequence[Run]) -> None:
    """Look that a CSV file has exactly the evaluations of the runs, to the last bit."""
    found = read(path)
    assert set(found) == {one.spec.label for one in runs}
    for one in runs:
        rows, spec = found[one.spec.label], one.spec
        assert len(rows) == len(one.trace["loss"])
        for name in COUNTS:
            assert [int(row[name]) for row in rows] == one.trace[name].tolist()
        for name in ("loss", "accuracy"):
            assert np.array_equal([float(row[name] or "nan") for row in rows], one.trace[name], equal_nan=True)
        for row in rows:
            named = (row["task"], row["partition"], row["algorithm"], row["seed"])
            assert named == (spec.task, spec.partition, spec.algorithm, str(spec.seed))
            sent = (float(row["bytes_up"]), float(row["bytes_down"]))
            assert sent == (int(row["bits_up"]) / 8, int(row["bits_down"]) / 8)
            check_round(row, one)


def check_round(row: dict[str, str], one: Run) -> None:
    """Look that a row has what the trace says of the last round before its evaluation."""
    k = int(row["rounds"]) - 1
    if k < 0:
        assert not any(row[name] for name in Csv.ROUND), "there was no round yet"
        return
    assert int(float(row["silent"])) == one.spec.workers - one.uploads[k].sum()
    assert float(row["threshold"]) == one.trace["threshold"][k]
    left = one.trace["watched_left"][k]
    known = left[np.isfinite(left)]
    assert (row["innovation"] == "") == (not len(known))
    assert not len(known) or float(row["innovation"]) == pytest.approx(known.mean())


def without_pace(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Leave out how long rounds took: a run that goes on after a stop no longer knows it of those before."""
    return [{name: value for name, value in row.items() if name != "seconds_per_round"} for row in rows]


# -- CSV -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_csv_file_has_one_row_an_evaluation_of_every_run(tmp_path: Path, jobs: int) -> None:
    with Sinks(Csv(tmp_path / "log.csv")) as sinks:
        runs = pool.obtain_all(SPECS, tmp_path / "runs", jobs=jobs, report=sinks)
    check_csv(tmp_path / "log.csv", runs)


def test_every_evaluation_is_there_however_often_a_run_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds in (0.0, 0.003, 60.0):
        monkeypatch.setattr(runner, "REPORT_SECONDS", seconds)
        with Sinks(Csv(tmp_path / "log.csv")) as sinks:
            runs = pool.obtain_all(SPECS, tmp_path / str(seconds), report=sinks)
        check_csv(tmp_path / "log.csv", runs)


@pytest.mark.parametrize("jobs", [1, 2])
def test_runs_that_are_read_from_disk_are_in_the_csv_file_as_they_were(tmp_path: Path, jobs: int) -> None:
    runs = pool.obtain_all(SPECS[:2], tmp_path / "runs")
    with Sinks(Csv(tmp_path / "log.csv")) as sinks:
        again = pool.obtain_all(SPECS, tmp_path / "runs", jobs=jobs, report=sinks)
    assert [one.meta["seconds"] for one in again[:2]] == [one.meta["seconds"] for one in runs], "they ran again"
    check_csv(tmp_path / "log.csv", again)


def test_a_diverged_run_has_the_evaluations_before_it_diverged(tmp_path: Path) -> None:
    with Sinks(Csv(tmp_path / "log.csv")) as sinks:
        runs = pool.obtain_all([small("sgd", eta=1e200, dtype="float64", evaluate=1)], tmp_path / "runs", report=sinks)
    assert runs[0].status == "diverged"
    check_csv(tmp_path / "log.csv", runs)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.algorithm)
@pytest.mark.parametrize("rounds", [1, 9])
def test_a_run_that_was_stopped_and_resumed_is_whole_in_the_csv_file(tmp_path: Path, spec: Spec, rounds: int) -> None:
    folder = tmp_path / "runs" / spec.label
    with pytest.raises(Stopped), Sinks(Csv(tmp_path / "first.csv")) as sinks:
        run(spec, folder, report=stop_after(rounds, sinks))
    assert store.read(folder).status == "running"
    with Sinks(Csv(tmp_path / "second.csv")) as sinks:
        found = resume(folder, report=sinks)
    check_csv(tmp_path / "second.csv", [found])
    before, after = read(tmp_path / "first.csv")[spec.label], read(tmp_path / "second.csv")[spec.label]
    assert 0 < len(before) < len(after)
    assert without_pace(before) == without_pace(after[: len(before)]), "what was written before the stop is true"
    assert all(float(row["seconds_per_round"]) > 0 for row in before[1:])
    with Sinks(Csv(tmp_path / "third.csv")) as sinks:
        resume(folder, report=sinks)
    assert without_pace(read(tmp_path / "third.csv")[spec.label]) == without_pace(after)


@pytest.mark.usefixtures("eager")
def test_the_rows_are_in_the_file_while_the_run_goes_on(tmp_path: Path) -> None:
    seen = []
    sink = Csv(tmp_path / "log.csv")

    def report(status: Status) -> None:
        sink(status)
        seen.append(sum(map(len, read(tmp_path / "log.csv").values())))

    found = run(small("sgd", iterations=20, evaluate=1), tmp_path / "run", report=report)
    sink.close()
    assert seen[0] == 2
    assert seen == sorted(seen)
    assert seen[-1] == len(found.trace["loss"]) == 21


def test_a_run_without_test_data_has_an_empty_accuracy(tmp_path: Path) -> None:
    made = made_up(tmp_path / "run", small("sgd"), [(0, 0, 0.7), (6, 600, 0.1 + 0.2)])
    with Sinks(Csv(tmp_path / "log.csv")) as sinks:
        sinks(Status.from_run(replace(made, meta={**made.meta, "seconds": 1.0})))
    rows = read(tmp_path / "log.csv")[made.spec.label]
    assert [row["accuracy"] for row in rows] == ["", ""]
    assert [row["loss"] for row in rows] == ["0.7", "0.30000000000000004"]


@pytest.mark.parametrize("task", ["a,b", 'say "x"', "two\nlines", "Größe", " "])
def test_names_of_every_kind_survive_in_a_csv_file(tmp_path: Path, task: str) -> None:
    made = made_up(tmp_path / "run", small("sgd", task=task), [(0, 0, 0.7)])
    with Sinks(Csv(tmp_path / "log.csv")) as sinks:
        sinks(Status.from_run(made))
    check_csv(tmp_path / "log.csv", [made])


def test_a_csv_file_replaces_the_one_before_and_makes_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "log.csv"
    for spec in SPECS[:2]:
        with Sinks(Csv(path)) as sinks:
            found = pool.obtain_all([spec], tmp_path / "runs", report=sinks)
    check_csv(path, found)


def one_line(make: Callable[[], Any], *words: str) -> None:
    """Look that something is refused in one line that has these words in it."""
    with pytest.raises(LasgError) as error:
        make()
    assert "\n" not in str(error.value)
    assert all(word in str(error.value) for word in words), error.value


def test_a_csv_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "log.csv", Path("/proc/no/log.csv")):
        one_line(lambda path=path: Csv(path), f"cannot write {path}")  # type: ignore[misc]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is full")
def test_a_disk_that_is_full_is_told_in_one_line(tmp_path: Path) -> None:
    made = made_up(tmp_path / "run", small("sgd"), [(0, 0, 0.7)])
    sink = Csv(Path("/dev/full"))
    try:
        one_line(lambda: sink(Status.from_run(made)), "/dev/full")
    finally:
        with contextlib.suppress(OSError, LasgError):
            sink.close()


# -- TensorBoard ---------------------------------------------------------------------------------------------

Scalars = dict[str, list[tuple[int, float]]]


def scalars(folder: Path) -> Scalars:
    """Return what TensorBoard itself reads in a folder: (step, value) by tag."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def check_events(folder: Path, one: Run) -> None:
    """Look that a folder has exactly the evaluations of a run, as 32-bit floats."""
    found, trace = scalars(folder / one.spec.label), one.trace
    steps = trace["iterations"].tolist()
    for tag, column in {"loss": "loss", "accuracy": "accuracy", **{f"ledger/{name}": name for name in COUNTS}}.items():
        assert [step for step, _ in found[tag]] == steps, tag
        values = np.array([value for _, value in found[tag]], np.float32)
        assert np.array_equal(values, trace[column].astype(np.float32)), tag
    every = trace["rounds"] * one.spec.workers
    saved = [value for _, value in found["uploads_saved"]]
    assert saved[0] == 0, "nothing was saved before there was anything"
    assert np.allclose(saved[1:], 1 - trace["uploads"][1:] / every[1:], rtol=0, atol=1e-6)
    known = {"loss", "accuracy", "uploads_saved", "rounds_per_second", *(f"ledger/{n}" for n in COUNTS)}
    known |= {"uploads", "bytes_up", "bytes_down", "seconds_per_round", "silent", "threshold", "innovation"}
    assert set(found) - {f"uploaded/worker_{m}" for m in range(one.spec.workers)} <= known


@pytest.mark.parametrize("jobs", [1, 2])
def test_tensorboard_reads_the_numbers_of_every_run(tmp_path: Path, jobs: int) -> None:
    with Sinks(TensorBoard(tmp_path / "tb")) as sinks:
        runs = pool.obtain_all(SPECS, tmp_path / "runs", jobs=jobs, report=sinks)
    assert {path.name for path in (tmp_path / "tb").iterdir()} == {one.spec.label for one in runs}
    for one in runs:
        check_events(tmp_path / "tb", one)
        speeds = scalars(tmp_path / "tb" / one.spec.label)["rounds_per_second"]
        assert all(speed > 0 for _, speed in speeds)
        assert speeds[-1][0] == one.trace["iterations"][-1]


def test_a_run_that_is_read_from_disk_has_its_numbers_and_no_speed(tmp_path: Path) -> None:
    pool.obtain_all(SPECS[:1], tmp_path / "runs")
    with Sinks(TensorBoard(tmp_path / "tb")) as sinks:
        (one,) = pool.obtain_all(SPECS[:1], tmp_path / "runs", report=sinks)
    check_events(tmp_path / "tb", one)
    assert "rounds_per_second" not in scalars(tmp_path / "tb" / one.spec.label)


@pytest.mark.usefixtures("eager")
def test_a_run_that_was_stopped_and_resumed_is_whole_for_tensorboard(tmp_path: Path) -> None:
    spec = SPECS[0]
    folder = tmp_path / "runs" / spec.label
    with pytest.raises(Stopped), Sinks(TensorBoard(tmp_path / "tb")) as sinks:
        run(spec, folder, report=stop_after(9, sinks))
    before = scalars(tmp_path / "tb" / spec.label)["loss"]
    assert [step for step, _ in before] == [0, 7], "what came before the stop is in the file"
    with Sinks(TensorBoard(tmp_path / "tb")) as sinks:
        found = resume(folder, report=sinks)
    check_events(tmp_path / "tb", found)


def test_a_second_write_replaces_the_first_and_nothing_else(tmp_path: Path) -> None:
    keep = tmp_path / "tb" / SPECS[0].label / "notes.txt"
    keep.parent.mkdir(parents=True)
    keep.write_text("mine")
    other = tmp_path / "tb" / "other" / "events.out.tfevents.1"
    other.parent.mkdir()
    other.write_bytes(b"")
    first = run(SPECS[0].but(iterations=60), tmp_path / "run")
    for change in (0.0, 1.0):
        status = Status.from_run(first)
        rows = tuple((*row[:-2], row[-2] + change, row[-1]) for row in status.evaluations)
        with Sinks(TensorBoard(tmp_path / "tb")) as sinks:
            sinks(replace(status, evaluations=rows))
    found = scalars(tmp_path / "tb" / first.spec.label)["loss"]
    assert np.allclose([value for _, value in found], first.trace["loss"] + 1, atol=1e-6)
    assert len(list((tmp_path / "tb" / first.spec.label).glob(EVENTS))) == 1
    assert keep.read_text() == "mine"
    assert other.is_file()


def test_a_run_without_test_data_has_no_accuracy_for_tensorboard(tmp_path: Path) -> None:
    made = made_up(tmp_path / "run", small("sgd"), [(0, 0, 0.7), (6, 600, 0.5)])
    with Sinks(TensorBoard(tmp_path / "tb")) as sinks:
        sinks(Status.from_run(made))
    found = scalars(tmp_path / "tb" / made.spec.label)
    assert "accuracy" not in found
    assert [step for step, _ in found["loss"]] == [0, 1]


@pytest.fixture
def no_tensorboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make `import tensorboard` fail, as where it is not installed."""
    importlib.import_module("torch.utils")
    for name in list(sys.modules):
        if name.partition(".")[0] == "tensorboard" or name.startswith("torch.utils.tensorboard"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    yield
    for name in list(sys.modules):
        if name.startswith("torch.utils.tensorboard"):
            del sys.modules[name]


@pytest.mark.usefixtures("no_tensorboard")
def test_without_tensorboard_it_says_how_to_install_it(tmp_path: Path) -> None:
    one_line(lambda: TensorBoard(tmp_path / "tb"), "tensorboard", "pip install 'lasg[tensorboard]'")
    assert not (tmp_path / "tb").exists()


def test_a_folder_for_tensorboard_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "tb", Path("/proc/no/tb")):
        one_line(lambda path=path: TensorBoard(path), f"cannot write {path}")  # type: ignore[misc]


def test_a_runs_folder_for_tensorboard_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    made = made_up(tmp_path / "run", small("sgd"), [(0, 0, 0.7)])
    (tmp_path / "tb").mkdir()
    (tmp_path / "tb" / made.spec.label).write_text("a file lies where the folder should be")
    with Sinks(TensorBoard(tmp_path / "tb")) as sinks:
        one_line(lambda: sinks(Status.from_run(made)), made.spec.label)


# -- several -------------------------------------------------------------------------------------------------


def test_sinks_take_every_report_and_are_closed_even_if_a_run_fails(tmp_path: Path) -> None:
    made = made_up(tmp_path / "run", small("sgd"), [(0, 0, 0.7), (6, 600, 0.5)])
    paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
    sinks = Sinks(*map(Csv, paths))
    with pytest.raises(Stopped), sinks:
        stop_after(0, sinks)(Status.from_run(made))
    for path in paths:
        check_csv(path, [made])
    with pytest.raises(ValueError, match="closed"):
        sinks(Status.from_run(made))


def test_no_sinks_take_everything(tmp_path: Path) -> None:
    made = made_up(tmp_path / "run", small("sgd"), [(0, 0, 0.7)])
    with Sinks() as sinks:
        sinks(Status.from_run(made))
