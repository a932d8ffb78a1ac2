"""A request to some of the workers, of whom some may stay silent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from lasg.core import arrays, workers
from lasg.core.algorithms import Stages
from lasg.core.arrays import Mask, stacked
from lasg.core.belief import Listener
from lasg.core.codec_names import parse
from lasg.core.messages import Request, Uploads
from lasg.core.rules import RULES, points_of
from lasg.core.workers import Workers
from tests.core.toy import KINDS, M, P, Toy, as_kind, for_workers, numpy_of

D, ROUNDS = 6, 30
each_rule = pytest.mark.parametrize("rule", ["lag", "wk1", "wk2"])
each_codec = pytest.mark.parametrize("codec", ["dense", "qsgd4:3"])
each_kind = pytest.mark.parametrize("kind", KINDS)


class Believer:
    """The workers in plain words: every vector of every worker by itself, in float64."""

    def __init__(self, rule: str, codec: str) -> None:
        self.rule, self.codec = rule, parse(codec)
        self.grad, self.probe, self.last, self.rows = np.zeros((4, M, P))
        self.snapshot = np.zeros(P)

    def gradient(self, m: int, k: int, theta: npt.NDArray[Any]) -> npt.NDArray[Any]:
        row: npt.NDArray[Any] = Toy().gradients(k, [theta[None]], np.array([m]))[0][0]
        return row

    def open(self, k: int, theta: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return the left side that each worker would have."""
        if k % D == 0:
            self.snapshot = theta
        self.now = np.array([self.gradient(m, k, theta) for m in range(M)])
        other = [self.snapshot] * M if self.rule == "wk1" else self.last
        self.then = np.array([self.gradient(m, k, other[m]) for m in range(M)])
        if k == 0:
            self.then = self.now
        changes = {
            "lag": self.now - self.grad,
            "wk1": (self.now - self.then) - (self.grad - self.probe),
            "wk2": self.now - self.then,
        }
        left: npt.NDArray[np.float64] = (changes[self.rule] ** 2).sum(-1)
        return left

    def close(self, k: int, theta: npt.NDArray[Any], uploaded: Mask, of: Workers) -> list[bytes]:
        """Remember what the uploaders said; return their messages."""
        who = np.flatnonzero(uploaded)
        if not len(who):
            return []
        messages = self.codec.encode(self.now[who], of._noise(k, who, P))
        self.rows[who] = self.codec.decode(messages, self.now[0])
        self.grad[who], self.probe[who], self.last[who] = self.now[who], self.then[who], theta
        return messages


def requests(rule: str, codec: str, kind: str, of: Workers) -> Iterator[tuple[Request, Uploads, Believer, list[bytes]]]:
    """Ask everybody once, then some, of whom some must upload; yield what came and what had to come."""
    drawn, believer = np.random.default_rng(4), Believer(rule, codec)
    for k in range(ROUNDS):
        theta = drawn.normal(size=P)
        computes = drawn.permutation(M) < drawn.integers(2, M)
        must = computes & (drawn.random(M) < 0.3)
        must[np.flatnonzero(computes)[0]] = False
        if k == 0:
            computes = must = np.ones(M, np.bool_)
        left = believer.open(k, theta)
        threshold = float(np.median(left[computes]))
        points = int(points_of(RULES[rule].probe, k, D))
        request = Request(k, as_kind(theta, kind), 0.1, threshold, computes, must, None, points, k > 0)
        uploads = of.answer(request)
        expected = must.copy()
        if k:
            assert uploads.left is not None
            np.testing.assert_allclose(uploads.left, np.where(computes, left, np.nan), rtol=1e-12)
            expected |= computes & (uploads.left > threshold)
        np.testing.assert_array_equal(uploads.uploaded, expected)
        messages = believer.close(k, theta, expected, of)
        assert uploads.uploads == len(messages) == expected.sum()
        assert uploads.bits == 8 * sum(map(len, messages))
        assert uploads.gradients == points * computes.sum()
        yield request, uploads, believer, messages


def check_memory(of: Workers, believer: Believer) -> None:
    for name, kept in of.memory.items():
        np.testing.assert_array_equal(numpy_of(kept), getattr(believer, name))
    if of.iterates is not None:
        np.testing.assert_array_equal(numpy_of(stacked(of.iterates.rows())), believer.last)


def team(
    rule: str, codec: str, kind: str, ids: Sequence[int] = range(M), *, hears: bool = True
) -> tuple[Workers, Listener | None]:
    theta, stages = as_kind(np.zeros(P), kind), Stages(rule=RULES[rule], codec=parse(codec))
    listener = Listener("replace", stages.codec, len(ids), theta) if hears else None
    oracle = Toy(kind, ids=ids)
    return Workers(oracle, stages, theta=theta, ids=oracle.ids, seed=5, D=D, listener=listener), listener


@each_rule
@each_codec
@each_kind
@pytest.mark.parametrize("long", [False, True], ids=["at once", "row by row"])
def test_who_is_asked_computes_and_decides_and_nobody_else_changes(
    rule: str, codec: str, kind: str, long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if long:
        monkeypatch.setattr(workers, "AT_ONCE", 1)
        monkeypatch.setattr(arrays, "AT_ONCE", 1)
    of, listener = team(rule, codec, kind)
    assert listener is not None
    assert isinstance(of.oracle, Toy)
    silent, before = 0, np.zeros((M, P))
    for request, uploads, believer, _ in requests(rule, codec, kind, of):
        assert of.oracle.calls[-1].ids == np.flatnonzero(request.computes).tolist()
        np.testing.assert_array_equal(numpy_of(listener.rows), believer.rows)
        check_memory(of, believer)
        if uploads.uploads:
            assert uploads.news is not None
            change = (believer.rows - before).sum(0)
            np.testing.assert_allclose(numpy_of(uploads.news.vector), change, rtol=0, atol=1e-12)
        before = believer.rows.copy()
        silent += int((request.computes & ~uploads.uploaded).sum())
    assert silent > ROUNDS / 2
    assert len(of.oracle.calls) == ROUNDS


@each_rule
@each_codec
@each_kind
def test_who_uploads_of_those_asked_is_packed_in_order(rule: str, codec: str, kind: str) -> None:
    of, _ = team(rule, codec, kind, hears=False)
    for _, uploads, believer, messages in requests(rule, codec, kind, of):
        assert uploads.news is None
        assert uploads.messages == tuple(messages)
        check_memory(of, believer)


@each_rule
@each_kind
def test_spreading_the_workers_over_processes_changes_nothing_for_those_asked(rule: str, kind: str) -> None:
    """Also where nobody of a process is asked."""
    groups = (np.array([0, 1]), np.array([2]), np.array([3, 4]))
    together, _ = team(rule, "dense", kind)
    apart = [team(rule, "dense", kind, group.tolist())[0] for group in groups]
    idle = 0
    for request, uploads, _, _ in requests(rule, "dense", kind, together):
        answers = [process.answer(for_workers(request, group)) for process, group in zip(apart, groups, strict=True)]
        np.testing.assert_array_equal(np.concatenate([answer.uploaded for answer in answers]), uploads.uploaded)
        assert sum(answer.gradients for answer in answers) == uploads.gradients
        for group, answer in zip(groups, answers, strict=True):
            if request.computes[group].any() and uploads.left is not None:
                assert answer.left is not None
                np.testing.assert_allclose(answer.left, uploads.left[group], rtol=1e-12)
            idle += request.k % D == 0 and not request.computes[group].any()
    for process, group in zip(apart, groups, strict=True):
        for name, kept in process.memory.items():
            np.testing.assert_array_equal(numpy_of(kept), numpy_of(together.memory[name])[group])
        assert (together.snapshot is None) == (process.snapshot is None) == (rule != "wk1")
        if together.snapshot is not None:
            np.testing.assert_array_equal(numpy_of(process.snapshot), numpy_of(together.snapshot))
    assert idle > 0, "a process must once have had nobody to ask as a snapshot was taken"


@each_rule
@each_kind
def test_of_those_asked_who_has_no_finite_gradient_is_silent_and_remembers_nothing(rule: str, kind: str) -> None:
    of, listener = team(rule, "dense", kind)
    assert listener is not None
    assert isinstance(of.oracle, Toy)
    everybody, theta = np.ones(M, np.bool_), as_kind(np.ones(P), kind)
    of.answer(Request(0, theta, 0.1, 0.0, everybody, everybody, by_rule=False))
    rows = numpy_of(listener.rows).copy()
    memory = {name: numpy_of(kept).copy() for name, kept in of.memory.items()}
    of.oracle.a[1, 2] = np.nan
    computes, must = np.array([False, True, True, False, True]), np.array([False, False, True, False, False])
    points = int(points_of(RULES[rule].probe, 1, D))
    uploads = of.answer(Request(1, 2 * theta, 0.1, 0.0, computes, must, points=points))
    assert uploads.broken is not None
    assert uploads.broken.tolist() == [False, False, True, False, False]
    assert uploads.uploaded.tolist() == [False, True, False, False, True]
    assert uploads.left is not None
    assert np.isnan(uploads.left).tolist() == [True, False, True, True, False]
    for now, then in ((listener.rows, rows), *((of.memory[name], memory[name]) for name in memory)):
        np.testing.assert_array_equal((numpy_of(now) != then).any(-1), uploads.uploaded)


@each_rule
@each_kind
def test_a_request_to_nobody_is_answered_with_nothing(rule: str, kind: str) -> None:
    of, _ = team(rule, "dense", kind)
    assert isinstance(of.oracle, Toy)
    nobody = np.zeros(M, np.bool_)
    uploads = of.answer(Request(1, as_kind(np.ones(P), kind), 0.1, 0.0, nobody, nobody))
    assert not uploads.uploaded.any()
    assert (uploads.uploads, uploads.bits, uploads.gradients, uploads.news) == (0, 0, 0, None)
    assert not of.oracle.calls
