"""Whenever the power fails, what the disk has then goes on to the same end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sklearn", reason="the data is scikit-learn's")

from lasg.runs import files, on_ranks, runner, store
from lasg.transports.links import Links
from tests.hostile.victims import _checkpoint_every_round, _contents
from tests.hostile.writes import Disk, recorded
from tests.runs.samples import same_bytes, small

SPEC = small("laqsg-wk2", iterations=4, evaluate=2)
LEFT = [("now", "now"), ("now", "half"), ("now", "safe"), ("safe", "safe"), ("safe", "half")]
"""What a power loss leaves: of names what was done or what was synced, of contents all, half, or what was synced."""


def simulate(out: Path) -> store.Run:
    return runner.obtain(SPEC, out, report=lambda _: None)


def on_rank(out: Path) -> store.Run:
    run = on_ranks.obtain(SPEC, out, Links(), report=lambda _: None)
    assert run is not None
    return run


def recorded_run(go: Callable[[Path], store.Run], folder: Path) -> tuple[list[Any], dict[str, Any]]:
    with recorded(folder) as steps, _checkpoint_every_round():
        contents = _contents(go(folder))
    return steps, contents


@pytest.mark.parametrize("go", [simulate, on_rank])
def test_a_power_loss_at_any_moment_leaves_a_run_that_goes_on_to_the_same_end(
    go: Callable[[Path], store.Run], tmp_path: Path
) -> None:
    (tmp_path / "whole").mkdir()
    steps, whole = recorded_run(go, tmp_path / "whole")
    assert sum(step.what in {"replace", "rename"} for step in steps) > 6
    disk, seen = Disk(), set()
    for i, step in enumerate(steps):
        disk.do(step)
        for names, contents in LEFT:
            place = tmp_path / "torn"
            disk.write(place, names=names, contents=contents)
            there = sorted(path for path in place.rglob("*") if path.is_file())
            state = tuple((str(path.relative_to(place)), path.read_bytes()) for path in there)
            if state in seen:
                continue
            seen.add(state)
            found = go(place)
            assert found.status == "done", (i, step[:2], names, contents)
            assert same_bytes(_contents(store.read(found.folder)), whole), (i, step[:2], names, contents)
    assert len(seen) > 10


def test_a_power_loss_at_any_moment_leaves_a_federation_that_goes_on(tmp_path: Path) -> None:
    """With what a round had that is on the disk, at the latest the one before the last."""
    pytest.importorskip("flwr", reason="needs Flower: pip install 'lasg[flower]'")
    from lasg.flower import apps
    from tests.hostile.victims import _federation, _measure, _module, _recorder

    (tmp_path / "whole").mkdir()
    states: dict[int, Any] = {}
    done: list[tuple[int, int]] = []  # after how many steps of the disk a round was done

    def measure(model: Any) -> tuple[float, float]:
        done.append((len(steps), len(done)))
        return _measure(model)

    with recorded(tmp_path / "whole") as steps:
        grid, settings = _federation(tmp_path / "whole" / "out")
        apps.train(grid, settings, _module(), measure)
    disk, seen, resumed = Disk(), set(), 0
    for i, step in enumerate(steps):
        disk.do(step)
        for names, contents in LEFT:
            place = tmp_path / "torn"
            disk.write(place, names=names, contents=contents)
            files = sorted(path for path in place.rglob("*") if path.is_file() and path.name != ".lock")
            state = tuple((str(path.relative_to(place)), path.read_bytes()) for path in files)
            if state in seen:
                continue
            seen.add(state)
            recorder = _recorder(place / "out")
            whole = sum(after <= i for after, _ in done) - 1  # rounds whose checkpoints were written
            if not recorder.resume():
                assert whole < 1, (i, step[:2], names, contents)
                continue
            k = recorder.run.server.k
            assert k >= whole, (i, step[:2], names, contents)
            assert not recorder.remarks, (i, step[:2], names, contents, recorder.remarks)
            now = recorder.job.state()["simulation"]["server"]
            assert same_bytes(states.setdefault(k, now), now), (i, step[:2], names, contents)
            resumed += 1
    assert set(states) == {1, 2, 3, 4}
    assert resumed > 10


def test_a_run_that_is_begun_anew_is_at_every_moment_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    folder = runner.folder_for(SPEC, tmp_path / "whole")
    runner.run(SPEC, folder)
    disk = Disk()
    disk.folders |= {folder.name}
    disk.files |= {f"{folder.name}/{path.name}": [path.read_bytes()] * 2 for path in folder.iterdir()}
    disk.safe, disk.safe_folders = dict(disk.files), set(disk.folders)
    with recorded(tmp_path / "whole") as steps:
        whole = _contents(runner.obtain(SPEC, tmp_path / "whole", fresh=True))
    for step in steps:
        disk.do(step)
        for names, contents in (LEFT[0], LEFT[3]):
            disk.write(tmp_path / "torn", names=names, contents=contents)
            assert same_bytes(_contents(simulate(tmp_path / "torn")), whole), (step[:2], names, contents)


def test_without_syncing_the_folder_a_power_loss_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test can fail: names that nobody synced are not there."""
    monkeypatch.setattr(files, "sync_folder", lambda _: None)
    (tmp_path / "whole").mkdir()
    steps, _ = recorded_run(simulate, tmp_path / "whole")
    disk = Disk()
    for step in steps:
        disk.do(step)
    disk.write(tmp_path / "torn", names="safe", contents="safe")
    assert not list((tmp_path / "torn").rglob(store.META))
