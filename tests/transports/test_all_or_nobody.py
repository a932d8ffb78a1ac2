"""A federation in which all nodes upload, or nobody does: what is lost, who forgot, and what is no report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lasg.core.algorithms import Stages, algorithm
from lasg.core.arrays import host
from lasg.core.further_rules import FDA
from lasg.core.server import Laziness
from lasg.core.training import Training
from lasg.core.work import OptimizerSteps
from lasg.errors import LasgError
from lasg.flower.settings import Settings as FlowerSettings
from lasg.loops.lazy_setup import choose_stages
from lasg.runs.spec import Spec, from_toml
from lasg.transports.federation import Federation
from lasg.transports.nodes import Parcel
from tests.transports.flaky import Flaky
from tests.transports.test_federation import KEYS, member, serve
from tests.transports.test_ranks import M, regression

STAGES = Stages(rule=FDA, inner=OptimizerSteps(steps=2, eta=0.1), belief="residual")
ETA, D = 0.1, 4
"""ETA is the server's step in these federations: the tenth part of an average."""


def federation(fates: Mapping[tuple[int, int], str], bound: float = math.inf) -> tuple[Training, Federation, Flaky]:
    problem = regression("float64")
    wire = Flaky({100 + m: member(m, STAGES, problem, D) for m in range(M)}, fates)
    laziness = Laziness(workers=M, D=D, variance_bound=bound)
    run, served = serve(STAGES, wire, problem, deadline=1.0, laziness=laziness)
    served.gather(10)
    return run, served, wire


def moves(problem: Any, m: int, start: Any, rounds: range) -> Any:
    """Return the weighted move of a worker that trains on its own through some rounds."""
    share, local = problem.weights[m], start
    for k in rounds:
        for t in (2 * k, 2 * k + 1):
            local = local - 0.1 * problem.gradients(t, [local], np.array([m]))[0][0] / share
    return share * (start - local)


def test_what_all_have_said_in_vain_is_said_once_more_and_once_only() -> None:
    """Everybody's upload of round 4 is lost: no model changes, but nobody may say the same move twice."""
    run, served, _ = federation({(4, m): "lost" for m in range(M)})
    for _ in range(5):
        run.step()
    assert run.ledger.uploads == M
    theta, problem = host(run.theta).copy(), regression("float64")
    assert run.step().uploaded.all()  # still due
    # In vain: the moves of rounds 1 to 4. Then each went on from the server's model, which is the same.
    vain = sum(moves(problem, m, theta, range(1, 5)) for m in range(M))
    said = vain + sum(moves(problem, m, theta, range(5, 6)) for m in range(M))
    np.testing.assert_allclose(host(run.theta), theta - ETA * said, rtol=0, atol=1e-12)
    assert not served.members.refused


def test_who_missed_the_upload_of_all_begins_from_the_servers_model() -> None:
    run, _, wire = federation({(4, 1): "deaf"})
    for _ in range(5):
        uploaded = run.step().uploaded
    assert uploaded.tolist() == [m != 1 for m in range(M)]
    theta, problem = host(run.theta).copy(), regression("float64")
    for _ in range(4):
        run.step()
    said = sum(moves(problem, m, theta, range(5, 9)) for m in range(M))
    np.testing.assert_allclose(host(run.theta), theta - ETA * said, rtol=0, atol=1e-12)
    assert run.server.tau.tolist() == [1] * M
    assert wire.there


def test_a_node_that_forgot_waits_for_the_others_and_knows_no_direction_yet() -> None:
    run, _, wire = federation({})
    for _ in range(6):
        run.step()
    wire.there[101] = member(1, STAGES, regression("float64"), D)
    wire.answered.clear()
    assert not run.step().uploaded.any()
    answers = {answer.head["key"]: answer.head for answer in wire.answered if "report" in answer.head}
    assert math.isnan(answers[KEYS[1]]["report"][1])
    assert not any(math.isnan(answers[key]["report"][1]) for key in KEYS if key != KEYS[1])
    assert answers[KEYS[1]]["report"][0] > 0


def test_in_rounds_in_which_nobody_uploads_no_vector_travels() -> None:
    run, _, wire = federation({})
    for _ in range(2):
        run.step()  # the second round still brings the model of the first
    wire.asked.clear()
    wire.answered.clear()
    for _ in range(2):
        assert not run.step().uploaded.any()
    assert sum(array.nbytes for _, parcel in wire.asked for array in parcel.arrays.values()) == 0
    assert sum(array.nbytes for parcel in wire.answered for array in parcel.arrays.values()) == 0


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"report": [1.0]}, "its report is not two numbers"),
    ({"report": [-1.0, 0.0]}, "its report is not two numbers, the first >= 0"),
    ({"report": [math.nan, 0.0]}, "its report is not two numbers"),
    ({"report": ["1", 0.0]}, "its report is not two numbers"),
    ({"report": 3.0}, "its report is not two numbers"),
    ({"report": ()}, "its report is not two numbers"),
]


@pytest.mark.parametrize(("change", "reason"), WRONG)
def test_what_is_no_report_is_refused(change: dict[str, Any], reason: str) -> None:
    _, served, _ = federation({})
    head = {"kind": "silent", "run": "r", "round": 3, "key": KEYS[0], "evaluations": 2, "report": [1.0, math.nan]}
    right = served.checker.check(Parcel(head, {}), "r", 3, 0, KEYS[0], -1, must_upload=False)
    assert right.report[0] == 1.0
    with pytest.raises(LasgError, match=reason):
        served.checker.check(Parcel({**head, **change}, {}), "r", 3, 0, KEYS[0], -1, must_upload=False)


def test_an_upload_while_nobody_is_to_is_refused() -> None:
    _, served, _ = federation({})
    head = {"kind": "upload", "run": "r", "round": 3, "key": KEYS[0], "evaluations": 2, "report": [1.0, 0.0]}
    contribution = {"contribution": np.zeros(18 * 8, np.uint8)}
    served.checker.check(Parcel(head, contribution), "r", 3, 0, KEYS[0], -1, must_upload=True)
    with pytest.raises(LasgError, match="it uploads in a round in which nobody does"):
        served.checker.check(Parcel(head, contribution), "r", 3, 0, KEYS[0], -1, must_upload=False)


# -- settings --------------------------------------------------------------------------------------------------------


def test_a_spec_and_flower_say_the_bound_and_may_leave_it_to_be_measured() -> None:
    spec = Spec(task="a", algorithm="fda", data="digits", variance_bound=0.5)
    assert from_toml(spec.to_toml()) == spec
    assert spec.laziness.variance_bound == 0.5
    assert spec.but(variance_bound=None).laziness.variance_bound is None
    assert math.isinf(spec.but(variance_bound=math.inf).laziness.variance_bound or 0)
    assert math.isinf(spec.but(D=math.inf).laziness.D)
    flower = {"workers": 2, "algorithm": "fda", "local-steps": 5}
    assert FlowerSettings.from_config(flower).laziness.variance_bound is None
    told = FlowerSettings.from_config({**flower, "variance-bound": 0.5})
    assert told.laziness.variance_bound == 0.5
    assert replace(told.stages, robust=None) == algorithm("fda").stages(H=5, inner={"eta": 0.1})
    with pytest.raises(LasgError, match=r"^variance_bound must be >= 0"):
        spec.but(variance_bound=-1.0)


def test_a_lazy_loop_refuses_it_and_names_what_it_takes() -> None:
    with pytest.raises(LasgError, match=r"^fda lets ranks go on .* take lasg-local or diloco, with a larger `every`$"):
        choose_stages("fda")
