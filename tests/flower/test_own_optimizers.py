"""Nodes with optimizers of their own on Flower's grid: as simulated, also when the nodes were started again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'lasg[flower]'")
pytest.importorskip("sklearn", reason="the data is scikit-learn's")

from lasg.core.arrays import host
from lasg.errors import LasgError
from lasg.flower import Settings
from tests.flower.grid import Inline
from tests.flower.networks import CONFIG, WORKERS, clients, federated, simulated, transport

ROUNDS = 4
ADAMW = {"optimizer": "AdamW", "eta": 0.01, "optimizer-options.weight_decay": 0.1}
CHOICES: dict[str, dict[str, Any]] = {
    "sparseloco": {"algorithm": "sparseloco", **ADAMW, "outer": "SGD", "outer-eta": 0.7, "outer-options.momentum": 0.5},
    "lasg-local": {"algorithm": "lasg-local", **ADAMW, "inner-memory": "reset", "outer-eta": 0.5},
    "fedadam": {"algorithm": "fedadam", "eta": 0.05},
    "always+dense": {"optimizer": "Adam", "eta": 0.01, "schedule": "ExponentialLR", "schedule-options.gamma": 0.9},
}


def settings(name: str) -> dict[str, Any]:
    usual = {} if "algorithm" not in CHOICES[name] else {"rule": Settings.rule, "codec": Settings.codec}
    return {**usual, **CHOICES[name], "local-steps": 1 if name == "always+dense" else 3, "rounds": ROUNDS}


@pytest.mark.parametrize("name", CHOICES)
def test_nodes_with_optimizers_of_their_own_do_what_they_do_simulated(name: str, tmp_path: Path) -> None:
    expected = simulated(**settings(name))
    found = federated(tmp_path, **settings(name))
    np.testing.assert_allclose(host(found.theta), host(expected.theta), rtol=0, atol=1e-9)
    assert not transport(found).members.refused
    assert found.ledger.uploads == WORKERS * ROUNDS


def test_told_what_was_said_they_receive_a_fraction_of_the_models(tmp_path: Path) -> None:
    down = {}
    for relay in (True, False):
        run = federated(tmp_path / str(relay), relay=relay, **settings("sparseloco"))
        down[relay] = transport(run).members.bytes_down
    assert down[True] < 0.4 * down[False]


def test_a_node_that_is_resumed_goes_on_with_its_own_optimizer_and_its_copy_of_the_servers(tmp_path: Path) -> None:
    """Its memory is Flower's, and the server's a checkpoint: together they go on as if nobody had stopped."""
    whole = federated(tmp_path / "whole", **settings("sparseloco"))
    grid = Inline(clients(), WORKERS, {**CONFIG, **settings("sparseloco")})
    federated(tmp_path / "halves", grid, **{**settings("sparseloco"), "rounds": 2})
    again = federated(tmp_path / "halves", grid, **settings("sparseloco"), resume=True)
    assert host(again.theta).tobytes() == host(whole.theta).tobytes()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"algorithm": "laqsg-wk2", "outer": "Adam"}, "outer is for algorithms whose workers have an optimizer"),
        ({"algorithm": "diloco", "inner-memory": "lost"}, "inner_memory"),
        ({"algorithm": "diloco", "drift": 2.0}, "drift"),
        ({"algorithm": "diloco", "outer-eta": "0.5"}, "outer-eta must be a float"),
        ({"algorithm": "diloco", "optimizer-options": 0.9}, "optimizer-options is a table"),
    ],
)
def test_wrong_settings_of_optimizers_are_refused_with_what_is_wrong(values: dict[str, Any], said: str) -> None:
    with pytest.raises(LasgError, match=said):
        Settings.from_config({"workers": 2, **values})
