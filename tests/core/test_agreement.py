"""A rule that decides for all: what is reported, what the server makes of it, and where workers begin a round."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from lasg.core.algorithms import Stages, algorithm
from lasg.core.further_rules import FDA, fda
from lasg.core.messages import News, Uploads
from lasg.core.optimizers import ClosedFormSGD, Constant, Optimizer, TorchOptimizer
from lasg.core.rules import Record, Rule
from lasg.core.server import Laziness, Server
from lasg.core.training import Training
from lasg.core.work import OptimizerSteps
from lasg.errors import LasgError
from tests.core.test_faults import Broken
from tests.core.toy import KINDS, WEIGHTS, M, P, as_kind, numpy_of

STAGES = Stages(rule=FDA, inner=OptimizerSteps(steps=2, eta=0.05, options={"momentum": 0.9}), belief="residual")
each_kind = pytest.mark.parametrize("kind", KINDS)


def training(
    problem: Broken, *, bound: float | None = math.inf, D: Any = 4, optimizer: Optimizer | None = None
) -> Training:
    optimizer = optimizer or ClosedFormSGD(as_kind(np.zeros(P), problem.kind), Constant(1.0))
    return Training(problem, optimizer, STAGES, Laziness(workers=M, D=D, variance_bound=bound))


def worked(run: Training, name: str) -> Any:
    assert run.workers is not None
    return numpy_of(run.workers.worked[name])


def test_the_left_side_is_at_least_the_variance_and_is_it_where_all_go_one_way() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        drift, xi = rng.normal(size=(M, P)) + 2 * rng.normal(size=P), rng.normal(size=P)
        weights = rng.dirichlet(np.ones(M))
        xi /= np.linalg.norm(xi)
        mean = weights @ drift
        variance = float(weights @ ((drift - mean) ** 2).sum(1))

        def left(reports: Any, weights: Any = weights) -> float:
            return float(fda(Record(reports=reports, weights=weights), Record()))

        reports = np.stack([(drift**2).sum(1), drift @ xi], 1)
        assert left(reports) >= variance - 1e-12
        unknown = reports.copy()
        unknown[2, 1] = np.nan
        assert left(unknown) == pytest.approx(weights @ reports[:, 0], rel=1e-12)
        best = np.stack([reports[:, 0], drift @ (mean / np.linalg.norm(mean))], 1)
        assert left(best) == pytest.approx(variance, rel=1e-9)
        heard = reports.copy()
        heard[0] = np.nan
        assert left(heard) == pytest.approx(left(reports[1:], weights[1:]), rel=1e-12)


@each_kind
def test_who_failed_begins_again_from_the_servers_model_and_the_others_go_on(kind: str) -> None:
    run = training(Broken(kind, {4: [1, 3]}))  # in round 2, of rounds of two steps
    for _ in range(2):
        run.step()
    theta = numpy_of(run.theta).copy()
    before = worked(run, "local").copy()
    assert (before != theta).any(1).all()
    finished = run.step()
    assert finished.broken is not None
    assert np.flatnonzero(finished.broken).tolist() == [1, 3]
    assert not finished.uploaded.any()
    assert worked(run, "goes_on").tolist() == [1, 0, 1, 0, 1]
    assert isinstance(run.problem, Broken)
    run.problem.calls.clear()
    run.step()
    starts = run.problem.calls[0].points[0]
    np.testing.assert_array_equal(starts[[1, 3]], [theta, theta])
    assert (starts[[0, 2, 4]] != theta).any(1).all()


@each_kind
def test_a_round_without_uploads_moves_nothing_and_no_momentum(kind: str) -> None:
    theta = as_kind(np.zeros(P), kind)
    outer = TorchOptimizer(theta, lambda parameters: torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True))
    run = training(Broken(kind, {}), optimizer=outer)
    for k in range(13):
        before, momenta = numpy_of(run.theta).copy(), str(run.server.optimizer.state()["optimizer"])
        spoke = run.step().uploaded
        assert spoke.all() == spoke.any() == (k % 4 == 0)
        assert (numpy_of(run.theta) != before).any() == spoke.any()
        assert (str(run.server.optimizer.state()["optimizer"]) != momenta) == spoke.any()
    assert run.ledger.uploads == 4 * M
    assert run.ledger.downloads == 4 * M  # of rounds 0, 1, 5 and 9: round 12's model is still to be told
    assert run.ledger.control_bits == 13 * M * 64


@each_kind
def test_all_that_a_worker_moved_since_it_uploaded_is_said_at_once(kind: str) -> None:
    run = training(Broken(kind, {}))
    run.step()
    begun = numpy_of(run.theta).copy()
    for _ in range(4):
        run.step()
    moved = WEIGHTS @ (worked(run, "local") - begun)
    np.testing.assert_allclose(numpy_of(run.theta), begun + moved, rtol=0, atol=1e-12)
    assert run.workers is not None
    np.testing.assert_allclose(numpy_of(run.workers.speaker.rows), 0, atol=1e-15)


def server(bound: float | None, D: Any = 100) -> Server:
    return Server(ClosedFormSGD(np.zeros(P), Constant(1.0)), STAGES, Laziness(workers=2, D=D, variance_bound=bound))


def reported(of: Server, squares: list[float], along: float = np.nan) -> bool:
    """Open and close a round in which nobody uploads, or all were to; tell which."""
    due = bool(of.open().must_upload.all())
    uploads = 2 if due else 0
    reports = np.array([[square, along] for square in squares])
    of.close(Uploads(np.full(2, due), uploads, reports=reports), News(0 * of.aggregate, whole=True))
    return due


def test_the_bound_is_the_mean_of_the_first_rounds_but_that_in_which_nobody_knows_a_direction() -> None:
    of = server(None)
    assert [reported(of, [100.0, 100.0])] + [reported(of, [k, k], 1.0) for k in range(2, 11)] == [True] * 10
    assert of.agreement is not None
    assert of.agreement.bound == np.mean(np.arange(2, 11)) - 1
    assert not reported(of, [5.0, 5.0], 1.0)  # 4, below 5
    assert not reported(of, [6.0, 6.0], 1.0)
    assert reported(of, [0.0, 0.0], 1.0)  # 5 was reached in the round before
    assert not reported(of, [0.0, 0.0], 1.0)


def test_reports_beyond_all_numbers_let_all_upload_and_a_round_without_reports_changes_nothing() -> None:
    of = server(3.0)
    assert reported(of, [1.0, 1.0])
    assert not reported(of, [math.inf, 1.0], 1.0)
    assert reported(of, [1.0, 1.0])
    assert not reported(of, [4.0, 4.0], 0.5)  # 3.75
    assert of.agreement is not None
    of.agreement.close(9, Uploads(np.zeros(2, np.bool_), reports=np.full((2, 2), np.nan)), None)
    assert of.agreement.left == 3.75


@pytest.mark.parametrize("bound", [-1.0, math.nan])
def test_a_bound_that_is_none_is_refused(bound: float) -> None:
    with pytest.raises(LasgError, match=r"^variance_bound must be >= 0, got .*; absent: that of the first rounds"):
        Laziness(workers=2, variance_bound=bound)


def test_with_neither_bound_nobody_would_ever_upload() -> None:
    with pytest.raises(
        LasgError, match=r"^D = inf and variance_bound = inf let nobody upload, ever: take a finite one"
    ):
        server(math.inf, math.inf)
    assert server(1.0, math.inf).agreement is not None


@pytest.mark.parametrize(
    "wrong",
    [{"report": None}, {"left": None}, {"where": "worker"}, {"probe": "last"}, {"remembers": ("grad",)}],
)
def test_a_rule_for_all_has_a_report_and_a_left_side_and_nothing_of_single_workers(wrong: dict[str, Any]) -> None:
    with pytest.raises(LasgError, match=r"^rule fda: "):
        replace(FDA, **wrong)


def test_a_rule_of_your_own_may_decide_for_all_by_other_reports() -> None:
    """The largest move in place of the variance."""

    def largest(now: Record, last: Record) -> Any:
        return np.nanmax(now.reports[:, 0])

    own = Rule(name="largest", left=largest, where="all", report=FDA.report)
    run = Training(
        Broken("numpy", {}),
        ClosedFormSGD(np.zeros(P), Constant(1.0)),
        replace(STAGES, rule=own),
        Laziness(workers=M, D=50, variance_bound=0.05),
    )
    rounds = [run.step() for _ in range(30)]
    spoke = [bool(finished.uploaded.any()) for finished in rounds]
    assert 2 < sum(spoke) < 25
    for finished in rounds[1:]:
        assert finished.left is not None
        assert finished.uploaded.all() == (finished.left[0] >= 0.05)


def test_the_row_of_the_table_says_its_whole_move_once() -> None:
    stages = algorithm("fda").stages(H=5, inner={"eta": 0.1})
    assert (stages.rule, stages.belief, stages.local_steps) == (FDA, "residual", 5)
    assert stages == algorithm("fda+dense+H5+inner+residual").stages(inner={"eta": 0.1})
