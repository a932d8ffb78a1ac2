"""The simulation: reproducible, and its ledger counts what a star network would send."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from lasg.core.algorithms import ALGORITHMS, algorithm
from lasg.core.codecs import QSGD
from lasg.core.ledger import COUNTS, Ledger
from lasg.core.optimizers import ClosedFormSGD, Constant, Optimizer, TorchOptimizer
from lasg.core.rules import RULES
from lasg.core.server import Laziness
from lasg.core.training import Training
from lasg.problems.regression import Regression
from lasg.transports.local import simulate

SIZES = (30, 8, 50, 12)
M, D, H, BITS = len(SIZES), 8, 4, 4
each_algorithm = pytest.mark.parametrize("name", ALGORITHMS)
each_dtype = pytest.mark.parametrize("dtype", ["float32", "float64"])


def make(
    name: str,
    *,
    dtype: str = "float64",
    seed: int = 0,
    classes: int = 2,
    optimizer: Optimizer | None = None,
    bucket: int | None = None,
    start: Any = "ask-twice",
) -> Training:
    rng = np.random.default_rng(1)
    labels = np.sort(rng.integers(0, classes, sum(SIZES)))
    features = rng.normal(size=(sum(SIZES), 6)) + 2 * np.eye(6)[labels] * (1 - 2 * (labels == 0))[:, None]
    shards = np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1])
    problem = Regression(features, labels, shards, classes=classes, batch=0.1, seed=seed, dtype=dtype)
    row = algorithm(name)
    return simulate(
        problem,
        optimizer or ClosedFormSGD(np.zeros(problem.p, dtype), Constant(0.2)),
        rule=row.rule,
        codec=row.codec(BITS, bucket),
        laziness=Laziness(workers=M, D=D, start=start),
        local_steps=row.local_steps(H),
        seed=seed,
        smoothness=problem.smoothness(),
    )


def play(simulation: Training, rounds: int) -> npt.NDArray[Any]:
    return np.array([simulation.step().uploaded for _ in range(rounds)])


# -- reproducible ----------------------------------------------------------------------------------------------


@each_algorithm
@each_dtype
def test_the_same_seed_gives_the_same_run_bit_for_bit(name: str, dtype: str) -> None:
    one, other = make(name, dtype=dtype, seed=3), make(name, dtype=dtype, seed=3)
    for _ in range(60):
        mine, theirs = one.step(), other.step()
        assert mine.threshold == theirs.threshold
        np.testing.assert_array_equal(mine.uploaded, theirs.uploaded)
        assert one.theta.tobytes() == other.theta.tobytes()
    assert one.ledger == other.ledger


@each_algorithm
def test_another_seed_gives_another_run(name: str) -> None:
    one, other = make(name, seed=3), make(name, seed=4)
    play(one, 5)
    play(other, 5)
    assert not np.array_equal(one.theta, other.theta)


def test_the_quantiser_has_its_own_noise_for_every_seed() -> None:
    """Two seeds on the same minibatches still quantise differently."""
    one, other = make("qsgd", seed=3), make("qsgd", seed=3)
    assert other.workers is not None
    other.workers.seed = 4
    one.step()
    other.step()
    assert not np.array_equal(one.theta, other.theta)


@each_algorithm
@each_dtype
@pytest.mark.parametrize("k", [0, 1, 13])
def test_a_simulation_resumes_bit_for_bit(name: str, dtype: str, k: int) -> None:
    whole, resumed = make(name, dtype=dtype), make(name, dtype=dtype)
    play(whole, k)
    resumed.restore(copy.deepcopy(whole.state()))
    assert resumed.ledger == whole.ledger
    np.testing.assert_array_equal(play(whole, 30), play(resumed, 30))
    assert whole.theta.tobytes() == resumed.theta.tobytes()
    assert resumed.ledger == whole.ledger


def test_a_state_that_was_taken_does_not_change_when_the_run_goes_on() -> None:
    simulation = make("lasg-wk2")
    play(simulation, 3)
    taken = simulation.state()
    kept = copy.deepcopy(taken)
    play(simulation, 8)
    np.testing.assert_equal(taken, kept)


def test_a_simulation_is_an_iterator_of_rounds() -> None:
    simulation = make("lasg-wk2")
    for finished in simulation:
        assert finished.k == simulation.ledger.rounds - 1
        if finished.k == 4:
            break
    assert simulation.ledger.rounds == 5


# -- the ledger ------------------------------------------------------------------------------------------------


@each_algorithm
@each_dtype
@pytest.mark.parametrize("bucket", [None, 4])
@pytest.mark.parametrize("classes", [2, 3])
def test_the_ledger_keeps_its_identities(name: str, dtype: str, bucket: int | None, classes: int) -> None:
    simulation = make(name, dtype=dtype, bucket=bucket, classes=classes)
    rounds, row = 50, algorithm(name)
    uploaded = play(simulation, rounds)
    assert isinstance(simulation.problem, Regression)
    ledger, p = simulation.ledger, simulation.problem.p
    entry = 32 if dtype == "float32" else 64
    buckets = 1 if bucket is None else -(-p // bucket)
    message = 8 * -(-BITS * p // 8) + 32 * buckets if row.quantised else entry * p
    assert ledger.rounds == rounds
    assert ledger.iterations == rounds * (H if row.local else 1)
    assert ledger.uploads == uploaded.sum()
    assert ledger.bits_up == ledger.uploads * message
    assert ledger.downloads == (ledger.uploads if row.rule.where == "server" else M * rounds)
    assert ledger.bits_down == ledger.downloads * entry * p
    lazy_worker = row.rule.name in {"lag", "wk1", "wk2"}
    estimates = 32 * ledger.uploads if row.rule.name == "pse" else 0
    assert ledger.control_bits == (M * rounds if lazy_worker else 0) + estimates


@each_algorithm
def test_gradient_evaluations_follow_from_who_was_asked(name: str) -> None:
    simulation, rounds = make(name), 50
    uploaded = play(simulation, rounds)
    snapshots = -(-rounds // D)
    expected = {
        "always": M * rounds * (H if name == "local-sgd" else 1),
        "lag": M * rounds,
        "wk1": M * (2 * rounds - snapshots),
        "wk2": M * (2 * rounds - 1),
        "ps": uploaded.sum(),
        "pse": 2 * uploaded.sum() - M,
    }
    assert simulation.ledger.gradients == expected[algorithm(name).rule.name]


def test_the_ledgers_row_is_in_the_order_of_its_counts() -> None:
    ledger = Ledger(rounds=1, iterations=2, uploads=3, downloads=4, bits_up=5, bits_down=6, control_bits=7)
    assert dict(zip(COUNTS, ledger.row(), strict=True)) == {
        "rounds": 1,
        "iterations": 2,
        "uploads": 3,
        "downloads": 4,
        "bits_up": 5,
        "bits_down": 6,
        "control_bits": 7,
        "gradients": 0,
    }


# -- what a round reports --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, row in ALGORITHMS.items() if row.rule.left is not None])
def test_a_round_reports_both_sides_of_the_rule_and_the_staleness(name: str) -> None:
    simulation = make(name)
    tau = np.ones(M, int)
    for k in range(40):
        found = simulation.step()
        np.testing.assert_array_equal(found.tau, tau)
        if found.left is not None:
            lazy = found.uploaded & (tau < D)
            assert (found.left[lazy] > found.threshold).all()
            assert (found.left[~found.uploaded] <= found.threshold).all()
        else:
            assert found.uploaded.all()
        tau = np.where(found.uploaded, 1, tau + 1)
        assert found.k == k


@each_algorithm
def test_training_lowers_the_loss(name: str) -> None:
    simulation = make(name, dtype="float32")
    problem = simulation.problem
    assert isinstance(problem, Regression)
    before = problem.loss(simulation.theta)
    play(simulation, 200)
    assert problem.loss(simulation.theta) < 0.9 * before


@pytest.mark.parametrize("rule", RULES)
def test_any_rule_runs_with_quantised_local_steps_under_adam(rule: str) -> None:
    optimizer = TorchOptimizer(np.zeros(6, np.float32), lambda p: torch.optim.Adam(p, lr=0.05))
    simulation = make(f"{rule}+qsgd8:4+H3", dtype="float32", optimizer=optimizer)
    problem = simulation.problem
    assert isinstance(problem, Regression)
    assert simulation.stages.codec == QSGD(bits=8, bucket=4)
    before = problem.loss(simulation.theta)
    uploaded = play(simulation, 100)
    assert simulation.ledger.iterations == 300
    assert problem.loss(simulation.theta) < before
    assert uploaded.all() == (rule == "always")


def test_a_laziness_for_another_number_of_workers_is_refused() -> None:
    """With too few the last workers' data would silently never be used."""
    problem = make("sgd").measurable
    with pytest.raises(ValueError, match="workers"):
        simulate(
            problem,
            ClosedFormSGD(np.zeros(6), Constant(0.1)),
            rule=RULES["wk2"],
            laziness=Laziness(workers=M - 1),
        )
