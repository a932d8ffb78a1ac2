"""Three columns of settings, and where settings stand to the theorems."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lasg.core.optimizers import Constant, Decreasing
from lasg.theory.advice import Column, Run, advise
from lasg.theory.applicability import Settings, judge
from lasg.theory.bounds import Nonconvex, Quantised, StronglyConvex
from lasg.theory.measures import Measures

MEASURES = Measures(
    L=2.0,
    L_start=1.0,
    L_m=(0.5,) * 4,
    mu=0.1,
    variances=(0.3,) * 4,
    variances_start=(0.1,) * 4,
    B=3.0,
    gap=5.0,
    p=20,
    how={},
)
TASK = Settings(schedule=Constant(0.5), D=10)
RULES = ("always", "wk1", "wk2", "ps")


def columns(run: Run, task: Settings = TASK, **changes: Any) -> dict[str, Column]:
    return {one.name: one for one in advise(replace(MEASURES, **changes), task, run)}


def test_where_the_loss_is_strongly_convex_the_safe_column_is_that_theorems() -> None:
    found = columns(Run(rule="wk2", rounds=1000))["safe"]
    theorem = StronglyConvex(MEASURES.known(10))
    assert found.settings.schedule == theorem.schedule()
    assert found.settings.c_d == theorem.largest_c()
    assert found.settings.window == found.settings.D == 10
    assert found.bound == theorem.bound(1000)


def test_elsewhere_it_is_the_best_constant_step() -> None:
    found = columns(Run(rule="wk2", rounds=1000), mu=None)["safe"]
    theorem = Nonconvex(replace(MEASURES, mu=None).known(10))
    assert found.settings.schedule == Constant(theorem.best_step(1000))
    assert found.bound == theorem.bound(1000, theorem.best_step(1000))


def test_quantised_uploads_have_a_theorem_of_their_own() -> None:
    found = columns(Run(rule="wk2", rounds=1000, bits=4))["safe"]
    theorem = Quantised(MEASURES.known(10, 4))
    assert found.settings.c_d == theorem.largest_c(theorem.best_step(1000))
    assert found.applicability.theorem == "thm:LAQSG"


@given(
    rule=st.sampled_from(RULES),
    bits=st.none() | st.integers(2, 16),
    D=st.integers(1, 1000),
    rounds=st.integers(1, 10**6),
    mu=st.none() | st.floats(1e-6, 1.0),
    L=st.floats(1.0, 1e6),
)
def test_the_safe_column_lies_within_its_theorem(
    rule: str, bits: int | None, D: int, rounds: int, mu: float | None, L: float
) -> None:
    run = Run(rule=rule, rounds=rounds, bits=bits)
    found = columns(run, Settings(schedule=Constant(0.5), D=D), mu=mu, L=L)["safe"]
    assert found.applicability.inside
    assert found.bound is not None
    assert math.isfinite(found.bound)


def test_the_papers_column_is_the_tasks_own_and_says_how_far_outside_it_is() -> None:
    found = columns(Run(rule="wk2", rounds=1000))["paper"]
    assert found.settings == TASK
    assert not found.applicability.inside
    largest = Nonconvex(MEASURES.known(10)).largest_step
    assert f"step is {0.5 / largest:.0f} times" in found.gives_up
    assert found.bound is None


def test_the_safe_sentence_names_the_factor_and_a_promise_that_is_none() -> None:
    said = columns(Run(rule="wk2", rounds=2))["safe"].gives_up
    factor = 0.5 / StronglyConvex(MEASURES.known(10)).schedule()(0)
    assert f"{factor:.0f} times smaller than the task's: safe, and slow" in said
    assert "the start is at 5" in said


def test_the_practical_step_is_one_over_the_curvature_at_the_start() -> None:
    assert columns(Run(rule="wk2", rounds=1000))["practical"].settings == Settings(schedule=Constant(1.0), D=10)
    assert columns(Run(rule="wk2", rounds=30))["practical"].settings.D == 3


def test_a_coarse_quantiser_makes_the_practical_step_smaller() -> None:
    """p = 20 and 2 bits: omega = min(20, sqrt(20))."""
    found = columns(Run(rule="wk2", rounds=1000, bits=2))["practical"]
    assert found.settings.schedule(0) == pytest.approx(1 / (1 + math.sqrt(20)), rel=0.05)
    fine = columns(Run(rule="wk2", rounds=1000, bits=2, bucket=1))["practical"]
    assert fine.settings.schedule(0) == pytest.approx(1 / 2, rel=0.05)


def test_a_networks_practical_step_is_not_above_the_tasks() -> None:
    assert columns(Run(rule="wk2", rounds=1000, neural=True))["practical"].settings.schedule(0) == 0.5


def test_of_a_network_the_theorem_holds_only_as_far_as_its_start_tells() -> None:
    said = columns(Run(rule="wk2", rounds=1000, neural=True), mu=None)["safe"].gives_up
    assert "if L is nowhere larger than at theta^0" in said


def test_of_a_rule_without_a_theorem_nothing_is_promised() -> None:
    for one in columns(Run(rule="pse", rounds=1000)).values():
        assert one.applicability.theorem is None
        assert one.bound is None
        assert "no theorem is about the rule pse" in one.gives_up


# -- where settings stand --------------------------------------------------------------------------------------


def stands(settings: Settings, rule: str = "wk2", **changes: Any) -> Any:
    given = {"L": 2.0, "mu": 0.1, "M": 4, "rounds": 1000, **changes}
    return judge(settings, rule, **given)


def test_the_edge_of_a_theorem_lies_inside_and_a_little_more_outside() -> None:
    theorem = Nonconvex(MEASURES.known(10))
    eta = theorem.largest_step
    edge = Settings(schedule=Constant(eta), D=10, c_d=theorem.largest_c(eta))
    assert stands(edge).inside
    assert not stands(replace(edge, schedule=Constant(1.01 * eta))).inside
    assert not stands(replace(edge, c_d=1.01 * theorem.largest_c(eta))).inside
    assert not stands(replace(edge, D=11)).inside
    assert not stands(edge, quantised=True).inside


def test_a_c_that_follows_a_falling_step_leaves_the_theorem_in_the_end() -> None:
    convex = StronglyConvex(MEASURES.known(10))
    small = convex.largest_c() * convex.schedule()(0) ** 2
    followed = Settings(schedule=convex.schedule(), D=10, c=small)
    assert stands(followed, rounds=1).inside
    assert not stands(followed, rounds=1000).inside


def test_a_schedule_for_more_convexity_than_there_is_has_no_theorem() -> None:
    convex = StronglyConvex(MEASURES.known(10))
    settings = Settings(schedule=Decreasing(0.2, convex.K0), D=10, c_d=0.0)
    assert "more than the loss's" in stands(settings).reason
    assert stands(settings, mu=None).theorem is None
    assert "quantised" in stands(replace(settings, schedule=convex.schedule()), quantised=True).reason


def test_sgd_needs_no_c_and_is_judged_at_staleness_one() -> None:
    step = Nonconvex(MEASURES.known(1)).largest_step
    assert stands(Settings(schedule=Constant(step), D=100, c=math.inf), "always").inside


def test_an_endless_c_is_none_in_json() -> None:
    row = stands(Settings(schedule=Constant(0.5), D=10, c=math.inf)).row()
    assert row["c_d"] is None
    assert not row["inside"]
