"""The guard: laziness stays where it is harmless, reuse is limited where there is noise, and harm ends it."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from lasg.core.algorithms import Stages, algorithm
from lasg.core.guard import WINDOW, Guard
from lasg.core.messages import News, Request, Uploads
from lasg.core.optimizers import ClosedFormSGD, Constant
from lasg.core.rules import RULES, WK2
from lasg.core.server import RHO, Laziness, Server, laziness_of
from lasg.errors import LasgError

M, P = 4, 50


def watched(rounds: int, *, noise: float, loss: float | None = None, uploads: int = 2) -> Guard:
    """Return a guard after so many rounds whose fresh contributions have a share of noise that stale ones have not."""
    guard = Guard()
    for k in range(1, rounds + 1):
        guard.close(k, uploads / M, news=2 * noise * uploads / M, size=1.0, loss=loss)
    return guard


def test_agreement_is_one_less_the_share_of_noise_however_few_upload() -> None:
    for uploads in (1, 2, 4):
        assert watched(WINDOW, noise=0.3, uploads=uploads).agreement == pytest.approx(0.7)


def test_nothing_is_limited_before_a_whole_window_is_known() -> None:
    assert watched(WINDOW - 1, noise=1.0).reuse_limit == math.inf


@pytest.mark.parametrize(("noise", "limit"), [(0.0, math.inf), (0.3, 24), (0.66, 6), (0.92, 1), (1.0, 1)])
def test_the_noisier_the_contributions_the_less_often_one_is_used_again(noise: float, limit: float) -> None:
    assert watched(WINDOW, noise=noise).reuse_limit == pytest.approx(limit)


def test_with_momentum_noise_averages_out_over_fewer_rounds_and_is_used_again_less_often() -> None:
    guard = Guard(horizon=WINDOW / 19)
    for k in range(WINDOW):
        guard.close(k, 0.5, 0.66, 1.0, loss=None)
    assert watched(WINDOW, noise=0.66).reuse_limit == 6
    assert guard.reuse_limit == 1


def test_laziness_is_given_up_after_a_window_in_which_no_reuse_was_allowed_and_the_reason_is_one_line() -> None:
    guard = watched(2 * WINDOW - 2, noise=0.96)
    assert not guard.given_up
    guard.close(99, 1.0, news=1.92, size=1.0, loss=None)
    assert "in round 99" in guard.given_up
    assert "agreement 0.04, 1 is full" in guard.given_up
    assert "\n" not in guard.given_up


def test_a_loss_that_rises_while_contributions_are_stale_ends_laziness() -> None:
    guard = watched(WINDOW, noise=0.0, loss=1.0)
    for k in range(WINDOW):
        guard.close(100 + k, 0.5, 0.0, 1.0, loss=2.0)
    assert "the loss rose to" in guard.given_up


@pytest.mark.parametrize("uploads", [2, 4])
def test_a_loss_that_is_noisy_but_level_or_rises_while_all_is_fresh_ends_nothing(uploads: int) -> None:
    guard = Guard()
    drawn = np.random.default_rng(0)
    for k in range(400):
        level = 1.0 if uploads < M or k < 200 else 3.0
        guard.close(k, uploads / M, 0.0, 1.0, loss=float(level * drawn.uniform(0.5, 1.5)))
    assert not guard.given_up


def test_a_guard_goes_on_from_its_state_as_if_it_had_not_been_stopped() -> None:
    one = watched(WINDOW + 5, noise=0.96, loss=1.0)
    other = Guard()
    other.restore(json.loads(json.dumps(one.state())))
    for guard in (one, other):
        for k in range(WINDOW):
            guard.close(100 + k, 0.5, 1.0, 1.0, loss=1.0)
    assert one == other
    assert one.given_up


# -- on a server ---------------------------------------------------------------------------------------------------


def server(rule: str = "wk2", *, guard: bool = True, rho: float | None = RHO, momentum: float = 0.0) -> Server:
    optimizer = ClosedFormSGD(np.zeros(P), Constant(0.1))
    optimizer.momentum = momentum
    laziness = Laziness(workers=M, D=20, rho=rho, guard=guard)
    return Server(optimizer, Stages(rule=RULES[rule]), laziness, np.ones(M))


def play(of: Server, rounds: int, noise: float, *, whole: bool = False) -> list[Request]:
    """Let workers whose contributions are a constant and noise upload whenever they are due; one always does."""
    drawn = np.random.default_rng(1)
    held, requests = np.zeros((M, P)), []
    for k in range(rounds):
        requests.append(of.open())
        due = requests[-1].must_upload.copy()
        due[k % M] = True
        fresh = np.ones((M, P)) / M + noise * drawn.normal(size=(M, P))
        innovation = (fresh - held)[due].sum(0)
        held[due] = fresh[due]
        if whole:
            of.close(Uploads(due), News(held.sum(0), whole=True))
        else:
            of.close(Uploads(due), News(innovation))
    return requests


def test_contributions_without_noise_stay_lazy_and_noise_ends_it_for_every_lazy_rule() -> None:
    for rule in ("lag", "wk1", "wk2", "ps", "pse"):
        quiet, noisy = server(rule), server(rule)
        assert not np.all(play(quiet, 100, 1e-3)[-1].must_upload)
        last = play(noisy, 100, 10.0)[-1]
        assert quiet.guard is not None
        assert not quiet.guard.given_up, rule
        assert noisy.guard is not None
        assert noisy.guard.given_up, rule
        assert np.all(last.must_upload)
        assert last.points == 1
        assert math.isnan(last.threshold)


def test_who_gives_up_laziness_still_probes_for_an_estimator_that_needs_it() -> None:
    stages = algorithm("lasg-vr").stages()
    of = Server(ClosedFormSGD(np.zeros(P), Constant(0.1)), stages, Laziness(workers=M, rho=RHO, guard=True))
    last = play(of, 100, 10.0)[-1]
    assert of.guard is not None
    assert of.guard.given_up
    assert np.all(last.must_upload)
    assert last.points == 2


def test_whole_news_show_the_guard_what_changes_do() -> None:
    one, other = server(), server()
    play(one, 60, 0.5)
    play(other, 60, 0.5, whole=True)
    assert one.guard is not None
    assert other.guard is not None
    assert 0.0 < one.guard.agreement < 1.0
    assert other.guard.agreement == pytest.approx(one.guard.agreement)


def test_a_heavy_worker_that_uploads_alone_is_most_of_the_news() -> None:
    weights = np.array([0.97, 0.01, 0.01, 0.01])
    of = Server(
        ClosedFormSGD(np.zeros(P), Constant(0.1)),
        Stages(rule=WK2),
        Laziness(workers=M, rho=RHO, guard=True),
        weights=weights,
    )
    drawn, only = np.random.default_rng(0), np.array([True, False, False, False])
    held = np.zeros((M, P))
    for k in range(60):
        fresh = weights[:, None] * (1 + 0.3 * drawn.normal(size=(M, P)))
        who = np.ones(M, np.bool_) if k == 0 else only
        of.close(Uploads(who), News((fresh - held)[who].sum(0)))
        held[who] = fresh[who]
    assert of.guard is not None
    assert of.guard.agreement == pytest.approx(1 - 0.09 / 1.09, abs=0.03)


@pytest.mark.parametrize("rule", ["lag", "wk1", "wk2", "pse"])
def test_where_no_reuse_is_allowed_everybody_is_due_under_every_rule(rule: str) -> None:
    of = server(rule)
    play(of, 25, 0.0)
    assert of.guard is not None
    of.tau[:] = 1
    assert not np.all(of._must_upload())
    of.guard.news.extend([2.0] * WINDOW)
    of.guard.sizes.extend([1.0] * WINDOW)
    assert np.all(of._must_upload())


def test_a_worker_that_is_gone_for_good_does_not_end_the_others_laziness() -> None:
    of = closed(server(), 0.3)
    of.tau[0] = 10_000
    assert of.threshold(0.1) == pytest.approx(closed(server(), 0.3).threshold(0.1) * M / (M - 1 + of.laziness.D))


def test_a_checkpoint_of_another_kind_of_laziness_leaves_its_history_and_a_new_guard_begins() -> None:
    by_c, by_rho = closed(server(rho=None, guard=False), 0.3), server()
    by_rho.restore(by_c.state())
    assert by_rho.threshold(0.1) == 0
    assert by_rho.guard == Guard()
    assert len(by_c.history) == 3


def test_where_everybody_uploads_there_is_nothing_to_guard() -> None:
    assert server("always").guard is None
    assert server(guard=False).guard is None


def test_a_restored_server_has_given_up_too() -> None:
    one, other = server(), server()
    play(one, 100, 10.0)
    other.restore(one.state())
    assert other.open().points == 1
    assert np.all(other.open().must_upload)


# -- the threshold from rho ----------------------------------------------------------------------------------------


def closed(of: Server, size: float, rounds: int = 3) -> Server:
    for _ in range(rounds):
        of.open()
        of.close(Uploads(np.ones(M, np.bool_)), News(np.full(P, size) - of.aggregate))
    return of


def test_the_aggregates_error_is_at_most_rho_of_its_size_where_all_errors_agree() -> None:
    of = closed(server(), 0.3)
    largest = M * math.sqrt(of.threshold(0.1))  # every worker's error as large as allowed, all in one direction
    assert largest == pytest.approx(RHO * 0.3 * math.sqrt(P))


def test_momentum_and_reuse_make_the_threshold_smaller() -> None:
    plain, heavy = closed(server(), 0.3), closed(server(momentum=0.9), 0.3)
    assert plain.threshold(0.1) / heavy.threshold(0.1) == pytest.approx(1.9 / 0.1)
    before = plain.threshold(0.1)
    plain.tau = plain.tau * 3
    assert before / plain.threshold(0.1) == pytest.approx(3)


def test_the_papers_constant_is_a_bound_of_one_on_the_relative_error() -> None:
    by_rho, by_c = closed(server(rho=1.0), 0.3, 10), closed(server(rho=None), 0.3, 10)
    assert by_c.laziness.c == 0.1
    assert by_rho.threshold(0.1) == pytest.approx(by_c.threshold(0.1))


def test_real_workers_are_as_lazy_as_rho_says_unless_the_papers_constant_is_asked_for() -> None:
    assert laziness_of(3, rho=None, c=None) == Laziness(workers=3, rho=RHO, guard=True)
    assert laziness_of(3, rho=0.2, c=None, guard=False) == Laziness(workers=3, rho=0.2)
    assert laziness_of(3, rho=None, c=0.1) == Laziness(workers=3, c=0.1)
    assert laziness_of(3, rho=None, c=0.1, guard=True) == Laziness(workers=3, c=0.1, guard=True)
    with pytest.raises(LasgError, match="both say how lazy"):
        laziness_of(3, rho=0.2, c=0.1)
    with pytest.raises(LasgError, match="rho must be"):
        Laziness(workers=3, rho=-1.0)
    with pytest.raises(LasgError, match="set one of them"):
        Laziness(workers=3, rho=1.0, c_d=1.0)
    assert (
        Server(ClosedFormSGD(np.zeros(P), Constant(0.1)), Stages(rule=WK2), Laziness(workers=M, rho=0.0)).threshold(0.1)
        == 0
    )
