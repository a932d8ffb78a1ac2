"""Stages that remember, of which no engine knows: the same in all, after restarts, and when answers are lost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from lasg.core.algorithms import Stages
from lasg.core.arrays import host
from lasg.core.codecs import QSGD
from lasg.core.rules import RULES
from lasg.core.training import Training
from lasg.transports.federation import Federation
from lasg.transports.nodes import Node
from tests.transports.engines import (
    CUT,
    ROUNDS,
    assert_same_bits,
    assert_same_run,
    distributed_as_simulated,
    federated,
    played,
    simulated,
)
from tests.transports.flaky import Flaky
from tests.transports.test_federation import KEYS, member, serve
from tests.transports.test_ranks import M, regression
from tests.transports.toy_stages import Coarse, Momentum, TopK

PLAIN = {
    "momentum": Stages(estimator=Momentum()),
    "momentum, difference": Stages(estimator=Momentum(), codec=QSGD(bits=8), belief="difference"),
    "momentum, residual": Stages(estimator=Momentum(), belief="residual"),
    "largest entries": Stages(codec=TopK()),
    "coarse": Stages(codec=Coarse()),
    "momentum, largest entries": Stages(estimator=Momentum(), codec=TopK()),
}
CASES = {
    f"{rule}, {name}": replace(stages, rule=RULES[rule])
    for rule in ("always", "wk2", "pse")
    for name, stages in PLAIN.items()
}


@pytest.mark.parametrize("name", CASES)
def test_stages_that_remember_resume_bit_for_bit(name: str) -> None:
    whole, halves = simulated(CASES[name])
    assert_same_bits(whole, halves)
    assert whole.uploaded.all() == name.startswith("always")
    assert np.abs(whole.theta).max() > 0.01


@pytest.mark.parametrize("name", CASES)
def test_in_a_federation_they_do_what_they_do_simulated_and_resume_bit_for_bit(name: str) -> None:
    expected, _ = simulated(CASES[name])
    whole, halves = federated(CASES[name])
    assert_same_run(whole, expected)
    assert_same_bits(whole, halves)


def test_on_ranks_they_do_what_they_do_simulated_and_resume_bit_for_bit() -> None:
    ranks = distributed_as_simulated(CASES)
    assert ranks[0]["wk2, largest entries", "hub"][0].form == "packed"
    assert ranks[0]["wk2, coarse", "hub"][0].form == "summed"
    assert ranks[0]["always, coarse", "hub"][0].form == "totals"


# -- when answers are lost ---------------------------------------------------------------------------------------------


def fates(*kinds: str, share: float = 0.3, seed: int = 0) -> dict[tuple[int, int], str]:
    """Return what befalls which worker in which round, by chance."""
    rng = np.random.default_rng(seed)
    chosen = rng.choice(["", *kinds], (ROUNDS, M), p=[1 - share, *[share / len(kinds)] * len(kinds)])
    return {(k, m): str(fate) for (k, m), fate in np.ndenumerate(chosen) if fate}


def disturbed(stages: Stages, what: dict[tuple[int, int], str]) -> tuple[Training, Federation, Flaky]:
    problem = regression("float64")
    wire = Flaky({100 + m: member(m, stages, problem) for m in range(M)}, what)
    run, federation = serve(stages, wire, problem, deadline=1.0)
    federation.gather(10)
    return run, federation, wire


def nodes(wire: Flaky) -> list[Node]:
    """Return the nodes in the order of their workers."""
    return sorted(wire.there.values(), key=lambda node: KEYS.index(node.key))


@pytest.mark.parametrize("name", CASES)
def test_requests_that_come_twice_and_nodes_that_move_in_a_round_change_nothing(name: str) -> None:
    expected, _ = simulated(CASES[name])
    run, federation, wire = disturbed(CASES[name], fates("moved"))
    found = played(run, ROUNDS)
    np.testing.assert_array_equal(found.uploaded, expected.uploaded)
    np.testing.assert_allclose(found.theta, expected.theta, rtol=0, atol=1e-10)
    assert not federation.members.refused
    assert any(number >= 1000 for number in wire.there)


@pytest.mark.parametrize("name", CASES)
def test_a_server_that_dies_in_a_round_asks_again_and_gets_the_same_answers(name: str) -> None:
    stages = CASES[name]
    whole = played(disturbed(stages, {})[0], ROUNDS)
    run, _, wire = disturbed(stages, {})
    first = played(run, CUT)
    state = run.state()
    run.step()  # which nobody will remember
    again, federation = serve(stages, wire, regression("float64"))
    again.restore(state)
    federation.gather(10)
    assert_same_bits(played(again, ROUNDS - CUT, list(first.uploaded)), whole)


def transcribed(what: dict[tuple[int, int], str], keep: int, beta: float) -> npt.NDArray[np.float64]:
    """Return the model of momentum, the largest entries and plain SGD, without any of lasg's stages."""
    problem = regression("float64")
    theta = host(problem.start()).copy()
    v, left, rows = (np.zeros((M, len(theta))) for _ in range(3))
    for k in range(ROUNDS):
        for m in range(M):
            if what.get((k, m)) == "deaf":
                continue
            gradient = problem.gradients(k, [theta], np.array([m]))[0][0]
            v[m] = beta * v[m] + (1 - beta) * gradient
            if what.get((k, m)) == "lost":
                continue
            wanted = left[m] + v[m]
            largest = np.argsort(-np.abs(wanted), kind="stable")[:keep]
            rows[m] = 0
            rows[m, largest] = wanted[largest]
            left[m] = wanted - rows[m]
        theta = theta - 0.1 * rows.sum(0)
    return theta


@pytest.mark.parametrize("seed", range(3))
def test_what_is_lost_was_never_said_and_what_is_asked_twice_is_counted_once(seed: int) -> None:
    what = fates("deaf", "lost", "moved", share=0.5, seed=seed)
    run, federation, _ = disturbed(Stages(estimator=Momentum(beta=0.8), codec=TopK(keep=7)), what)
    found = played(run, ROUNDS)
    silent = np.array([[what.get((k, m)) in ("deaf", "lost") for m in range(M)] for k in range(ROUNDS)])
    np.testing.assert_array_equal(found.uploaded, ~silent)
    np.testing.assert_allclose(found.theta, transcribed(what, keep=7, beta=0.8), rtol=0, atol=1e-10)
    assert not federation.members.refused


@pytest.mark.parametrize("rule", ["always", "wk2", "pse"])
@pytest.mark.parametrize("name", PLAIN)
def test_both_sides_believe_the_same_whatever_was_lost(name: str, rule: str) -> None:
    stages = replace(PLAIN[name], rule=RULES[rule])
    run, federation, wire = disturbed(stages, fates("deaf", "lost", "moved", share=0.5))
    found = played(run, ROUNDS)
    assert not federation.members.refused
    assert 0 < found.uploaded.sum() < found.uploaded.size
    listener = federation.listener
    for m, node in enumerate(nodes(wire)):
        speaker = node.workers.speaker
        speaker.confirm(federation.held[m])
        if stages.belief == "difference":
            assert speaker.rows[0].tobytes() == listener.rows[m].tobytes()
        for part, kept in speaker.decoder.items():
            np.testing.assert_array_equal(kept[0], listener.decoder[part][m])
    if stages.belief != "residual":
        np.testing.assert_allclose(host(run.server.aggregate), host(listener.rows).sum(0), atol=1e-12)


@pytest.mark.parametrize("rule", ["always", "wk2"])
@pytest.mark.parametrize("estimator", [None, Momentum(beta=0.8)])
def test_of_a_residual_everything_is_said_once_or_still_to_be_said(rule: str, estimator: Momentum | None) -> None:
    stages = Stages(rule=RULES[rule], estimator=estimator, belief="residual")
    what = fates("deaf", "lost", "moved", share=0.5) | {(ROUNDS - 1, 0): "lost"}
    run, federation, wire = disturbed(stages, what)
    problem, v = regression("float64"), np.zeros((M, 18))
    start, total = host(run.theta).copy(), np.zeros(18)
    for k in range(ROUNDS):
        theta = host(run.theta).copy()
        run.step()
        for m in [m for m, node in enumerate(nodes(wire)) if node.k == k]:  # who was reached
            gradient = problem.gradients(k, [theta], np.array([m]))[0][0]
            v[m] = gradient if estimator is None else 0.8 * v[m] + 0.2 * gradient
            total += v[m]
    said, unsaid = (start - host(run.theta)) / 0.1, np.zeros(18)
    for m, node in enumerate(nodes(wire)):
        node.workers.speaker.confirm(federation.held[m])
        unsaid += node.workers.speaker.rows[0]
    np.testing.assert_allclose(said + unsaid, total, rtol=0, atol=1e-10)
    assert np.abs(unsaid).max() > 1e-3
