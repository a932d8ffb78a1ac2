"""What a federation of lasg 0.1 left goes on: its server's checkpoint, and nodes that remember nothing usable."""

from __future__ import annotations

import csv
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'lasg[flower]'")
pytest.importorskip("sklearn", reason="the data is scikit-learn's")

import lasg
from lasg.cli.main import main
from lasg.errors import LasgError
from lasg.flower import Settings, storage
from lasg.packing import unpack
from tests.golden.machine import alike, machine
from tests.runs import old_runs
from tests.runs.old_runs import ARCHIVE, ENDED, MACHINE, NODES, ROUNDS, STOPPED, UNFINISHED

TOLD = ("round", "uploads", "uploads_so_far", "bits_up", "gradients", "loss", "accuracy", "who")
"""Of a line in trace.csv: the bytes around an upload are each version's own, and the seconds the machine's."""
Lines = list[dict[str, str]]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fixtures")
    with zipfile.ZipFile(ARCHIVE) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.startswith(("federations/", MACHINE))])
    return folder / "federations"


@pytest.fixture
def same_machine(kept: Path) -> bool:
    return (kept.parent / MACHINE).read_text().strip() == machine()


def lines(folder: Path) -> Lines:
    with (folder / storage.ROUNDS).open(newline="") as file:
        return [{name: line[name] for name in TOLD} for line in csv.DictReader(file)]


def memories(folder: Path) -> list[bytes]:
    return [(folder / f"node-{m}.memory").read_bytes() for m in range(NODES)]


@pytest.fixture
def went_on(kept: Path, tmp_path: Path) -> Callable[..., Path]:
    """Return what lets a server go on, with nodes that have 0.1's memories."""

    def go_on(name: str, *, remembered: bool = True, damaged: bool = False) -> Path:
        folder = shutil.copytree(kept / name / UNFINISHED, tmp_path / "federation")
        if damaged:
            (folder / storage.OLD[0]).write_bytes(b"half")
        with alike():
            old_runs.federate(
                name,
                folder,
                Settings.from_config,
                memories=memories(kept / name) if remembered else None,
                resume=True,
                robust="none",  # as it was then; without it the run goes on, bounded
            )
        return folder

    return go_on


@pytest.mark.parametrize("remembered", [True, False], ids=["memories", "no-memories"])
@pytest.mark.parametrize("name", old_runs.FEDERATIONS)
def test_a_server_goes_on_as_with_nodes_that_forgot_everything(
    name: str, remembered: bool, kept: Path, went_on: Callable[..., Path], same_machine: bool
) -> None:
    folder = went_on(name, remembered=remembered)
    found, expected = lines(folder), lines(kept / name / ENDED)
    assert [line["round"] for line in found] == [str(k + 1) for k in range(ROUNDS)]
    assert found[:STOPPED] == lines(kept / name / UNFINISHED)[:STOPPED]
    if name != "asked":  # there the server asks whom it wants
        assert found[STOPPED]["uploads"] == str(NODES)  # nodes upload once more, in full
    if not same_machine:
        pytest.skip("it went on; this machine's arithmetic has other last digits than the fixtures'")
    assert found == expected
    models = [(path / "model.safetensors").read_bytes() for path in (folder, kept / name / ENDED)]
    assert models[0] == models[1]


def test_the_checkpoint_before_serves_where_the_last_is_damaged(went_on: Callable[..., Path]) -> None:
    folder = went_on("lazy", damaged=True)
    assert len(lines(folder)) == ROUNDS


@pytest.mark.parametrize("name", ["lazy", "asked"])
def test_a_server_that_went_on_leaves_a_stored_run_that_is_read_and_reported(
    name: str, went_on: Callable[..., Path], tmp_path: Path
) -> None:
    folder = went_on(name)
    run = lasg.read(folder)
    assert run.status == "done"
    assert run.uploads.shape == (ROUNDS, NODES)
    told: Any = [[str(m) in line["who"].split() for m in range(NODES)] for line in lines(folder)]
    assert run.uploads.tolist() == told
    assert run.uploads.sum() == run.trace["uploads"][-1]
    assert run.trace["rounds"].tolist() == list(range(STOPPED + 1, ROUNDS + 1))
    page = tmp_path / "report.html"
    assert main(["report", str(folder), "-o", str(page)]) == 0


def test_a_server_that_went_on_is_resumed_from_its_own_checkpoint(kept: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(kept / "lazy" / UNFINISHED, tmp_path / "federation")
    with alike():
        there = old_runs.federate("lazy", folder, Settings.from_config, rounds=STOPPED + 5, resume=True)
        old_runs.federate("lazy", folder, Settings.from_config, memories=there, resume=True)
    assert lasg.read(folder).uploads.shape == (ROUNDS, NODES)


def test_a_memory_of_a_node_has_the_form_of_that_version(kept: Path) -> None:
    for name in old_runs.FEDERATIONS:
        for memory in memories(kept / name):
            assert "contributed" in unpack(memory, "a memory")["workers"]


def test_a_server_with_other_settings_is_refused(kept: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(kept / "lazy" / UNFINISHED, tmp_path / "federation")
    with pytest.raises(LasgError, match="is of a run with another D"):
        old_runs.federate("lazy", folder, Settings.from_config, resume=True, D=100)
