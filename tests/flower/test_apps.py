"""On Flower's own messages, state and grid: the same uploads and models as simulated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'lasg[flower]'")

from flwr.app import Context

from lasg.core.algorithms import ALGORITHMS, algorithm
from lasg.core.arrays import host
from lasg.core.optimizers import ClosedFormSGD
from lasg.core.training import Hosted, Training
from lasg.errors import LasgError
from lasg.flower import Settings, apps, client_app
from lasg.flower.records import GridCarrier
from lasg.transports.federation import Federation
from tests.flower.grid import Inline
from tests.transports.test_federation import STEP, advanced, simulated
from tests.transports.test_ranks import SIZES, M, regression


class Own(Hosted):
    """One worker's part of a regression."""

    workers = 1

    def __init__(self, problem: Any, m: int) -> None:
        super().__init__(problem, np.array([m]))
        self.samples, self.start = SIZES[m], problem.start


def config(name: str) -> dict[str, Any]:
    chosen = algorithm(name)
    bits = chosen.codec(8, None)
    codec = "dense" if type(bits).__name__ == "Dense" else "qsgd8"
    steps = chosen.local_steps(3)
    return {
        "workers": M,
        "rule": chosen.rule.name,
        "codec": codec,
        "local-steps": steps,
        "eta": 0.1,
        "c": 0.3,
        "D": 10,
        "robust": "none",
    }


def federated(name: str, dtype: str = "float64") -> tuple[Training, Federation]:
    problem = regression(dtype)
    values = config(name)
    settings = Settings.from_config(values)
    app = client_app(lambda context, worker: Own(problem, worker))
    carrier = GridCarrier(Inline(app, M, values), 60.0, 60.0)
    federation = Federation(carrier, settings.names, away_after=settings.D)
    run = Training(
        None,
        ClosedFormSGD(problem.start(), STEP),
        settings.stages,
        settings.laziness,
        federation,
        seed=settings.seed,
        smoothness=problem.smoothness("paper") if settings.rule == "ps" else None,
    )
    return run, federation


@pytest.mark.parametrize("name", ALGORITHMS)
def test_on_flowers_grid_uploads_and_model_are_the_simulations(name: str) -> None:
    (run, federation), expected = federated(name), simulated(name)
    federation.gather(10)
    np.testing.assert_array_equal(advanced(run, 200), advanced(expected, 200))
    np.testing.assert_allclose(host(run.theta), host(expected.theta), rtol=0, atol=1e-10)
    assert run.ledger.row() == expected.ledger.row()
    assert not federation.members.refused


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if "q" not in name])
def test_in_single_precision_the_model_is_the_simulations_to_a_hundred_thousandth(name: str) -> None:
    (run, federation), expected = federated(name, "float32"), simulated(name, "float32")
    federation.gather(10)
    np.testing.assert_array_equal(advanced(run, 50), advanced(expected, 50))
    np.testing.assert_allclose(host(run.theta), host(expected.theta), rtol=0, atol=1e-5)


def secaggplus_mod(message: Any, context: Context, call_next: Any) -> Any:
    return call_next(message, context)


def test_secure_aggregation_is_refused_with_the_reason() -> None:
    with pytest.raises(LasgError, match="only sums of what comes in one round"):
        client_app(lambda context, worker: Own(regression("float64"), worker), mods=[secaggplus_mod])


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "say how many workers"),
        ({"workers": 2, "rule": "wk3"}, "unknown rule 'wk3'"),
        ({"workers": "2"}, "workers must be a int"),
        ({"workers": 2, "eta": 0.0}, "eta must be a positive number"),
        ({"workers": 2, "codec": "zip"}, "zip"),
        ({"workers": 2, "rounds": 0}, "rounds must be at least 1"),
    ],
)
def test_wrong_settings_are_refused_with_what_is_wrong(values: dict[str, Any], said: str) -> None:
    with pytest.raises(LasgError, match=said):
        Settings.from_config(values)


def test_names_stay_with_nodes_but_in_the_simulation_engine_whose_nodes_are_new_in_every_run() -> None:
    grids: dict[str, Any] = {"node": object(), "key": object.__new__(Inline)}
    for bind, grid in grids.items():
        assert apps._admission(grid, Settings(workers=2)).bind == bind
        assert apps._admission(grid, Settings(workers=2, bind="node")).bind == "node"
