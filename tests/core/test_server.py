"""The server, the settings, the rules and the table of algorithms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lasg.core.algorithms import ALGORITHMS, Stages, algorithm
from lasg.core.arrays import stacked
from lasg.core.codecs import QSGD, Dense
from lasg.core.messages import News, Uploads
from lasg.core.optimizers import ClosedFormSGD, Constant, Decreasing, TorchOptimizer
from lasg.core.rules import PS, RULES, WK1, WK2, Iterates, Record, Rule, lag, ps, smoothness_estimate, wk1, wk2
from lasg.core.server import Laziness, Server
from lasg.errors import Diverged, LasgError
from tests.core.toy import KINDS, LAZY, M, P, Run, as_kind, numpy_of

each_kind = pytest.mark.parametrize("kind", KINDS)


# -- settings --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("workers", 0),
        ("workers", 2.0),
        ("D", 0),
        ("D", 1.5),
        ("c", -0.1),
        ("c", float("nan")),
        ("window", 0),
        ("window", 2.5),
        ("start", "twice"),
        ("c_d", -1.0),
        ("c_d", float("inf")),
    ],
)
def test_wrong_settings_are_refused_with_their_name_and_value(name: str, value: Any) -> None:
    settings: dict[str, Any] = {"workers": 3, name: value}
    with pytest.raises(LasgError, match=name) as refusal:
        Laziness(**settings)
    assert repr(value) in str(refusal.value)


def test_the_defaults_are_the_papers() -> None:
    defaults = Laziness(workers=10)
    assert (defaults.D, defaults.c, defaults.window) == (100, 0.1, 10)


def test_a_constant_c_d_does_not_follow_the_step() -> None:
    laziness = Laziness(workers=2, c_d=8.0)
    server = Server(ClosedFormSGD(np.ones(P), Decreasing(1.0, 4.0)), Stages(rule=WK2), laziness)
    server.close(Uploads(np.ones(2, np.bool_)), News(np.full(P, 0.5)))
    assert server.threshold(0.5) == server.threshold(1e-3) == pytest.approx(2 * P * 0.25**2)


def test_a_constant_c_d_is_refused_where_no_step_is_plain() -> None:
    momentum = TorchOptimizer(np.zeros(P), lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9))
    with pytest.raises(LasgError, match="c_d weighs moves of plain SGD"):
        Server(momentum, Stages(rule=WK2), Laziness(workers=2, c_d=1.0))


def test_ps_without_smoothness_constants_is_refused() -> None:
    with pytest.raises(LasgError, match="smoothness"):
        Server(ClosedFormSGD(np.zeros(P), Constant(0.1)), Stages(rule=PS), Laziness(workers=M))


# -- rounds ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_everybody_uploads_in_the_first_round_and_moves_before_it_are_zero(rule: str) -> None:
    request, uploads = Run(rule).step()
    assert request.threshold == 0
    assert uploads.uploaded.all()


@pytest.mark.parametrize("rule", LAZY)
def test_opening_a_round_changes_nothing(rule: str) -> None:
    run = Run(rule)
    run.play(7)
    before = run.state()
    one, other = run.server.open(), run.server.open()
    assert (one.k, one.eta, one.threshold) == (other.k, other.eta, other.threshold)
    np.testing.assert_equal(run.state(), before)


@pytest.mark.parametrize("rule", ["lag", "wk2", "ps", "pse"])
def test_a_worker_whose_staleness_reaches_its_limit_is_due(rule: str) -> None:
    D = 4
    run = Run(rule, D=D, c=2.0)
    for _ in range(40):
        tau = run.server.tau.copy()
        request, uploads = run.step()
        assert uploads.uploaded[tau >= D].all()
        if request.k > 1:
            due = tau >= D
            if request.left is not None:  # a server rule has everybody that it asks upload
                due = due | (request.left > request.threshold)
            np.testing.assert_array_equal(request.must_upload, due)


def test_wk1_is_due_by_the_clock_and_not_by_staleness() -> None:
    D = 4
    run = Run("wk1", D=D)
    for k in range(40):
        request, _ = run.step()
        np.testing.assert_array_equal(request.must_upload, np.full(M, k % D == 0))
        assert request.by_rule is (k % D != 0)


@pytest.mark.parametrize("rule", LAZY)
def test_who_is_not_due_uploads_exactly_when_left_exceeds_right(rule: str) -> None:
    run = Run(rule)
    decided = 0
    for _ in range(60):
        due = run.server.tau >= run.server.laziness.D
        request, uploads = run.step()
        left = request.left if uploads.left is None else uploads.left
        if left is not None:
            if request.left is None:
                np.testing.assert_array_equal(request.must_upload, due)
            np.testing.assert_array_equal(uploads.uploaded, (left > request.threshold) | due)
            decided += 1
    assert decided > 20


@pytest.mark.parametrize("rule", ["ps", "pse"])
@each_kind
def test_the_servers_left_side_measures_the_move_since_each_workers_last_upload(rule: str, kind: str) -> None:
    run = Run(rule, kind=kind)
    last, compared = np.zeros((M, P)), 0
    for _ in range(40):
        theta, L = run.theta.copy(), run.server.smoothness.copy()
        request, uploads = run.step()
        if request.left is not None:
            np.testing.assert_allclose(request.left, L**2 * ((theta - last) ** 2).sum(-1), rtol=1e-10, atol=1e-20)
            compared += 1
        last[uploads.uploaded] = theta
    assert compared > 30


def test_pse_asks_everybody_twice_by_default_and_once_when_started_at_zero() -> None:
    assert Run("pse").play(2).all()
    started_at_zero = Run("pse", start="zero").play(2)
    assert started_at_zero[0].all()
    assert not started_at_zero[1].any()


def test_the_estimate_of_pse_never_falls_and_is_a_ratio_of_gradients_to_moves() -> None:
    run = Run("pse")
    last, expected = np.zeros((M, P)), np.zeros(M)
    for k in range(60):
        theta = run.theta.copy()
        _, uploads = run.step()
        for m in np.flatnonzero(uploads.uploaded):
            if k:
                one, other = run.oracle.gradients(k, [theta[None], last[m][None]], np.array([m]))
                ratio = np.linalg.norm(one - other) / np.linalg.norm(theta - last[m])
                expected[m] = max(expected[m], ratio)
            last[m] = theta
        np.testing.assert_allclose(run.server.smoothness, expected, rtol=1e-9)


@each_kind
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_model_that_leaves_the_finite_numbers_is_reported(kind: str, bad: float) -> None:
    run = Run("wk2", kind=kind)
    run.server.open()
    with pytest.raises(Diverged, match="smaller eta"):
        run.server.close(Uploads(np.ones(M, np.bool_)), News(as_kind(np.full(P, bad), kind)))


@pytest.mark.parametrize("rule", LAZY)
@each_kind
@pytest.mark.parametrize("codec", ["dense", "qsgd4"])
def test_ten_times_the_step_that_diverges_says_so(rule: str, kind: str, codec: str) -> None:
    run = Run(rule, codec, kind=kind, dtype="float32", schedule=Constant(1e6))
    with np.errstate(all="ignore"), pytest.raises(LasgError, match="smaller eta"):
        run.play(200)


def test_two_runs_may_be_restored_from_one_state() -> None:
    source, one, other = Run("wk2"), Run("wk2"), Run("wk2")
    source.play(3)
    state = source.state()
    one.restore(state)
    one.play(8)
    other.restore(state)
    other.play(8)
    np.testing.assert_array_equal(one.theta, other.theta)


# -- stored models ---------------------------------------------------------------------------------------------


@each_kind
def test_stored_models_are_those_of_each_workers_last_upload(kind: str) -> None:
    rng = np.random.default_rng(0)
    iterates = Iterates(M, as_kind(np.zeros(P), kind))
    expected = np.zeros((M, P))
    for _ in range(200):
        theta, uploaded = rng.normal(size=P), rng.random(M) < 0.3
        iterates.keep(as_kind(theta, kind), uploaded)
        expected[uploaded] = theta
        np.testing.assert_array_equal(numpy_of(stacked(iterates.rows())), expected)
        np.testing.assert_array_equal(numpy_of(stacked(iterates.rows(np.array([3, 1])))), expected[[3, 1]])
        now = rng.normal(size=P)
        moved = iterates.moved(as_kind(now, kind))
        np.testing.assert_allclose(moved, ((now - expected) ** 2).sum(-1), rtol=1e-12)
        np.testing.assert_array_equal(iterates.moved(as_kind(now, kind), np.array([4])), moved[[4]])


def test_models_are_stored_once_a_round_and_not_once_a_worker() -> None:
    """Room for at most twice the models in use, whatever the number of workers and rounds."""
    rng = np.random.default_rng(1)
    iterates = Iterates(1000, np.zeros(2))
    for _ in range(50):
        iterates.keep(rng.normal(size=2), rng.random(1000) < 0.9)
    assert len(iterates.points) <= 16


# -- rules -----------------------------------------------------------------------------------------------------


@each_kind
def test_the_left_sides_are_those_of_their_equations(kind: str) -> None:
    rng = np.random.default_rng(2)
    grad, probe, old, older = rng.normal(size=(4, M, P))
    now = Record(grad=as_kind(grad, kind), probe=as_kind(probe, kind))
    last = Record(grad=as_kind(old, kind), probe=as_kind(older, kind))
    for rule, difference in (
        (lag, grad - old),
        (wk1, (grad - probe) - (old - older)),
        (wk2, grad - probe),
    ):
        np.testing.assert_allclose(numpy_of(rule(now, last)), (difference**2).sum(-1), rtol=1e-12)
    moved, L = rng.random(M), rng.random(M)
    found = ps(Record(moved=moved, smoothness=L), Record())
    np.testing.assert_allclose(found, L**2 * moved, rtol=1e-15)
    moved[2] = 0.0
    estimate = smoothness_estimate(Record(grad=now.grad, probe=now.probe, moved=moved), Record())
    assert estimate[2] == 0
    others = moved > 0
    ratio = np.linalg.norm(grad - probe, axis=-1)[others] / np.sqrt(moved[others])
    np.testing.assert_allclose(estimate[others], ratio, rtol=1e-12)


def test_a_server_rule_cannot_remember_gradients() -> None:
    with pytest.raises(LasgError, match="server rule"):
        Rule(name="x", left=lag, where="server", remembers=("grad",))
    with pytest.raises(LasgError, match="server rule"):
        Rule(name="x", left=wk1, where="server", probe="snapshot")
    with pytest.raises(LasgError, match="estimate"):
        Rule(name="x", left=ps, estimate=smoothness_estimate)


def test_only_wk1_is_periodic() -> None:
    assert [name for name, rule in RULES.items() if rule.periodic] == [WK1.name]


# -- the table -------------------------------------------------------------------------------------------------


def test_the_twelve_rows_compose_rule_codec_and_local_work_as_the_paper_names_them() -> None:
    rules = {"sgd": "always", "qsgd": "always", "local-sgd": "always", "lag-wk": "lag"}
    for name, row in ALGORITHMS.items():
        assert row.rule.name == rules.get(name, name.split("-")[-1])
        quantised = name in {"qsgd"} or name.startswith("laqsg")
        assert row.codec(4, 512) == (QSGD(bits=4, bucket=512) if quantised else Dense())
        assert row.local_steps(7) == (7 if name == "local-sgd" else 1)


def test_a_composition_names_its_own_rule_codec_and_local_steps() -> None:
    row = algorithm("wk2+qsgd8:512+H4")
    assert row.rule is RULES["wk2"]
    assert row.codec(4, None) == QSGD(bits=8, bucket=512)
    assert row.local_steps(10) == 4
    assert algorithm("ps+dense").codec(4, None) == Dense()


@pytest.mark.parametrize("wrong", ["lasg-wk3", "wk2", "wk2+zip", "wk2+qsgd1", "wk2+H0", "", "+"])
def test_unknown_algorithms_are_refused(wrong: str) -> None:
    with pytest.raises(LasgError):
        algorithm(wrong)


def test_a_misspelt_algorithm_is_answered_with_the_nearest() -> None:
    with pytest.raises(LasgError, match="Did you mean lasg-wk2"):
        algorithm("lasg-wk-2")


def test_torch_tensors_stay_torch_tensors() -> None:
    run = Run("wk2", "qsgd8:3", kind="torch")
    run.play(5)
    assert isinstance(run.server.theta, torch.Tensor)
    assert isinstance(run.server.aggregate, torch.Tensor)
    assert isinstance(run.contributed, torch.Tensor)
