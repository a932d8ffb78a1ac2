"""D = inf: nobody is made to upload for being silent, where something else bounds what staleness does."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from lasg.core.algorithms import algorithm
from lasg.core.optimizers import ClosedFormSGD, Constant
from lasg.core.server import Laziness
from lasg.core.stages import Stages
from lasg.core.training import Training
from lasg.errors import LasgError
from tests.core.test_faults import Broken
from tests.core.toy import SMOOTHNESS, M, P, Toy

GUARDED = ("lag", "wk2", "pse", "pse-recent", "ps", "clag+topk0.3:float+difference", "wk2+qsgd4+difference")


def stages_of(name: str) -> Stages:
    return algorithm(name if "+" in name or name == "lasg-vr" else f"{name}+dense").stages()


def run(stages: Stages, D: float, broken: Any = None, **laziness: Any) -> Training:
    problem = Toy() if broken is None else Broken("numpy", broken)
    optimizer = ClosedFormSGD(np.zeros(P), Constant(0.05))
    smoothness = SMOOTHNESS if stages.rule.name == "ps" else None
    return Training(problem, optimizer, stages, Laziness(workers=M, D=D, **laziness), smoothness=smoothness)


def played(training: Training, rounds: int = 200) -> tuple[np.ndarray, bytes]:
    return np.array([training.step().uploaded for _ in range(rounds)]), training.theta.tobytes()


@pytest.mark.parametrize("name", GUARDED)
@pytest.mark.parametrize("rho", [3.0, 30.0])
def test_a_guarded_run_is_the_one_of_a_bound_that_is_never_reached(name: str, rho: float) -> None:
    endless, never = (played(run(stages_of(name), D, rho=rho, guard=True)) for D in (math.inf, 10**6))
    np.testing.assert_array_equal(endless[0], never[0])
    assert endless[1] == never[1]
    assert not endless[0].all()


def test_a_rule_that_bounds_staleness_itself_needs_no_guard() -> None:
    stages = stages_of("lasg-vr")
    endless, usual = (played(run(stages, D)) for D in (math.inf, 100))
    np.testing.assert_array_equal(endless[0], usual[0])
    assert endless[1] == usual[1]


def test_some_worker_is_silent_for_longer_than_a_finite_bound_allows() -> None:
    longest = {}
    for D in (20, math.inf):
        uploaded, _ = played(run(stages_of("wk2"), D, rho=3.0, guard=True), 600)
        longest[D] = max(np.diff(np.flatnonzero(uploaded[:, m])).max() for m in range(M))
    assert longest[20] == 20
    assert longest[math.inf] > 40


def test_who_had_no_finite_gradient_at_first_uploads_as_soon_as_it_has_one() -> None:
    training = run(stages_of("wk2"), math.inf, {0: [1], 1: [1]}, rho=3.0, guard=True)
    rounds = [training.step() for _ in range(4)]
    assert [bool(one.uploaded[1]) for one in rounds] == [False, False, True, False]
    assert all(math.isfinite(one.threshold) for one in rounds)


@pytest.mark.parametrize(
    ("name", "laziness", "words"),
    [
        ("wk2", {}, "set rho or guard = true, take lasg-vr, or a finite D"),
        ("clag+topk0.3:float+difference", {"c": 1.0}, "set rho or guard = true, take lasg-vr, or a finite D"),
        ("lag+residual", {"rho": 0.5, "guard": True}, "nothing watches that here: take vr, or a finite D"),
        (
            "wk1",
            {"rho": 0.5, "guard": True},
            "rule wk1 takes its snapshot every D rounds: D = inf is for wk2, clag and",
        ),
    ],
)
def test_without_such_a_bound_it_is_refused_in_one_line(name: str, laziness: dict[str, Any], words: str) -> None:
    with pytest.raises(LasgError) as refused:
        run(stages_of(name), math.inf, **laziness)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("D", [-math.inf, math.nan, 1.5, 0])
def test_no_other_number_that_is_not_whole_is_taken(D: float) -> None:
    with pytest.raises(LasgError, match=r"^D must be an integer >= 1, or inf, got"):
        Laziness(workers=2, D=D)
