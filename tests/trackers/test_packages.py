"""wandb, MLflow and trackio themselves, offline: they hold what was logged. make test-all installs them."""

from __future__ import annotations

import json
import os
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lasg import trackers
from lasg.errors import LasgError

STEPS = [(0, {"loss": 2.0}), (5, {"loss": 1.0, "silent": 3.0}), (9, {"loss": 0.5, "silent": 4.0})]
ABOUT = {"algorithm": "lasg-wk2", "eta": 0.1, "until": {"loss": 0.2}}
CODE = """
import json, sys
from lasg.trackers import Target
run = Target.parse(sys.argv[1]).open("a run", json.loads(sys.argv[2]))
for step, values in json.loads(sys.argv[3]):
    run.log(step, values)
run.close()
"""


def need(package: str) -> None:
    pytest.importorskip(package, reason=f"{package} is not installed: make test-all installs it", exc_type=ImportError)


def environment(folder: Path) -> dict[str, str]:
    own = {"WANDB_MODE": "offline", "WANDB_DIR": str(folder), "WANDB_SILENT": "true", "TRACKIO_DIR": str(folder)}
    own |= {"MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db", "HF_HUB_OFFLINE": "1"}
    return {**os.environ, **own, "HOME": str(folder)}


def logged(to: str, folder: Path) -> None:
    """Log in a process of its own: these packages start threads and keep global state."""
    command = [sys.executable, "-c", CODE, to, json.dumps(ABOUT), json.dumps(STEPS)]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env=environment(folder), cwd=folder, timeout=120
    )
    assert done.returncode == 0, done.stderr


def wandb_records(data: bytes) -> Iterator[bytes]:
    """Read wandb's file: LevelDB's log format, 32 KiB blocks of fragments, behind a header of 7 bytes."""
    at, whole = 7, b""
    while at + 7 <= len(data):
        room = 32768 - at % 32768
        if room < 7:
            at += room
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in {1, 4}:  # whole, or the last part
            yield whole
            whole = b""


def test_wandb_has_every_step_offline(tmp_path: Path) -> None:
    need("wandb")
    logged("wandb=mine", tmp_path)
    from wandb.proto import wandb_internal_pb2 as records

    (path,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    found, names = [], []
    for data in wandb_records(path.read_bytes()):
        record = records.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            found.append((items["_step"], {key: items[key] for key in ("loss", "silent") if key in items}))
        if record.WhichOneof("record_type") == "run":
            names.append((record.run.project, record.run.display_name))
    assert found == STEPS
    assert names[0] == ("mine", "a run")


def test_mlflow_has_every_step_and_the_settings(tmp_path: Path) -> None:
    need("mlflow")
    logged("mlflow=mine", tmp_path)
    logged("mlflow=mine", tmp_path)
    with sqlite3.connect(tmp_path / "mlflow.db") as base:
        runs = base.execute("select run_uuid, name, status from runs").fetchall()
        assert [row[1:] for row in runs] == [("a run", "FINISHED")] * 2
        rows = base.execute("select step, key, value from metrics where run_uuid = ?", runs[0][:1]).fetchall()
        params = dict(base.execute("select key, value from params where run_uuid = ?", runs[0][:1]).fetchall())
        assert base.execute("select count(*) from experiments where name = 'mine'").fetchone() == (1,)
    base.close()
    assert sorted(rows) == sorted((step, key, value) for step, values in STEPS for key, value in values.items())
    assert params == {"algorithm": "lasg-wk2", "eta": "0.1", "until": "{'loss': 0.2}"}


def test_trackio_has_every_step(tmp_path: Path) -> None:
    need("trackio")
    logged("trackio=mine", tmp_path)
    (path,) = tmp_path.glob("mine*.db")
    with sqlite3.connect(path) as base:
        rows = base.execute("select step, metrics from metrics where run_name = 'a run' order by step").fetchall()
    base.close()
    assert [(step, json.loads(text)) for step, text in rows] == STEPS


def test_a_command_tracks_every_run_in_each_of_them(tmp_path: Path) -> None:
    for package in ("wandb", "mlflow", "trackio"):
        need(package)
    command = [sys.executable, "-m", "lasg", "compare", "breast-cancer", "-a", "sgd,lasg-wk2", "--seeds", "1"]
    command += ["--until", "iterations=20", "-j", "2"]
    for to in ("wandb=mine", "mlflow=mine", "trackio=mine", "csv=log.csv", "tensorboard=tb"):
        command += ["--track", to]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env=environment(tmp_path), cwd=tmp_path, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))) == 2
    with sqlite3.connect(tmp_path / "mlflow.db") as base:
        names = {name for (name,) in base.execute("select name from runs")}
        loss = base.execute("select count(*) from metrics where key = 'loss'").fetchone()[0]
    base.close()
    assert (
        names == {path.name for path in (tmp_path / "runs").iterdir()} == {p.name for p in (tmp_path / "tb").iterdir()}
    )
    assert loss == len((tmp_path / "log.csv").read_text().splitlines()) - 1
    with sqlite3.connect(next(iter(tmp_path.glob("mine*.db")))) as base:
        assert {name for (name,) in base.execute("select distinct run_name from metrics")} == names
    base.close()


@pytest.mark.parametrize("kind", ["wandb", "mlflow", "trackio"])
def test_without_the_package_the_install_line_is_said(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, kind, None)
    with pytest.raises(LasgError, match=rf"{kind} is not installed, .* pip install 'lasg\[{kind}\]'"):
        trackers.Target.parse(kind)


def test_wandb_without_a_login_says_the_offline_mode_in_one_line(tmp_path: Path) -> None:
    need("wandb")
    own = {**environment(tmp_path), "WANDB_MODE": "online", "WANDB_BASE_URL": "http://127.0.0.1:9"}
    command = [sys.executable, "-m", "lasg", "run", "breast-cancer", "-a", "sgd", "--track", "wandb"]
    command += ["--until", "iterations=5"]
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        env=own,
        cwd=tmp_path,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 2
    assert "WANDB_MODE=offline" in done.stderr
    assert "Traceback" not in done.stderr
