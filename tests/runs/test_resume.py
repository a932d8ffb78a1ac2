"""A run that is killed at random moments and continued ends exactly as one that was not."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lasg.runs import runner, store
from tests.runs.samples import same_bytes, small

NUMPY: dict[str, dict[str, Any]] = {
    "laqsg-wk2": {},
    "lasg-wk1": {"evaluate": "geometric"},
    "lasg-pse": {"dtype": "float64"},
    "lasg-ps": {},
    "local-sgd": {"iterations": 600},
}
TORCH: dict[str, dict[str, Any]] = {
    "lag-wk": {"optimizer": "Adam", "optimizer_options": {"betas": [0.8, 0.99]}},
    "lasg-wk2": {
        "optimizer": "SGD",
        "optimizer_options": {"momentum": 0.9},
        "schedule": "CosineAnnealingLR",
        "schedule_options": {"T_max": 500},
    },
}


def without_time(folder: Path) -> dict[str, Any]:
    state = store.read_checkpoint(folder)
    assert state is not None
    assert state.pop("seconds") > 0
    assert state.pop("evaluation_seconds") > 0
    return state


@pytest.mark.parametrize("cases", [NUMPY, TORCH], ids=["closed-form", "torch"])
def test_a_run_killed_at_random_moments_ends_as_one_that_was_not(
    tmp_path: Path, cases: dict[str, dict[str, Any]]
) -> None:
    specs = {name: small(name, **{"iterations": 150, "evaluate": 5, "seed": 7, **more}) for name, more in cases.items()}
    for name, spec in specs.items():
        (tmp_path / f"{name}.toml").write_text(spec.to_toml())
    script = Path(__file__).with_name("killed.py")
    command = [sys.executable, str(script), str(tmp_path), "1", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    for name, counts in json.loads(done.stdout).items():
        assert counts["exit"] == 0, (name, done.stderr)
        assert counts["killed"] >= 3, f"{name}: too few kills to prove anything"
        assert counts["from_checkpoint"] >= 2, f"{name}: too few kills after a checkpoint to prove anything"
    for name, spec in specs.items():
        found, whole = store.read(tmp_path / name), runner.run(spec, tmp_path / "whole" / name)
        assert found.status == whole.status == "done"
        assert list(found.trace) == list(whole.trace)
        for column in whole.trace:
            assert same_bytes(found.trace[column], whole.trace[column]), (name, column)
        assert same_bytes(without_time(found.folder), without_time(whole.folder)), name
        models = [(run.folder / store.MODEL).read_bytes() for run in (found, whole)]
        assert models[0] == models[1], name
        left = {path.name for path in found.folder.iterdir()}
        assert left == {path.name for path in whole.folder.iterdir()}, f"{name}: half-written files were left behind"
