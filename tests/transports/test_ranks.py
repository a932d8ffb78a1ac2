"""Real ranks do what the simulation does: the same uploads in every round, and the same model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from lasg.core.algorithms import ALGORITHMS, Stages, algorithm
from lasg.core.arrays import host
from lasg.core.codecs import QSGD, Codec
from lasg.core.optimizers import ClosedFormSGD, Constant
from lasg.core.server import Laziness
from lasg.core.training import Training
from lasg.core.transport import Problem
from lasg.errors import LasgError
from lasg.problems.regression import Regression
from lasg.transports.ranks import Ranks
from lasg.transports.routes import assign_workers
from tests.transports.ranks import on_ranks

SIZES = (30, 8, 50, 12, 20, 9)
M, ROUNDS = len(SIZES), 60
SETTINGS = ("auto", "scatter", "hub")
LONG = [("laqsg-wk2", "hub"), ("laqsg-pse", "auto")]
FAILING = ("sgd", "local-sgd", "qsgd", "lasg-wk2", "lasg-pse")


def regression(dtype: str, classes: int = 3, kind: type[Regression] = Regression) -> Regression:
    rng = np.random.default_rng(1)
    labels = np.sort(rng.integers(0, classes, sum(SIZES)))
    features = rng.normal(size=(sum(SIZES), 6)) + 2 * np.eye(6)[labels]
    shards = np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1])
    return kind(features, labels, shards, classes=classes, batch=0.3, seed=0, lam=1e-3, dtype=dtype)


class Failing(Regression):
    """Worker 2 has no finite gradient in some rounds, and in round 7 nobody has one."""

    def gradients(self, iteration: int, points: Any, rows: Any) -> list[Any]:
        found = super().gradients(iteration, points, rows)
        who = np.arange(M) if rows is None else rows
        bad = (who == 2) & (iteration % 5 == 3) | (iteration == 7)
        return [np.where(bad[:, None], np.nan, grad) for grad in found]


def network(dtype: Any) -> Problem:
    import torch
    from torch.nn.functional import cross_entropy

    from lasg.problems.module import ModuleProblem

    torch.manual_seed(3)
    module = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh(), torch.nn.Dropout(0.2), torch.nn.Linear(8, 3)
    )
    rng = np.random.default_rng(1)
    labels = np.sort(rng.integers(0, 3, sum(SIZES)))
    features = rng.normal(size=(sum(SIZES), 6))
    shards = np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1])
    return ModuleProblem(module, cross_entropy, (features, labels), shards, batch=0.3, dtype=dtype)


def text(dtype: Any) -> Problem:
    """A small language model on windows of random characters."""
    import torch

    from lasg.problems.models import Transformer, sequence_cross_entropy
    from lasg.problems.module import ModuleProblem

    torch.manual_seed(3)
    windows = np.random.default_rng(1).integers(0, 5, (sum(SIZES), 7))
    pair = windows[:, :-1], windows[:, 1:]
    shards = np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1])
    module = Transformer((6,), 5, width=4, layers=1, heads=2)
    return ModuleProblem(module, sequence_cross_entropy, pair, shards, batch=0.3, test=pair, dtype=dtype)


def stages_of(name: str, codec: Codec | None = None) -> Stages:
    stages = algorithm(name).stages(bits=8, H=3)
    return stages if codec is None else replace(stages, codec=codec)


def engine(name: str, problem: Any, distributed: bool, codec: Codec | None = None, **options: Any) -> Training:
    stages = stages_of(name, codec)
    return Training(
        problem,
        ClosedFormSGD(problem.start(), Constant(0.1)),
        stages,
        Laziness(workers=M, D=10, c=0.3),
        Ranks(**options) if distributed else None,
        smoothness=problem.smoothness("paper") if name == "lasg-ps" or name == "laqsg-ps" else None,
    )


def advanced(run: Training, rounds: int = ROUNDS) -> tuple[npt.NDArray[np.bool_], npt.NDArray[Any], tuple[int, ...]]:
    uploaded = np.array([run.step().uploaded for _ in range(rounds)])
    return uploaded, host(run.theta).copy(), run.ledger.row()


def every_algorithm() -> dict[tuple[str, str], Any]:
    """On a rank: all twelve, by both exchanges."""
    problem = regression("float64")
    cases = [(name, way) for name in ALGORITHMS for way in SETTINGS]
    found = {(name, way): advanced(engine(name, problem, True, exchange=way)) for name, way in cases}
    # Messages so long that they go to the relay alone, or are summed before they leave.
    for name, way in LONG:
        found[name, f"{way}, long"] = advanced(engine(name, problem, True, QSGD(bits=16, bucket=1), exchange=way))
    failing = regression("float64", kind=Failing)
    for name in FAILING:
        found[name, "failing"] = advanced(engine(name, failing, True))
    return found


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_all_twelve_upload_in_the_same_rounds_as_simulated_and_reach_the_same_model(ranks: int) -> None:
    problem = regression("float64")
    found = on_ranks(ranks, every_algorithm)
    for name in ALGORITHMS:
        uploaded, theta, ledger = advanced(engine(name, problem, False))
        for way in SETTINGS:
            for rank in range(ranks):
                mine, model, counts = found[rank][name, way]
                np.testing.assert_array_equal(mine, uploaded, err_msg=f"{name}, {way}, rank {rank}")
                np.testing.assert_allclose(model, theta, rtol=0, atol=1e-10, err_msg=f"{name}, {way}")
                np.testing.assert_array_equal(model, found[0][name, way][1], err_msg=f"{name}, {way}, rank {rank}")
                assert counts == ledger, (name, way, rank)
    for name, way in LONG:
        uploaded, theta, ledger = advanced(engine(name, problem, False, QSGD(bits=16, bucket=1)))
        for rank in range(ranks):
            mine, model, counts = found[rank][name, f"{way}, long"]
            np.testing.assert_array_equal(mine, uploaded)
            np.testing.assert_allclose(model, theta, rtol=0, atol=1e-10)
            assert counts == ledger
    for name in FAILING:
        uploaded, theta, ledger = advanced(engine(name, regression("float64", kind=Failing), False))
        assert not uploaded[7].any() or name == "local-sgd"
        for rank in range(ranks):
            mine, model, counts = found[rank][name, "failing"]
            np.testing.assert_array_equal(mine, uploaded, err_msg=f"{name}, failing")
            np.testing.assert_allclose(model, theta, rtol=0, atol=1e-10, err_msg=f"{name}, failing")
            assert counts == ledger


def test_a_rank_without_a_worker_is_refused() -> None:
    assert assign_workers(6, 4).tolist() == [0, 0, 1, 2, 2, 3]
    with pytest.raises(LasgError, match="3 ranks for 2 workers"):
        assign_workers(2, 3)


NETWORKS = {"lasg-wk2": network, "laqsg-pse": network, "local-sgd": network, "laqsg-wk2": text}


def networks() -> dict[str, Any]:
    """On a rank: a network with BatchNorm and dropout, measured with the statistics of all workers; a transformer."""
    found = {}
    for name, make in NETWORKS.items():
        run = engine(name, make("float64"), True)
        uploads, theta, _ = advanced(run, 20)
        model = {key: host(value).copy() for key, value in run.export().items()}
        found[name] = uploads, theta, run.measure(), model
    return found


def test_networks_on_ranks_upload_measure_and_export_as_simulated_ones_do() -> None:
    ranks = on_ranks(2, networks)
    for name in ranks[0]:
        run = engine(name, NETWORKS[name]("float64"), False)
        uploads, theta, _ = advanced(run, 20)
        expected = run.measure()
        for found in ranks:
            np.testing.assert_array_equal(found[name][0], uploads)
            np.testing.assert_allclose(found[name][1], theta, rtol=0, atol=1e-10)
            assert found[name][2][0] == pytest.approx(expected[0], rel=1e-10)
            assert found[name][2][1] == expected[1]
        for key, value in run.export().items():
            np.testing.assert_allclose(ranks[0][name][3][key], host(value), atol=1e-10, err_msg=f"{name}, {key}")
