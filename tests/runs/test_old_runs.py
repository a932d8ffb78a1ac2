"""What lasg 0.1 left is read, reported, and goes on to the same bits as 0.1 itself went on to: fixtures-0.1.zip."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("sklearn", reason="the data is scikit-learn's")

import torch
from safetensors.numpy import load_file

import lasg
from lasg.cli.main import main
from lasg.errors import LasgError
from lasg.runs import on_ranks, runner, store
from tests.golden.machine import alike, machine
from tests.runs import old_runs
from tests.runs.old_runs import ARCHIVE, ENDED, MACHINE, ROUNDS, STOPPED, UNFINISHED
from tests.transports import ranks

Arrays = dict[str, npt.NDArray[Any]]
Compare = Callable[[Arrays, Arrays], None]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fixtures")
    with zipfile.ZipFile(ARCHIVE) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture
def compare(kept: Path) -> Compare:
    """Return what compares arrays: to the bit where this machine computes as that of the fixtures did."""
    if (kept / MACHINE).read_text().strip() != machine():
        return lambda _, __: pytest.skip(
            "it went on; this machine's arithmetic has other last digits than the fixtures'"
        )

    def same(found: Arrays, expected: Arrays) -> None:
        assert found.keys() == expected.keys()
        for name, values in expected.items():
            assert (found[name].dtype, found[name].shape) == (values.dtype, values.shape), name
            assert found[name].tobytes() == values.tobytes(), name

    return same


def arrays(path: Path) -> Arrays:
    """Read the arrays of a trace or a model."""
    if path.suffix == ".safetensors":
        return dict(load_file(path))
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def ended(folder: Path) -> Arrays:
    """Return the trace and the model of a run that ended."""
    return {**arrays(folder / store.TRACE), **arrays(folder / store.MODEL)}


# -- stored runs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", old_runs.FINISHED)
def test_a_finished_run_is_read_with_all_that_it_has(name: str, kept: Path) -> None:
    run = lasg.read(kept / "finished" / name)
    assert run.status == "done"
    assert run.meta["versions"]["lasg"] == "0.1.0"
    assert run.spec == old_runs.spec(old_runs.FINISHED[name])
    assert run.uploads.shape == (ROUNDS, 4)
    assert run.uploads.sum() == run.trace["uploads"][-1]
    assert f"{name}, seed 7: done, {ROUNDS} iterations" in repr(run)
    assert runner.resume(run.folder).meta == run.meta


def test_finished_and_unfinished_runs_are_in_one_report(kept: Path, tmp_path: Path) -> None:
    shutil.copytree(kept / "finished", tmp_path / "runs")
    shutil.copytree(kept / "simulated" / "lasg-wk2" / UNFINISHED, tmp_path / "runs" / "stopped")
    runner.resume(tmp_path / "runs" / "stopped")
    page = tmp_path / "report.html"
    assert main(["report", str(tmp_path / "runs"), "-o", str(page)]) == 0
    assert "lasg-wk2" in page.read_text(encoding="utf-8")


def test_the_trace_of_a_finished_run_is_written_anew_from_its_checkpoint(kept: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(kept / "finished" / "lasg-wk2", tmp_path / "run")
    before = arrays(folder / store.TRACE)
    (folder / store.TRACE).write_bytes(b"half")
    after = runner.resume(folder).trace
    assert all(after[name].tobytes() == before[name].tobytes() for name in before)


@pytest.mark.parametrize("name", old_runs.SIMULATED)
def test_an_unfinished_run_goes_on_to_the_same_end(name: str, kept: Path, tmp_path: Path, compare: Compare) -> None:
    there = kept / "simulated" / name
    folder = shutil.copytree(there / UNFINISHED, tmp_path / "run")
    assert store.read(folder).status == "running"
    state = store.read_checkpoint(folder)
    assert state is not None
    assert state["simulation"]["server"]["k"] == STOPPED
    before = store.read_progress(folder)
    run = runner.resume(folder)
    assert run.status == "done"
    assert run.meta.get("laziness_given_up", "") == "" or name.startswith("given-up")
    assert (run.trace["loss"][: len(before["loss"])] == before["loss"]).all()  # it went on, and did not start again
    assert run.meta["seconds"] > state["seconds"]
    compare(ended(folder), ended(there / ENDED))


def test_the_guard_had_given_up_before_the_stop_or_does_after_it(kept: Path) -> None:
    given_up = []
    for name in ("given-up-before", "given-up-after"):
        state = store.read_checkpoint(kept / "simulated" / name / UNFINISHED)
        assert state is not None
        given_up.append(bool(state["simulation"]["server"]["guard"]["given_up"]))
        trace = arrays(kept / "simulated" / name / ENDED / store.TRACE)
        assert np.isnan(trace["threshold"][-1])
    assert given_up == [True, False]


def test_the_command_that_began_a_run_goes_on_with_it(kept: Path, tmp_path: Path, compare: Compare) -> None:
    spec = old_runs.spec(old_runs.SIMULATED["lasg-wk2"])
    shutil.copytree(kept / "simulated" / "lasg-wk2" / UNFINISHED, runner.folder_for(spec, tmp_path))
    told: list[float] = []
    run = runner.obtain(spec, tmp_path, report=lambda status: told.append(status.share))
    assert run.status == "done"
    assert told[0] > STOPPED / ROUNDS - 0.01
    compare(ended(run.folder), ended(kept / "simulated" / "lasg-wk2" / ENDED))


# -- ranks ------------------------------------------------------------------------------------------------------------


def _go_on(name: str, out: str) -> str:
    from lasg.transports.links import Links

    spec, _, how = old_runs.spec_on_ranks(name)
    with alike():
        run = on_ranks.obtain(spec, Path(out), Links(), **how)
    return "" if run is None else run.status


@pytest.mark.parametrize("name", old_runs.ON_RANKS)
def test_a_run_on_ranks_goes_on_to_the_same_end(name: str, kept: Path, tmp_path: Path, compare: Compare) -> None:
    there = kept / "ranks" / name
    out = shutil.copytree(there / UNFINISHED, tmp_path / "runs")
    (folder,) = out.iterdir()
    spec, count, _ = old_runs.spec_on_ranks(name)
    assert folder == on_ranks.folder_for(spec, out, count)
    manifest = (folder / on_ranks.MANIFEST).read_text()
    assert f'"round": {STOPPED}' in manifest
    statuses = ranks.on_ranks(count, _go_on, name, str(out))
    assert statuses == ["done"] + [""] * (count - 1)
    assert not list(folder.glob("checkpoint-*"))
    compare(ended(folder), ended(there / ENDED))


# -- training loops of one's own --------------------------------------------------------------------------------------


def _loop(name: str, folder: str) -> Arrays:
    import torch.distributed as dist

    rank = dist.get_rank() if dist.is_initialized() else 0
    state = torch.load(Path(folder) / f"rank-{rank}.pt", weights_only=True)
    with alike():
        return old_runs.loop(name, rank, state)[1]


@pytest.mark.parametrize("name", old_runs.LOOPS)
def test_a_lazy_optimizer_goes_on_from_a_state_dict(name: str, kept: Path, compare: Compare) -> None:
    folder, count = kept / "loops" / name, old_runs.LOOPS[name]["ranks"]
    came = [_loop(name, str(folder))] if count == 1 else ranks.on_ranks(count, _loop, name, str(folder))
    for found in came:
        assert found["theta"].tobytes() == came[0]["theta"].tobytes()
        compare(found, arrays(folder / "ended.npz"))


def test_a_state_dict_is_still_refused_by_an_optimizer_of_another_kind(kept: Path) -> None:
    state = torch.load(kept / "loops" / "alone" / "rank-0.pt", weights_only=True)
    parameters = list(old_runs.network().parameters())
    for other in ({"rule": "wk1"}, {"algorithm": "wk2+dense+difference"}):
        optimizer = lasg.LazyOptimizer(torch.optim.Adam(parameters, lr=0.01), **other)  # type: ignore[arg-type]
        with pytest.raises(LasgError, match="this state dict is of rank 0, ranks 1, p 134"):
            optimizer.load_state_dict(state)
