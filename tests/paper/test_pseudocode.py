"""lasg's simulation against the literal transcription: same uploads, same model, same counts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from lasg import counter
from lasg.core.algorithms import ALGORITHMS, algorithm
from lasg.core.optimizers import ClosedFormSGD, Constant, Decreasing, Schedule
from lasg.core.server import Laziness
from lasg.core.training import Training
from lasg.problems.regression import Regression
from lasg.transports.local import simulate
from tests.paper import transcription as paper

SEED = 20
ROUNDS = 320
SIZES = (11, 40, 7, 23, 56)
P = 5


@dataclass(frozen=True)
class Case:
    D: int
    schedule: Schedule
    c: float
    window: int = 10
    batch: float = 0.15
    H: int = 3
    bits: int = 4
    lam: float = 0.01


CASES = {
    "constant step, D = 20": Case(D=20, schedule=Constant(0.5), c=0.1),
    "decreasing step, D = 7": Case(D=7, schedule=Decreasing(0.05, 40.0), c=0.3, window=7, bits=3),
    "very lazy, thick batches": Case(D=30, schedule=Constant(0.2), c=1.0, window=4, batch=0.5, H=2, lam=0.0),
}
NAMES = [(name, "ask-twice") for name in ALGORITHMS] + [("lasg-pse", "zero"), ("laqsg-pse", "zero")]
LAZY = [(name, start) for name, start in NAMES if name.startswith(("lag-", "lasg-"))]


def data() -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Sorted by label, cut unevenly, every shard with a scale and a shift of its own."""
    rng = np.random.default_rng(3)
    labels = np.sort(rng.integers(0, 2, sum(SIZES)))
    shards = np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1])
    features = rng.normal(size=(sum(SIZES), P)) + 0.5 * (2 * labels - 1)[:, None]
    for m, shard in enumerate(shards):
        features[shard] *= 0.5 + 0.3 * m
    return features, labels, shards


def both(name: str, start: str, case: Case) -> tuple[Training, paper.Setting]:
    features, labels, shards = data()
    problem = Regression(
        features, labels, shards, classes=2, batch=case.batch, seed=SEED, lam=case.lam, dtype=np.float64
    )
    row = algorithm(name)
    L = [
        float(np.linalg.eigvalsh(features[shard].T @ features[shard])[-1]) / len(labels) + case.lam / len(shards)
        for shard in shards
    ]
    simulation = simulate(
        problem,
        ClosedFormSGD(np.zeros(P), case.schedule),
        rule=row.rule,
        codec=row.codec(case.bits, None),
        laziness=Laziness(
            workers=len(shards),
            D=case.D,
            c=case.c,
            window=case.window,
            start="zero" if start == "zero" else "ask-twice",
        ),
        local_steps=row.local_steps(case.H),
        seed=SEED,
        smoothness=np.array(L),
    )
    ends = np.cumsum(problem.batch)

    def xi(m: int, k: int) -> list[int]:
        flat = problem.batches.draw_all(k)[ends[m] - problem.batch[m] : ends[m]]
        return [int(n) for n in flat - shards[m][0]]

    def u(m: int, k: int) -> list[float]:
        return list(counter.uniforms(counter.keys(SEED, counter.QUANTISER, [m], k)[0, 0], P).tolist())

    setting = paper.Setting(
        x=[features[shard].tolist() for shard in shards],
        y=[(2 * labels[shard] - 1).tolist() for shard in shards],
        lam=case.lam,
        eta=case.schedule,
        c=[case.c] * case.window,
        D=case.D,
        xi=xi,
        u=u,
        bits=case.bits if name in paper.QUANTISED else None,
        H=case.H if name == "local-sgd" else 1,
        L=L,
        start=start,
    )
    return simulation, setting


def test_the_table_has_the_twelve_algorithms_of_the_paper() -> None:
    assert list(ALGORITHMS) == list(paper.ALGORITHMS)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("name", "start"), NAMES)
def test_simulation_does_what_the_pseudocode_says(name: str, start: str, case: str) -> None:
    simulation, setting = both(name, start, CASES[case])
    expected = paper.ALGORITHMS[name](setting, ROUNDS)
    for k in range(ROUNDS):
        found = simulation.step()
        assert set(np.flatnonzero(found.uploaded)) == expected.uploaders[k], f"round {k}"
        np.testing.assert_allclose(simulation.theta, expected.theta[k + 1], rtol=0, atol=1e-12)
    ledger = simulation.ledger
    assert ledger.uploads == expected.uploads
    assert ledger.gradients == expected.gradients
    assert ledger.bits_up == expected.bits
    assert ledger.downloads == expected.downloads


@pytest.mark.parametrize(("name", "start"), LAZY)
def test_the_cases_meet_silence_violation_and_forced_uploads(name: str, start: str) -> None:
    """Otherwise the comparison above would say little about the lazy rules."""
    outcomes = [paper.ALGORITHMS[name](both(name, start, case)[1], ROUNDS) for case in CASES.values()]
    assert all(outcome.uploads < 0.9 * ROUNDS * len(SIZES) for outcome in outcomes)
    assert sum(outcome.violated for outcome in outcomes) > 100
    assert sum(outcome.forced for outcome in outcomes) > 30
