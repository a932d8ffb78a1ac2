"""A disk that is full, read-only or gone ends a run in one line; once it can be written again, the run goes on."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sklearn", reason="the data is scikit-learn's")

from lasg.cli.main import main
from lasg.core.training import Training
from lasg.data import loaders
from lasg.errors import CannotWrite, LasgError
from lasg.report.page import write
from lasg.report.sinks import Csv, Sink, Sinks, TensorBoard
from lasg.runs import on_ranks, runner, store
from lasg.runs.status import Report, Status
from lasg.transports.links import Links
from tests.hostile.disks import Disk, small_disk
from tests.hostile.victims import _checkpoint_every_round, _contents
from tests.runs.samples import made_up, same_bytes, small

SPEC = small("laqsg-wk2", iterations=12, evaluate=3)
GO: dict[str, Callable[[Path, Report | None], Any]] = {
    "simulation": lambda out, report: runner.obtain(SPEC, out, report=report),
    "ranks": lambda out, report: on_ranks.obtain(SPEC, out, Links(), report=report),
}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with small_disk(tmp_path / "disk") as found:
        yield found


@pytest.fixture(autouse=True)
def no_thread_fails(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A traceback of a thread is one, too."""
    seen: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", seen.append)
    yield
    assert not seen


@contextlib.contextmanager
def one_line(*words: str) -> Iterator[None]:
    with pytest.raises(LasgError) as error:
        yield
    assert "\n" not in str(error.value)
    assert all(word in str(error.value) for word in ("cannot write", *words)), error.value


def at_round(k: int, act: Callable[[], None]) -> Report:
    def report(status: Status) -> None:
        if status.ledger.rounds == k:
            act()

    return report


@pytest.mark.parametrize("engine", GO)
@pytest.mark.parametrize("when", [1, 5, 12])
def test_a_run_goes_on_after_room_is_made(engine: str, when: int, disk: Disk, tmp_path: Path) -> None:
    with _checkpoint_every_round():
        with one_line("No space left"):
            GO[engine](disk.path / "runs", at_round(when, disk.fill))
        disk.make_room()
        found = GO[engine](disk.path / "runs", None)
        assert same_bytes(_contents(found), _contents(GO[engine](tmp_path / "whole", None)))


def test_a_disk_that_fills_up_slowly_is_no_other_run(disk: Disk, tmp_path: Path) -> None:
    """Whatever write is the first that finds no room."""
    whole = _contents(runner.run(SPEC, tmp_path / "whole"))
    stopped = 0
    with _checkpoint_every_round():
        for left in range(0, 60_000, 5_000):
            out = disk.path / f"runs-{left}"
            with contextlib.suppress(CannotWrite):
                runner.obtain(SPEC, out, report=at_round(2, lambda left=left: disk.fill(left)))  # type: ignore[misc]
                stopped -= 1
            stopped += 1
            disk.make_room()
            assert same_bytes(_contents(runner.obtain(SPEC, out)), whole), left
    assert stopped >= 3


@pytest.mark.parametrize("engine", GO)
def test_a_disk_that_becomes_read_only_is_named_and_the_run_goes_on(engine: str, disk: Disk, tmp_path: Path) -> None:
    with _checkpoint_every_round():
        with one_line("Read-only"):
            GO[engine](disk.path / "runs", at_round(5, disk.read_only))
        disk.read_only(False)
        found = GO[engine](disk.path / "runs", None)
    assert same_bytes(_contents(found), _contents(GO[engine](tmp_path / "whole", None)))


@pytest.mark.parametrize("engine", GO)
def test_a_disk_that_is_gone_is_not_replaced_by_the_one_below_it(engine: str, disk: Disk) -> None:
    with _checkpoint_every_round(), one_line("it is gone"):
        GO[engine](disk.path / "runs", at_round(5, disk.vanish))
    assert not list(disk.path.rglob("*.*"))


def test_the_command_line_says_what_to_type(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    step = Training.step

    def stepping(self: Training) -> Any:
        if self.server.k == 5:
            disk.fill()
        return step(self)

    monkeypatch.setattr(Training, "step", stepping)
    (disk.path / "spec.toml").write_text(SPEC.to_toml())
    command = ["run", str(disk.path / "spec.toml"), "--out", str(disk.path / "runs")]
    with _checkpoint_every_round():
        assert main(command) == 2
    said = capfd.readouterr().err
    assert "No space left" in said
    assert "Once it can be written again, to go on: lasg resume" in said
    assert "Traceback" not in said
    disk.make_room()
    monkeypatch.setattr(Training, "step", step)
    (folder,) = (disk.path / "runs").iterdir()
    assert main(["resume", str(folder)]) == 0


@pytest.mark.parametrize("sink", [Csv, TensorBoard])
def test_what_follows_a_run_says_in_one_line_that_it_cannot_write(
    sink: Callable[[Path], Sink], disk: Disk, tmp_path: Path
) -> None:
    if sink is TensorBoard:
        pytest.importorskip("tensorboard", reason="needs tensorboard")
    made = Status.from_run(made_up(tmp_path / "run", SPEC, [(i, i, 0.7) for i in range(900)]))
    with one_line("No space left"), Sinks(sink(disk.path / "log")) as sinks:
        sinks(dataclasses.replace(made, share=0.5, evaluations=made.evaluations[:2]))
        disk.fill()
        sinks(dataclasses.replace(made, share=0.5))


def test_pages_and_prepared_data_say_it_in_one_line(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runner.run(SPEC, tmp_path / "run")
    (tmp_path / "mine.svm").write_text("\n".join(f"{i % 2} 1:{i} 2:{i % 7}" for i in range(3000)))
    disk.fill()
    with one_line("No space left"):
        write(disk.path / "report.html", [run])
    monkeypatch.setenv("LASG_CACHE", str(disk.path / "cache"))
    with pytest.raises(LasgError, match=r"cannot write to the cache folder.*No space left"):
        loaders.load(f"libsvm:{tmp_path / 'mine.svm'}")


def test_a_federation_goes_on_after_room_is_made(disk: Disk) -> None:
    pytest.importorskip("flwr", reason="needs Flower: pip install 'lasg[flower]'")
    from lasg.flower import apps
    from tests.hostile.victims import _federation, _measure, _module

    seen: list[int] = []

    def measure(model: Any) -> tuple[float, float]:
        seen.append(1)
        if len(seen) == 2:
            disk.fill()
        return _measure(model)

    grid, settings = _federation(disk.path / "out")
    with one_line("No space left"):
        apps.train(grid, settings, _module(), measure)
    disk.make_room()
    grid, settings = _federation(disk.path / "out", resume=True)
    assert apps.train(grid, settings, _module(), _measure).server.k == 4
    assert store.read(disk.path / "out").status == "done"
