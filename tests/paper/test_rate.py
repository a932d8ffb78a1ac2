"""thm:stronglyconvex: with eta_k = 2 / (mu (k + K0)) the error falls as 1 / K, under every rule of the theorem."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from lasg.core.optimizers import ClosedFormSGD, Decreasing
from lasg.core.rules import RULES
from lasg.core.server import Laziness
from lasg.problems.regression import Regression
from lasg.transports.local import simulate

SEEDS, P, D, MU, K0 = 8, 10, 5, 0.3, 20.0
SIZES = (20, 40, 30, 30)
LAST, STRIDE = 1500, 5
SCHEDULE = Decreasing(MU, K0)


def make(seed: int, batch: float) -> Regression:
    """Heterogeneous: sorted by label. The l2 term makes it MU-strongly convex."""
    rng = np.random.default_rng(0)
    labels = np.sort(rng.integers(0, 2, sum(SIZES)))
    features = 0.7 * rng.normal(size=(sum(SIZES), P)) + 0.2 * (2 * labels - 1)[:, None]
    shards = np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1])
    return Regression(features, labels, shards, classes=2, batch=batch, seed=seed, lam=MU, dtype=np.float64)


def lowest_loss() -> float:
    problem, theta = make(0, 1.0), np.zeros(P)
    for _ in range(500):
        theta = theta - problem.gradients(0, [theta], None)[0].sum(0)
    assert np.linalg.norm(problem.gradients(0, [theta], None)[0].sum(0)) < 1e-12
    return problem.loss(theta)


def errors(rule: str, c: float | None, seed: int, best: float) -> tuple[npt.NDArray[np.float64], int]:
    """Return L(theta^K) - L(theta*) after every STRIDE rounds, and the uploads. c None: the theorem's constant c_d."""
    problem = make(seed, 0.1)
    M = len(SIZES)
    L = problem.smoothness("tight")
    largest = min(1 / (24 * D * SCHEDULE(0) ** 2), np.sqrt(M) * L.sum() ** 2 / 18)
    simulation = simulate(
        problem,
        ClosedFormSGD(np.zeros(P), SCHEDULE),
        rule=RULES[rule],
        laziness=Laziness(workers=M, D=D, c=c or 0.0, window=D, c_d=largest if c is None else None),
        seed=seed,
        smoothness=L,
    )
    found = np.empty(LAST // STRIDE)
    for k in range(LAST):
        simulation.step()
        if k % STRIDE == STRIDE - 1:
            found[k // STRIDE] = problem.loss(simulation.theta) - best
    return found, simulation.ledger.uploads


@pytest.mark.parametrize(
    ("rule", "c"),
    [("always", 0.1)] + [(rule, c) for rule in ("wk1", "wk2", "ps") for c in (0.1, None)],
)
def test_the_error_falls_as_one_over_the_rounds(rule: str, c: float | None) -> None:
    """Slope of log error against log (K + K0), the theorem's own variable, means of 8 seeds, K = 100 ... 1500."""
    best = lowest_loss()
    runs = [errors(rule, c, seed, best) for seed in range(SEEDS)]
    mean = np.mean([run for run, _ in runs], axis=0)
    K = np.geomspace(100, LAST, 20)
    error = [mean[int(0.8 * k / STRIDE) : int(k / STRIDE)].mean() for k in K]
    slope = np.polyfit(np.log(0.9 * K + K0), np.log(error), 1)[0]
    share = sum(uploads for _, uploads in runs) / (SEEDS * LAST * len(SIZES))
    assert -1.25 < slope < -0.75
    assert (share == 1) == (rule == "always")
