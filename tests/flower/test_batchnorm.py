"""BatchNorm and dropout on Flower: the model that is measured and saved is the simulation's, statistics and all."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="needs Flower: pip install 'lasg[flower]'")
pytest.importorskip("sklearn", reason="the data is scikit-learn's")

from safetensors.torch import load_file

from lasg.core.arrays import host
from tests.flower.grid import Inline
from tests.flower.networks import CONFIG, WORKERS, clients, federated, forget, measure, network, simulated, transport


def saved(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "model.safetensors")


def last_accuracy(out: Path) -> float:
    with (out / "trace.csv").open() as file:
        return float(list(csv.DictReader(file))[-1]["accuracy"])


@pytest.mark.parametrize("codec", ["dense", "qsgd8:512"])
def test_a_network_with_batch_norm_and_dropout_reaches_the_simulations_accuracy(codec: str, tmp_path: Path) -> None:
    run, expected = federated(tmp_path, codec=codec), simulated(codec=codec)
    np.testing.assert_allclose(host(run.theta), host(expected.theta), rtol=0, atol=1e-10)
    found, wanted = saved(tmp_path), expected.export()
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-9)
    assert measure(loaded(tmp_path))[1] == last_accuracy(tmp_path) == expected.accuracy()
    assert last_accuracy(tmp_path) > 0.9
    assert float(found["1.running_mean"].abs().max()) > 1
    assert int(found["1.num_batches_tracked"]) == CONFIG["rounds"] * CONFIG["local-steps"]


def loaded(out: Path) -> torch.nn.Module:
    found = network()
    found.load_state_dict(saved(out))
    return found.eval()


def test_a_lazy_run_has_the_simulations_uploads_and_nearly_its_accuracy(tmp_path: Path) -> None:
    run, expected = federated(tmp_path, rule="wk2", c=0.5), simulated(rule="wk2", c=0.5)
    np.testing.assert_allclose(host(run.theta), host(expected.theta), rtol=0, atol=1e-10)
    assert run.ledger.row() == expected.ledger.row()
    assert run.ledger.uploads < 0.8 * CONFIG["rounds"] * WORKERS
    # Statistics travel with uploads: those of a silent worker are some rounds old.
    accuracy = expected.accuracy()
    assert accuracy is not None
    assert last_accuracy(tmp_path) == pytest.approx(accuracy, abs=0.02)


def test_buffers_that_training_does_not_change_do_not_travel(tmp_path: Path) -> None:
    run = federated(tmp_path, rounds=2)
    parameters = 8 * run.theta.shape[-1]
    statistics = 8 * (32 + 32 + 1)
    assert transport(run).members.bytes_up < 2 * WORKERS * (parameters + statistics + 400)


def test_measuring_sees_a_copy_and_leaves_what_is_saved_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federated(tmp_path / "plain", rounds=3)
    modes = []

    def careless(model: Any) -> tuple[float, float]:
        modes.append([part.training for part in model.modules()])
        model.train()
        found = measure(model)
        with torch.no_grad():
            for value in model.parameters():
                value.zero_()
        return found

    monkeypatch.setattr("tests.flower.networks.measure", careless)
    federated(tmp_path / "careless", rounds=3)
    assert not any(map(any, modes))
    for name, value in saved(tmp_path / "plain").items():
        assert torch.equal(value, saved(tmp_path / "careless")[name]), name


def test_a_resumed_server_and_nodes_that_forgot_go_on_with_the_statistics_they_had(tmp_path: Path) -> None:
    federated(tmp_path / "whole")
    config = {**CONFIG, "out": str(tmp_path / "halves")}
    grid = Inline(clients(), WORKERS, config)
    federated(tmp_path / "halves", grid, rounds=12)
    forget(grid)
    federated(tmp_path / "halves", grid, resume=True)
    for name, value in saved(tmp_path / "whole").items():
        torch.testing.assert_close(saved(tmp_path / "halves")[name], value, rtol=0, atol=1e-9)


def test_a_node_that_forgot_unnoticed_asks_for_the_statistics_of_its_last_upload(tmp_path: Path) -> None:
    class Forgetful(Inline):
        rounds = 0

        def answer(self, message: Any, context: Any) -> Any:
            self.rounds += 1
            if self.rounds == 5 * WORKERS:
                forget(self)
            return super().answer(message, context)

    federated(tmp_path / "whole", rounds=8)
    for relay in (True, False):
        out = tmp_path / f"forgetful-{relay}"
        grid = Forgetful(clients(), WORKERS, {**CONFIG, "out": str(out)})
        run = federated(out, grid, rounds=8, relay=relay)
        assert not transport(run).members.refused
        for name, value in saved(tmp_path / "whole").items():
            torch.testing.assert_close(saved(out)[name], value, rtol=0, atol=1e-9)
