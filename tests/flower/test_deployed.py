"""Real processes: a SuperLink and SuperNodes with TLS and keys, started and stopped here."""

from __future__ import annotations

import contextlib
import csv
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'lasg[flower]'")
pytest.importorskip("sklearn", reason="the app's data is scikit-learn's")

from deployment import Deployment
from safetensors.numpy import load_file

from lasg.flower import keys, new
from tests.flower import churn
from tests.flower.test_new import app, trained  # noqa: F401

NODES, ROUNDS = 2, 2
CONFIG: dict[str, Any] = {
    "rounds": ROUNDS,
    "local_steps": 5,
    "rule": "wk2",
    "codec": "qsgd8:512",
    "wait": 120.0,
    "deadline": 60.0,
}


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("deployed")
    new.create(folder / "lazy")
    with Deployment(folder, NODES, folder / "lazy") as found:
        found.superlink()
        found.register()
        for name in found.nodes:
            found.supernode(name)
        yield found


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "trace.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_run_over_tls_with_keys_ends_with_the_model_that_one_process_finds(
    deployed: Deployment,
    app: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    deployed.run(**CONFIG)
    model = deployed.folder / "out" / "model.safetensors"
    deployed.until(model.exists, 180, "the run has not ended")
    trained(app, tmp_path, workers=NODES, **CONFIG)
    expected = load_file(tmp_path / "model.safetensors")
    for name, value in load_file(model).items():
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=1e-5)
    counted = ("round", "uploads", "uploads_so_far", "bits_up", "gradients")
    found, wanted = rows(deployed.folder / "out"), rows(tmp_path)
    assert [[row[name] for name in counted] for row in found] == [[row[name] for name in counted] for row in wanted]


def test_a_node_without_a_registered_key_with_a_wrong_certificate_or_without_tls_is_refused(
    deployed: Deployment, tmp_path: Path
) -> None:
    keys.create(tmp_path / "other", ["127.0.0.1"], ["any"])
    wrong = ("--root-certificates", str(tmp_path / "other" / "ca.crt"), "--max-retries", "1")
    refused = {
        "an unknown key": deployed.supernode("0", key="stranger"),
        "another CA": deployed.supernode("0", key="1", security=wrong),
        "plain HTTP": deployed.supernode("0", key="1", security=("--insecure", "--max-retries", "1")),
    }
    for why, name in refused.items():
        process = deployed.running[name]
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        assert process.poll() is not None, f"the node with {why} was not refused"
        assert process.returncode != 0, why
        assert "Starting" not in deployed.said(name).partition("rror")[2], why


def test_nodes_serverapp_and_superlink_can_be_killed_and_the_run_goes_on_where_it_was(tmp_path: Path) -> None:
    federation = churn.Federation(tmp_path, 2, deadline=60.0)
    with federation.deployed:
        federation.start()
        federation.until(1)
        federation.config["deadline"] = 20.0  # so long the dead are waited for
        federation.kill_server("ServerApp")
        federation.until_answered(2)
        federation.kill_node("0")
        federation.kill_server("SuperLink")
        federation.until_answered(3)
        federation.deployed.kill("superlink")
    found = churn.checked(tmp_path, 2)
    assert found["lives"] == 3
    assert found["refused"] >= 1
