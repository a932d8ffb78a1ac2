"""A rule that keeps something of every round, also of those in which nobody uploads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from lasg.core import arrays, workers
from lasg.core.arrays import Array, sq, zeros
from lasg.core.codecs import State
from lasg.core.messages import Request
from lasg.core.optimizers import ClosedFormSGD, Constant
from lasg.core.rules import LAG, Record, Rule
from lasg.core.server import Laziness
from lasg.core.training import Training
from lasg.packing import pack, unpack
from lasg.transports.local import simulate
from tests.core.toy import KINDS, M, P, Run, Toy, as_kind, numpy_of

each_kind = pytest.mark.parametrize("kind", KINDS)
ROUNDS = 40


@dataclass(frozen=True)
class Mean:
    """The running mean of a worker's gradients, and over how many rounds it is."""

    def init(self, count: int, theta: Array) -> State:
        return {"mean": zeros((count, theta.shape[-1]), theta), "rounds": zeros((count,), theta)}

    def update(self, now: Record, state: State) -> State:
        rounds = state["rounds"] + 1
        return {"mean": state["mean"] + (now.grad - state["mean"]) / rounds[:, None], "rounds": rounds}


def surprise(now: Record, last: Record) -> Array:
    """How far the mean of all rounds has moved from the last gradient that was said."""
    assert now.state is not None
    return sq(now.state["mean"] - last.grad)


SURPRISE = Rule(name="surprise", left=surprise, remembers=("grad",), watch=Mean())


class Numbers:
    """The same mean in plain words."""

    def __init__(self) -> None:
        self.mean, self.rounds = np.zeros((M, P)), np.zeros(M)

    def see(self, k: int, theta: Any, who: Any) -> None:
        [grad] = Toy().gradients(k, [numpy_of(theta)], who)
        self.rounds[who] += 1
        self.mean[who] += (grad - self.mean[who]) / self.rounds[who][:, None]


def watched(of: workers.Workers) -> dict[str, Any]:
    return {name: numpy_of(value).copy() for name, value in of.watched.items()}


@each_kind
@pytest.mark.parametrize("long", [False, True], ids=["at once", "row by row"])
def test_a_rule_sees_every_round_also_the_silent_ones(kind: str, long: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if long:
        monkeypatch.setattr(workers, "AT_ONCE", 1)
        monkeypatch.setattr(arrays, "AT_ONCE", 1)
    run, numbers, everybody = Run(SURPRISE, kind=kind), Numbers(), np.arange(M)
    last, silent = np.zeros((M, P)), 0
    for k in range(ROUNDS):
        request, uploads = run.step()
        numbers.see(k, request.theta, everybody)
        np.testing.assert_array_equal(watched(run.workers)["mean"], numbers.mean)
        np.testing.assert_array_equal(watched(run.workers)["rounds"], np.full(M, k + 1))
        if uploads.left is not None:
            np.testing.assert_allclose(uploads.left, ((numbers.mean - last) ** 2).sum(-1), rtol=1e-12)
        last[uploads.uploaded] = numpy_of(run.workers.memory["grad"])[uploads.uploaded]
        silent += int((~uploads.uploaded).sum())
    assert silent > ROUNDS


@each_kind
def test_who_does_not_compute_sees_nothing(kind: str) -> None:
    run, numbers, drawn = Run(SURPRISE, kind=kind), Numbers(), np.random.default_rng(0)
    for k in range(ROUNDS):
        computes = drawn.random(M) < 0.5
        theta = as_kind(drawn.normal(size=P), kind)
        run.workers.answer(Request(k, theta, 0.1, 1.0, computes, np.zeros(M, np.bool_)))
        if computes.any():
            numbers.see(k, theta, np.flatnonzero(computes))
        np.testing.assert_array_equal(watched(run.workers)["mean"], numbers.mean)
        np.testing.assert_array_equal(watched(run.workers)["rounds"], numbers.rounds)


@each_kind
def test_who_has_no_finite_gradient_sees_nothing_of_that_round(kind: str) -> None:
    run = Run(SURPRISE, kind=kind)
    run.play(5)
    before = watched(run.workers)
    finite = run.oracle.a[5, 3] * 1
    run.oracle.a[5, 3] = np.nan
    _, uploads = run.step()
    run.oracle.a[5, 3] = finite
    assert uploads.broken is not None
    assert np.flatnonzero(uploads.broken).tolist() == [3]
    assert watched(run.workers)["rounds"].tolist() == [6, 6, 6, 5, 6]
    np.testing.assert_array_equal(watched(run.workers)["mean"][3], before["mean"][3])
    _, uploads = run.step()
    assert uploads.broken is None
    assert uploads.left is None or np.isfinite(uploads.left).all()


@each_kind
@pytest.mark.parametrize("k", [0, 1, 7, 15])
def test_what_a_rule_saw_is_resumed_bit_for_bit(kind: str, k: int) -> None:
    whole, resumed = Run(SURPRISE, kind=kind), Run(SURPRISE, kind=kind)
    whole.play(k)
    resumed.restore(whole.state())
    for _ in range(20):
        (_, one), (_, other) = whole.step(), resumed.step()
        np.testing.assert_array_equal(one.uploaded, other.uploaded)
        np.testing.assert_equal(one.left, other.left)
        np.testing.assert_equal(watched(resumed.workers), watched(whole.workers))
        np.testing.assert_array_equal(resumed.theta, whole.theta)


class Whole(Toy):
    workers = M


def training(kind: str) -> Training:
    optimizer = ClosedFormSGD(as_kind(np.zeros(P), kind), Constant(0.1))
    return simulate(Whole(kind), optimizer, rule=SURPRISE, laziness=Laziness(workers=M, D=6, c=0.5))  # type: ignore[arg-type]


@each_kind
def test_a_training_that_is_resumed_in_the_middle_of_silence_goes_on_bit_for_bit(kind: str) -> None:
    whole, resumed = training(kind), training(kind)
    for _ in range(9):
        finished = whole.step()
    while finished.uploaded.any() and finished.k < ROUNDS:
        finished = whole.step()
    assert not finished.uploaded.any()
    state = whole.state()
    resumed.restore(unpack(pack(state), "a checkpoint") if kind == "numpy" else state)
    for _ in range(20):
        one, other = whole.step(), resumed.step()
        np.testing.assert_array_equal(one.uploaded, other.uploaded)
        np.testing.assert_equal(one.left, other.left)
    np.testing.assert_array_equal(numpy_of(whole.theta), numpy_of(resumed.theta))
    assert whole.ledger == resumed.ledger


def test_a_rule_that_watches_remembers_rounds_and_one_that_does_not_does_not() -> None:
    assert Run(SURPRISE).workers.remembers_rounds
    assert not Run(LAG).workers.remembers_rounds
