"""Stages that remember, of which no engine knows: the same in all, after restarts, and when answers are lost."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from lasg import counter
from lasg.core import coded
from lasg.core.algorithms import Stages, algorithm
from lasg.core.arrays import host
from lasg.core.codecs import QSGD
from lasg.core.further_rules import FDA
from lasg.core.optimizers import ClosedFormSGD, Constant
from lasg.core.rules import RULES
from lasg.core.training import Training
from lasg.core.work import OptimizerSteps
from lasg.errors import LasgError
from lasg.problems.regression import Regression
from lasg.transports.federation import Federation
from lasg.transports.model_deltas import Steps, follow
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
from tests.transports.test_federation import KEYS, LAZINESS, member, serve, training
from tests.transports.test_ranks import M, regression
from tests.transports.toy_stages import Coarse, Momentum, TopK, Unsaid
from tests.transports.wire import Wire

PLAIN = {
    "momentum": Stages(estimator=Momentum()),
    "momentum, difference": Stages(estimator=Momentum(), codec=QSGD(bits=8), belief="difference"),
    "momentum, residual": Stages(estimator=Momentum(), belief="residual"),
    "largest entries": Stages(codec=TopK()),
    "coarse": Stages(codec=Coarse()),
    "unsaid": Stages(estimator=Unsaid()),
    "unsaid, coarse": Stages(estimator=Unsaid(), codec=QSGD(bits=8)),
    "momentum, largest entries": Stages(estimator=Momentum(), codec=TopK()),
}
CASES = {
    f"{rule}, {name}": replace(stages, rule=RULES[rule])
    for rule in ("always", "wk2", "pse")
    for name, stages in PLAIN.items()
    if rule != "pse" or stages.belief != "residual"  # refused: who is not asked has nothing left to say
}
INNER = {
    "SGD with momentum": OptimizerSteps(steps=3, eta=0.1, options={"momentum": 0.9}),
    "AdamW": OptimizerSteps(
        steps=3, optimizer="AdamW", eta=0.01, schedule="CosineAnnealingLR", schedule_options={"T_max": 100}
    ),
    "AdamW, longer rounds": OptimizerSteps(
        steps=2,
        optimizer="AdamW",
        eta=0.01,
        schedule="LinearLR",
        schedule_options={"start_factor": 1.0, "end_factor": 0.4, "total_iters": 40},
        qsr=0.014,
    ),
    "SGD, drift corrected": OptimizerSteps(steps=3, eta=0.1, options={"momentum": 0.9}, memory="reset", drift=0.5),
}
AVERAGED = (
    ("SGD with momentum", "dense", "replace"),
    ("SGD with momentum", "qsgd8:6", "difference"),
    ("AdamW", "grid0.1+ec", "residual"),
    ("AdamW", "lowrank1", "residual"),
    ("AdamW, longer rounds", "dense", "replace"),
)
ALL_OR_NOBODY = (
    ("SGD with momentum", "dense"),
    ("SGD with momentum", "qsgd4:6"),
    ("AdamW", "topk0.2:2bit+ec"),
    ("AdamW", "lowrank1"),
    ("AdamW, longer rounds", "dense"),
)
OWN: dict[str, Stages] = (
    {
        name: algorithm(name).stages()
        for name in (
            "lasg-vr",
            "always+storm+grid0.25+ec+difference",
            "ps+storm",
            "lasg-sparse",
            "always+topk0.2:warm6+ec+residual0.95+correction0.5",
            "lag+topk0.2:2bit:chunk5+residual+correction",
            "dgc",
            "ef21-sgdm",
            "ef21",
            "clag",
            "clag+grid0.25+ec+momentum+difference",
            "laq",
            "laq+sign:5+difference",
            "sasg",
            "wk2+uniform4+ec+ef",
            "wk2+qsgd4+ec",
            "wk2+qsgd4:5+ec+ef",
            "always+qsgd4:5+ec+residual",
            "wk2+uniform4+ec+difference",
            "powersgd",
            "wk2+lowrank1+ef",
            "always+sign:5+residual0.9",
            "always+sign:5+ec+residual",
            "pse-recent+dense",
            "pse-code+grid+difference",
            "lag+dense+residual+median-clip",
            "always+topk0.3:2bit:chunk5+ec+residual0.95+median-clip",
        )
    }
    | {
        f"{name}, {codec}": Stages(inner=inner, codec=codec, belief="residual", decay=0.95)  # type: ignore[arg-type]
        for name, inner in INNER.items()
        for codec in ("topk0.2:2bit+ec", "topk0.2:warm5")
    }
    | {
        f"{name}, averaged, {codec}": Stages(inner=replace(INNER[name], memory="averaged"), codec=codec, belief=belief)  # type: ignore[arg-type]
        for name, codec, belief in AVERAGED
    }
    | {
        f"{name}, {codec}, all or nobody": Stages(rule=FDA, inner=INNER[name], codec=codec, belief="residual")  # type: ignore[arg-type]
        for name, codec in ALL_OR_NOBODY
    }
    | {"AdamW, clag": replace(algorithm("clag+topk0.2:float+ec+difference").stages(), inner=INNER["AdamW"])}
)
"""lasg's own stages, and those of other papers."""
CASES |= {name: stages.for_shapes(((6, 3),)) for name, stages in OWN.items()}
BY_BLOCK = (
    "lag+dense+difference+blocks5",
    "lag+qsgd4:3+ec+difference+blocks",
    "clag+topk0.3:float:warm5+ec+difference+blocks",
    "clag+grid0.25+momentum+difference+blocks5",
    "laq+uniform4+difference+blocks",
    "wk1+lowrank1+difference+blocks",
    "lag+topk0.2:2bit+residual+correction+blocks",
)
CASES |= {name: algorithm(name).stages().for_shapes(((2, 3), (12,))) for name in BY_BLOCK}
EAGER = {name for name, stages in CASES.items() if stages.rule.name == "always"}


@pytest.mark.parametrize("name", CASES)
def test_stages_that_remember_resume_bit_for_bit(name: str) -> None:
    whole, halves = simulated(CASES[name])
    assert_same_bits(whole, halves)
    assert whole.uploaded.all() == (name in EAGER)
    assert np.abs(whole.theta).max() > 0.01


@pytest.mark.parametrize("name", CASES)
def test_in_a_federation_they_do_what_they_do_simulated_and_resume_bit_for_bit(name: str) -> None:
    expected, _ = simulated(CASES[name])
    whole, halves = federated(CASES[name])
    assert_same_run(whole, expected)
    assert_same_bits(whole, halves)


def test_on_ranks_they_do_what_they_do_simulated_and_resume_bit_for_bit() -> None:
    ranks = distributed_as_simulated({name: stages for name, stages in CASES.items() if name not in BY_BLOCK})
    assert ranks[0]["wk2, largest entries", "hub"][0].form == "packed"
    assert ranks[0]["wk2, coarse", "hub"][0].form == "summed"
    assert ranks[0]["always, coarse", "hub"][0].form == "totals"


def test_on_ranks_blocks_are_decided_as_simulated_and_resume_bit_for_bit() -> None:
    ranks = distributed_as_simulated({name: CASES[name] for name in BY_BLOCK})
    assert {whole.form for whole, _ in ranks[0].values()} == {"packed"}


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


@pytest.mark.parametrize("name", CASES)
def test_both_sides_believe_the_same_whatever_was_lost(name: str) -> None:
    stages = CASES[name]
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


@pytest.mark.parametrize("seed", range(3))
def test_momentum_is_cleared_where_a_message_that_came_said_it_and_nowhere_else(seed: int) -> None:
    """Deep gradient compression written out, with answers that are lost: nothing of those is taken for said."""
    what = fates("deaf", "lost", "moved", share=0.5, seed=seed)
    keep, beta, decay = 7, 0.8, 0.9
    stages = algorithm(f"always+topk{keep / 18}:float+residual{decay}+correction{beta}").stages()
    run, federation, _ = disturbed(stages, what)
    found = played(run, ROUNDS)
    problem = regression("float64")
    theta = host(problem.start()).copy()
    u, left = np.zeros((M, len(theta))), np.zeros((M, len(theta)))
    for k in range(ROUNDS):
        total = np.zeros_like(theta)
        for m in range(M):
            if what.get((k, m)) == "deaf":
                continue
            u[m] = beta * u[m] + problem.gradients(k, [theta], np.array([m]))[0][0]
            left[m] = decay * left[m] + u[m]
            if what.get((k, m)) == "lost":
                continue
            largest = np.argsort(-np.abs(left[m]), kind="stable")[:keep]
            said = left[m, largest].astype(np.float32)
            total[largest] += said
            left[m, largest] -= said
            u[m, largest] = 0
        theta = theta - 0.1 * total
    np.testing.assert_allclose(found.theta, theta, rtol=0, atol=1e-10)
    assert not federation.members.refused


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


class Late(Regression):
    """Some workers have no finite gradient in the first rounds."""

    def gradients(self, iteration: int, points: Any, rows: Any) -> list[Any]:
        found = super().gradients(iteration, points, rows)
        who = np.arange(M) if rows is None else rows
        bad = (who % 2 == 1) & (iteration < 2)
        return [np.where(bad[:, None], np.nan, grad) for grad in found]


@pytest.mark.parametrize("name", ["lasg-vr", "always+storm+difference", "laq", "clag", "lasg-sparse", "wk2+qsgd4+ec"])
def test_who_begins_late_does_so_in_a_federation_as_it_does_simulated(name: str) -> None:
    """Under lasg-vr such a worker may be silent in its first sound round: it remembers that round's model."""
    stages, problem = algorithm(name).stages(), regression("float64", kind=Late)
    expected = played(training(stages, problem, LAZINESS, problem), ROUNDS)
    run, federation = serve(stages, Wire({100 + m: member(m, stages, problem) for m in range(M)}), problem)
    federation.gather(10)
    found = played(run, ROUNDS)
    assert not expected.uploaded[:2, 1].any()
    if name == "lasg-vr":
        assert not expected.uploaded[2, 1::2].all()
    assert_same_run(found, expected)


@pytest.mark.parametrize("name", ["always+qsgd4:5+ec+residual", "wk2+qsgd4:5+ec"])
def test_long_messages_are_decoded_with_the_noise_of_their_round(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coded, "SHORT", 0)
    stages, problem = algorithm(name).stages(), regression("float64")
    expected = played(training(stages, problem, LAZINESS, problem), ROUNDS)
    run, federation = serve(stages, Wire({100 + m: member(m, stages, problem) for m in range(M)}), problem)
    federation.gather(10)
    assert_same_run(played(run, ROUNDS), expected)


def test_a_node_repeats_steps_with_the_noise_of_each_messages_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coded, "SHORT", 0)
    stages, p, seed = algorithm("always+qsgd3+ec+residual").stages(), 1000, 3
    rows, like = np.random.default_rng(0).normal(size=(2, p)), np.zeros(p)
    steps: Steps = {}
    for k in (7, 8):
        draws = counter.rounding_noise(seed, k, np.arange(2), p)
        messages = stages.codec.encode(rows, lambda draws=draws: draws)  # type: ignore[misc]
        steps[k] = {m: (k, message) for m, message in enumerate(messages)}
        like = like - QSGD(bits=3).transmit(rows, lambda draws=draws: draws)[0].sum(0)  # type: ignore[misc]
    optimizer = ClosedFormSGD(np.zeros(p), Constant(1.0))
    follow(optimizer, {}, steps, stages, 2, seed)
    np.testing.assert_array_equal(optimizer.theta, like)
    other = ClosedFormSGD(np.zeros(p), Constant(1.0))
    with contextlib.suppress(LasgError):
        follow(other, {}, steps, stages, 2, seed + 1)
    assert not np.array_equal(other.theta, like)
