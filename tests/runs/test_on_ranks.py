"""Specs on the ranks of torchrun: stored as simulated ones are, and the same after kills, hangs and Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from lasg.cli import theory_note
from lasg.runs import on_ranks as ranks
from lasg.runs import store
from tests.runs.torchrun import RANKS, ended, launched, model, only_run, spec_file

ALGORITHM = "laqsg-pse"
"""A rule with a memory on the server, and a codec with chance in it: of what a rank can forget, it has the most."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> store.Run:
    folder = tmp_path_factory.mktemp("whole")
    text = ended(launched(folder / "runs", spec_file(folder, ALGORITHM)))
    assert "bytes over the links" in text
    assert text.count("on digits, seed 0: done") == 1  # rank 0 alone prints
    return only_run(folder / "runs")


def test_a_run_on_ranks_is_stored_as_a_simulated_one_is(undisturbed: store.Run, tmp_path: Path) -> None:
    from lasg.runs.runner import obtain

    run, simulated = undisturbed, obtain(undisturbed.spec, tmp_path)
    assert run.status == "done"
    assert run.meta["engine"] == "distributed"
    theory_note.annotate([simulated])
    assert run.meta["theory"] == simulated.meta["theory"]
    assert np.array(run.meta["bytes_sent"]).shape == (RANKS, RANKS)
    np.testing.assert_array_equal(run.uploads, simulated.uploads)
    for name, values in simulated.trace.items():
        np.testing.assert_allclose(run.trace[name], values, rtol=1e-8, atol=1e-10, err_msg=name)
    assert not list(run.folder.glob("checkpoint-*"))


@pytest.mark.parametrize("kill", ["1:round:600", "0:checkpoint.json:2"])
def test_after_kill_9_of_a_rank_the_run_ends_with_the_same_bits(
    kill: str, undisturbed: store.Run, tmp_path: Path
) -> None:
    text = ended(launched(tmp_path / "runs", spec_file(tmp_path, ALGORITHM), restarts=1, KILL=kill))
    assert f"rank {kill[0]} dies" in text, text  # the kill was real
    run = only_run(tmp_path / "runs")
    assert run.status == "done", text
    for name, values in model(undisturbed).items():
        np.testing.assert_array_equal(model(run)[name], values)
    for name, values in undisturbed.trace.items():
        np.testing.assert_array_equal(run.trace[name], values, err_msg=name)


def test_a_hung_rank_is_named_by_the_others_after_the_timeout(tmp_path: Path) -> None:
    text = ended(launched(tmp_path / "runs", spec_file(tmp_path, "lasg-wk2"), "--timeout", "3", HANG="1:50"))
    assert "lost rank 1 while flags were exchanged" in text


def test_control_c_leaves_a_checkpoint_and_no_process(undisturbed: store.Run, tmp_path: Path) -> None:
    spec = spec_file(tmp_path, ALGORITHM)
    process = launched(tmp_path / "runs", spec, EVERY="1000", PAUSE="1:300")  # or it might be over too soon
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not list(tmp_path.glob("runs/*/meta.json")):
        time.sleep(0.1)
    time.sleep(1)
    os.killpg(process.pid, signal.SIGINT)
    ended(process, 40)
    (folder,) = (tmp_path / "runs").iterdir()
    assert (folder / ranks.MANIFEST).is_file()
    assert not subprocess.run(["pgrep", "-g", str(process.pid)], check=False, capture_output=True).stdout
    text = ended(launched(tmp_path / "runs", spec))
    run = only_run(tmp_path / "runs")
    assert run.status == "done", text
    for name, values in model(undisturbed).items():
        np.testing.assert_array_equal(model(run)[name], values)


def test_another_number_of_ranks_is_another_run(tmp_path: Path) -> None:
    from lasg.runs.tasks import task

    spec = task("digits").spec("sgd")
    assert ranks.folder_for(spec, tmp_path, 2) != ranks.folder_for(spec, tmp_path, 3)
