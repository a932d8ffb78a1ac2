"""What is damaged: the folders of every engine, how each is gone on with, and what must come of it."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from lasg.data import loaders
from lasg.report.page import build
from lasg.runs import on_ranks, runner, store
from lasg.runs.status import Report
from lasg.transports.links import Links
from tests.runs.samples import Stopped, small, stop_after

ROUNDS, STOPPED = 24, 17
Found = tuple[dict[str, Any], list[str]]
"""What came of it, and what the user was told."""


@dataclass(frozen=True)
class Victim:
    """A folder whose files are damaged one at a time."""

    name: str
    make: Callable[[Path, int], None]
    """Make the folder, of one run or, by number, another."""
    use: Callable[[Path], Found]
    """Go on with it as a user does; raises a LasgError where it stops."""
    files: tuple[str, ...]
    """Patterns of the files that are damaged."""
    newest: str = ""
    """The checkpoint without which, where a line is said, it comes to something else: a federation's."""


def _listen(heard: list[str]) -> Report:
    return lambda status: heard.extend(status.remarks)


def _contents(run: store.Run) -> dict[str, Any]:
    return {**run.trace, **{f"model {name}": value for name, value in run.model.items()}}


# -- simulations ------------------------------------------------------------------------------------------------------


def _spec(other: int) -> Any:
    """Return the spec of a run, or of one that differs in its seed alone: nothing but a seal tells their files."""
    return small("laqsg-wk2", iterations=ROUNDS, evaluate=5, seed=other)


@contextlib.contextmanager
def _checkpoint_every_round() -> Any:
    """Write one after every round, without waiting."""
    before, reports = runner.CHECKPOINT_SECONDS, runner.REPORT_SECONDS
    runner.CHECKPOINT_SECONDS, runner.REPORT_SECONDS = -1.0, 0.0
    try:
        yield
    finally:
        runner.CHECKPOINT_SECONDS, runner.REPORT_SECONDS = before, reports


def _stopped(folder: Path, other: int) -> None:
    with _checkpoint_every_round(), contextlib.suppress(Stopped):
        runner.run(_spec(other), folder, report=stop_after(STOPPED))


def _resume(folder: Path) -> Found:
    heard: list[str] = []
    run = runner.resume(folder, report=_listen(heard))
    return _contents(store.read(run.folder)), heard


def _ended(folder: Path, other: int) -> None:
    runner.run(_spec(other), folder)


def _read(folder: Path) -> Found:
    """Resume, list and report a run that ended."""
    heard: list[str] = []
    runner.resume(folder, report=_listen(heard))
    (run,) = store.read_runs(folder)
    build([run])
    return {**_contents(run), "status": run.status, "spec": run.spec.to_toml()}, heard


def _list(folder: Path) -> Found:
    """Look at a run under way."""
    found = store.read_progress(folder)
    return {"spec": store.read(folder).spec.to_toml(), **found}, []


# -- ranks: one of them, which writes the same files as many do -------------------------------------------------------


def _rank_stopped(folder: Path, other: int) -> None:
    with _checkpoint_every_round(), contextlib.suppress(Stopped):
        on_ranks.obtain(_spec(other), folder, Links(), report=stop_after(STOPPED))
    (there,) = folder.iterdir()
    there.rename(folder / "run-1-ranks")


def _rank_resume(folder: Path) -> Found:
    heard: list[str] = []
    (folder / "run-1-ranks").rename(on_ranks.folder_for(_spec(0), folder, 1))
    run = on_ranks.obtain(_spec(0), folder, Links(), report=_listen(heard))
    assert run is not None
    return _contents(store.read(run.folder)), heard


# -- federations ------------------------------------------------------------------------------------------------------


def _module() -> nn.Module:
    found = nn.Linear(30, 2).double()
    nn.init.zeros_(found.weight)
    nn.init.zeros_(found.bias)
    return found


def _node(_: Any, worker: int) -> Any:
    from lasg import ModuleProblem
    from tests.runs.old_runs import data

    x, y = (part.numpy() for part in data())
    rows = np.arange(worker, len(y), 2)
    loss = nn.functional.cross_entropy
    return ModuleProblem(_module(), loss, (x, y), [rows], batch=0.1, dtype="float64", ids=[worker])


def _federation(out: Path, **changes: Any) -> tuple[Any, Any]:
    from lasg.flower import Settings, client_app
    from tests.flower.grid import Inline

    config = {"workers": 2, "rounds": 4, "rule": "wk2", "codec": "qsgd8", "local-steps": 2, "wait": 120.0, "D": 9}
    config |= {"out": str(out), **changes}
    return Inline(client_app(_node), 2, config), Settings.from_config(config)


def _served(folder: Path, other: int) -> None:
    from lasg.flower import apps

    grid, settings = _federation(folder, seed=other)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    apps.train(grid, settings, _module(), _measure)


def _measure(model: nn.Module) -> tuple[float, float]:
    return float(sum(value.detach().square().sum() for value in model.parameters())), 0.5


def _recorder(folder: Path) -> Any:
    """Make what goes on with a federation; its nodes stay away."""
    from lasg.flower import apps, storage

    grid, settings = _federation(folder)
    run, federation, _ = apps.serve(grid, settings, _module())
    spec = settings.spec.but(dtype="float64")
    return storage.Recorder(folder, spec, run, federation)


def _taken_up(folder: Path) -> Found:
    """Take a federation up: its state must be that of the last checkpoint, or, with a line, of the one before."""
    recorder = _recorder(folder)
    assert recorder.resume()
    recorder.rounds.begin(recorder.run.server.k)
    recorder._begin()
    told = any("trace.csv" in remark for remark in recorder.remarks)
    return {"state": recorder.job.state(), "lines": None if told else recorder.rounds.lines()}, recorder.remarks


# -- data -------------------------------------------------------------------------------------------------------------


def _prepared(folder: Path, other: int) -> None:
    """Prepare a user's file, whose cache is then damaged."""
    folder.mkdir()
    chance = np.random.default_rng(other)
    rows = [f"{i % 3} " + " ".join(f"{j}:{chance.normal():.4f}" for j in range(1, 9)) for i in range(90)]
    (folder / "raw.svm").write_text("\n".join(rows) + "\n")
    with _cache(folder):
        loaders.load(f"libsvm:{folder / 'raw.svm'}")
    (there,) = (folder / "cache" / "prepared").iterdir()
    there.rename(there.with_name("data"))


@contextlib.contextmanager
def _cache(folder: Path) -> Any:
    before = os.environ.get("LASG_CACHE")
    os.environ["LASG_CACHE"] = str(folder / "cache")
    try:
        yield
    finally:
        del os.environ["LASG_CACHE"]
        if before is not None:
            os.environ["LASG_CACHE"] = before


def _loaded(folder: Path) -> Found:
    with _cache(folder):
        name = f"libsvm:{folder / 'raw.svm'}"
        (folder / "cache" / "prepared" / "data").rename(loaders.prepared_place(name)[0])
        data = loaders.load(name)
    return {"x": np.array(data.features), "y": data.labels, "classes": data.classes, "sha256": data.sha256}, []


RUN, NEWEST = ("spec.toml", "meta.json"), "checkpoint.safetensors"
VICTIMS = (
    Victim("simulation, stopped", _stopped, _resume, (*RUN, NEWEST, "checkpoint-previous.*")),
    Victim("simulation, listed", _stopped, _list, (*RUN, NEWEST)),
    Victim("simulation, ended", _ended, _read, (*RUN, "trace.npz", "model.safetensors", NEWEST)),
    Victim(
        "ranks, stopped",
        _rank_stopped,
        _rank_resume,
        tuple(
            f"run-1-ranks/{name}"
            for name in (*RUN, "checkpoint.json", "checkpoint-previous.json", "checkpoint-*-rank*")
        ),
    ),
    Victim("federation, taken up", _served, _taken_up, (*RUN, NEWEST, "trace.csv"), NEWEST),
    Victim("federation, ended", _served, _read, (*RUN, "trace.npz", "model.safetensors")),
    Victim("prepared data", _prepared, _loaded, ("cache/prepared/data/*",)),
)


def good_files(victim: Victim, folder: Path) -> list[Path]:
    """Return the files of a victim that are damaged, relative to its folder."""
    found = {path for pattern in victim.files for path in folder.glob(pattern) if path.is_file()}
    return sorted(path.relative_to(folder) for path in found)


@functools.cache
def quiet() -> None:
    """Let torch take one thread, and Flower keep quiet."""
    torch.set_num_threads(1)
    warnings.simplefilter("error")


def copy(source: Path, target: Path) -> Path:
    """Copy a folder to where another one was."""
    shutil.rmtree(target, ignore_errors=True)
    return Path(shutil.copytree(source, target))
