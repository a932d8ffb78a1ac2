"""Who has no finite gradient, or move, in a round is silent, and remembers nothing of that round."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from lasg.core.algorithms import KNOWN, Stages, algorithm
from lasg.core.estimators import Storm
from lasg.core.optimizers import ClosedFormSGD, Constant
from lasg.core.server import Laziness
from lasg.core.training import Training
from lasg.core.work import OptimizerSteps
from tests.core.test_faults import Broken
from tests.core.toy import KINDS, M, P, as_kind, numpy_of

INNER: dict[str, OptimizerSteps] = {
    "SGD with momentum": OptimizerSteps(steps=3, eta=0.05, options={"momentum": 0.9}, drift=0.5),
    "AdamW": OptimizerSteps(steps=3, optimizer="AdamW", eta=0.05),
}
CASES: dict[str, Stages] = {
    **{name: KNOWN[name].stages() for name in ("lasg-vr", "lasg-sparse", "ef21-sgdm", "clag", "laq", "sasg", "dgc")},
    **{
        name: algorithm(name).stages()
        for name in ("always+storm", "ps+storm", "laq+sign:3+difference", "lag+topk0.3+residual0.9")
    },
    **{name: Stages(inner=inner, codec="topk0.3", belief="residual") for name, inner in INNER.items()},  # type: ignore[arg-type]
    "AdamW, clag": Stages(inner=INNER["AdamW"], rule="clag", belief="difference"),  # type: ignore[arg-type]
}
PROBING = [name for name, stages in CASES.items() if isinstance(stages.estimator, Storm)]
FAULTS = {k: [1, 3] for k in (0, 4, 5, 9)}
WHO = [1, 3]


def training(stages: Stages, problem: Broken) -> Training:
    theta = as_kind(np.zeros(P), problem.kind)
    smoothness = np.full(M, 1.0) if stages.rule.name == "ps" else None
    laziness = Laziness(workers=M, D=6, c=0.5)
    return Training(problem, ClosedFormSGD(theta, Constant(0.1)), stages, laziness, smoothness=smoothness)


def remembered(run: Training, who: list[int]) -> Any:
    """Return all that some workers remember, as lists."""
    workers = run.workers
    assert workers is not None
    kept: list[Any] = [workers.estimates, workers.worked, workers.watched, workers.memory]
    kept += [workers.speaker.encoder, workers.speaker.decoder]
    found: list[Any] = [{name: numpy_of(value)[who].tolist() for name, value in state.items()} for state in kept]
    if workers.speaker.rows is not None:
        found.append(numpy_of(workers.speaker.rows)[who].tolist())
    if workers.iterates is not None and (workers.iterates.slot[who] >= 0).all():
        found.append([numpy_of(row).tolist() for row in workers.iterates.rows(np.array(who))])
    return copy.deepcopy(found)


def faulty(k: int, H: int) -> list[int]:
    """Return whose gradients of a round are not finite, in some of its H local steps."""
    return sorted({m for h in range(H) for m in FAULTS.get(k * H + h, [])})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", CASES)
def test_a_round_without_a_finite_gradient_is_silence_and_leaves_no_trace(name: str, value: float, kind: str) -> None:
    stages = CASES[name]
    run = training(stages, Broken(kind, FAULTS, value))
    with np.errstate(invalid="ignore"):
        for k in range(12):
            before = remembered(run, WHO)
            finished = run.step()
            assert np.isfinite(numpy_of(run.theta)).all()
            if not faulty(k, stages.local_steps):
                assert finished.broken is None
                continue
            if stages.rule.where != "server" or k == 0:
                assert finished.broken is not None
                assert np.flatnonzero(finished.broken).tolist() == WHO
            assert not finished.uploaded[WHO].any()
            assert remembered(run, WHO)[: len(before)] == before
    assert run.ledger.uploads > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PROBING)
def test_a_probe_that_is_not_finite_spoils_no_estimate(name: str, kind: str) -> None:
    run = training(CASES[name], Broken(kind, FAULTS, probes=True))
    for k in range(12):
        before = remembered(run, WHO)
        finished = run.step()
        if k in FAULTS and CASES[name].rule.where != "server":
            assert finished.broken is not None
            assert np.flatnonzero(finished.broken).tolist() == WHO
            assert remembered(run, WHO)[: len(before)] == before
    assert run.workers is not None
    assert all(np.isfinite(numpy_of(value)).all() for value in run.workers.estimates.values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", INNER)
def test_after_a_move_that_is_not_finite_a_worker_starts_again_from_the_servers_model(name: str, kind: str) -> None:
    problem = Broken(kind, {4: [1]})  # the second of the three steps of round 1
    run = training(CASES[name], problem)
    for k in range(4):
        problem.calls.clear()
        theta = numpy_of(run.theta).copy()
        before = remembered(run, [1])
        finished = run.step()
        assert [call.iteration for call in problem.calls] == [3 * k, 3 * k + 1, 3 * k + 2]
        np.testing.assert_array_equal(problem.calls[0].points[0], np.repeat(theta[None], M, 0))
        assert (finished.broken is not None) == (k == 1)
        assert finished.uploaded[1] == (k != 1)
        assert (remembered(run, [1]) == before) == (k == 1)
