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

from lasg.analysis import scoreboard
from lasg.cli.main import main
from lasg.core.training import Training
from lasg.data import loaders
from lasg.errors import CannotWrite, LasgError
from lasg.report.page import write
from lasg.report.paper_tables import to_csv
from lasg.report.sinks import Csv, Sinks, TensorBoard, Tracked
from lasg.runs import on_ranks, runner, store
from lasg.runs.files import write_atomically
from lasg.runs.status import Report, Status
from lasg.trackers import Target
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


# -- all that writes besides runs: it is one line, and what is asked again when there is room is done ------------------

HURT: dict[str, tuple[Callable[[Disk], None], Callable[[Disk], None], str]] = {
    "full": (Disk.fill, Disk.make_room, "No space left"),
    "read-only": (Disk.read_only, lambda disk: disk.read_only(False), "Read-only"),
}
"""What happens to a disk, what puts it right, and the system's word for it."""


def _report(disk: Path, run: store.Run) -> None:
    write(disk / "reports" / "report.html", [run])


def _figure(disk: Path, run: store.Run) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    from lasg.report import plots

    plots.save(plots.plot(run), disk / "pictures" / "loss.png")


def _table(disk: Path, run: store.Run) -> None:
    write_atomically(disk / "tables" / "table.csv", to_csv([{"loss": value} for value in run.trace["loss"]]).encode())


def _scoreboard(disk: Path, run: store.Run) -> None:
    row = dict.fromkeys(scoreboard.RESULT, "1") | {"version": store.versions()["lasg"]}
    scoreboard.write(scoreboard.Results("race", [row], []), disk / "scoreboard")


def _keys(disk: Path, run: store.Run) -> None:
    pytest.importorskip("flwr", reason="needs Flower: pip install 'lasg[flower]'")
    from lasg.flower import keys

    keys.create(disk / "keys", ["localhost"], ["a"])


def _app(disk: Path, run: store.Run) -> None:
    pytest.importorskip("flwr", reason="needs Flower: pip install 'lasg[flower]'")
    from lasg.flower import new

    new.create(disk / "lazy")


def _cache(disk: Path, run: store.Run) -> None:
    raw = run.folder / "mine.svm"
    raw.write_text("\n".join(f"{i % 2} 1:{i} 2:{i % 7}" for i in range(3000)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LASG_CACHE", str(disk / "cache"))
        loaders.load(f"libsvm:{raw}")


ONCE = (_report, _figure, _table, _scoreboard, _keys, _app, _cache)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> store.Run:
    return made_up(tmp_path_factory.mktemp("made up") / "run", SPEC, [(i, i, 0.7) for i in range(900)])


@pytest.mark.parametrize("hurt", HURT)
@pytest.mark.parametrize("writer", ONCE, ids=lambda writer: writer.__name__.strip("_"))
def test_what_is_written_at_once_is_one_line_and_works_when_asked_again(
    writer: Callable[[Path, store.Run], None], hurt: str, disk: Disk, run: store.Run
) -> None:
    breaks, mends, words = HURT[hurt]
    breaks(disk)
    with one_line(words):
        writer(disk.path, run)
    mends(disk)
    writer(disk.path, run)
    written = [path for path in disk.path.rglob("*") if path.is_file()]
    assert written
    assert all(path.stat().st_size or path.name == "__init__.py" for path in written)
    assert not [path for path in written if path.suffix == ".part"]


SINKS: dict[str, Callable[[Path], Any]] = {
    "csv": Csv,
    "tensorboard": TensorBoard,
    "a tracker's csv": lambda path: Tracked(Target("csv", str(path))),
}


def sink_of(name: str, path: Path) -> Any:
    if name == "tensorboard":
        pytest.importorskip("tensorboard", reason="needs tensorboard")
    return SINKS[name](path)


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize(("breaks", "words"), [(Disk.fill, "No space left"), (Disk.vanish, "it is gone")])
def test_what_follows_a_run_says_in_one_line_that_it_cannot_write(
    sink: str, breaks: Callable[[Disk], None], words: str, disk: Disk, run: store.Run
) -> None:
    made = Status.from_run(run)
    with one_line(words), Sinks(sink_of(sink, disk.path / "log")) as sinks:
        sinks(dataclasses.replace(made, share=0.5, evaluations=made.evaluations[:2]))
        breaks(disk)
        sinks(dataclasses.replace(made, share=0.5))


@pytest.mark.parametrize("sink", SINKS)
def test_what_follows_a_run_does_not_begin_on_a_disk_that_is_read_only(sink: str, disk: Disk, run: store.Run) -> None:
    disk.read_only()
    with one_line("Read-only"):
        sink_of(sink, disk.path / "log")(Status.from_run(run))


def test_a_run_whose_follower_cannot_write_goes_on_after_room_is_made(disk: Disk, tmp_path: Path) -> None:
    spec = SPEC.but(iterations=80, evaluate=1)  # more rows than fit into a page, of which the disk has one for the file
    whole = _contents(runner.run(spec, tmp_path / "whole"))

    def followed() -> store.Run:
        def report(status: Status) -> None:
            full(status)
            sinks(status)

        with Sinks(Csv(disk.path / "log.csv")) as sinks:
            return runner.obtain(spec, tmp_path / "runs", report=report)

    full = at_round(5, disk.fill)
    with _checkpoint_every_round():
        with one_line("log.csv", "No space left"):
            followed()
        disk.make_room()
        full = at_round(99, disk.fill)
        found = followed()
    assert same_bytes(_contents(found), whole)
    assert len((disk.path / "log.csv").read_text().splitlines()) == 1 + len(found.trace["loss"])


# -- a federation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hurt", [*HURT, "gone"])
def test_a_federation_says_it_in_one_line_and_goes_on_afterwards(hurt: str, disk: Disk) -> None:
    pytest.importorskip("flwr", reason="needs Flower: pip install 'lasg[flower]'")
    from lasg.flower import apps
    from tests.hostile.victims import _federation, _measure, _module

    breaks, mends, words = HURT.get(hurt, (Disk.vanish, lambda _: None, ""))
    seen: list[int] = []

    def measure(model: Any) -> tuple[float, float]:
        seen.append(1)
        if len(seen) == 2:
            breaks(disk)
        return _measure(model)

    grid, settings = _federation(disk.path / "out")
    with one_line(words):
        apps.train(grid, settings, _module(), measure)
    mends(disk)
    if hurt == "gone":
        assert not list(disk.path.rglob("*.*"))
        return
    grid, settings = _federation(disk.path / "out", resume=True)
    assert apps.train(grid, settings, _module(), _measure).server.k == 4
    assert store.read(disk.path / "out").status == "done"
