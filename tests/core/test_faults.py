"""A gradient that is NaN or infinite is never used: it counts as silence. Clipping acts before the rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from lasg.core.arrays import stacked
from lasg.core.clipping import Clipped
from lasg.core.optimizers import ClosedFormSGD, Constant
from lasg.core.rules import RULES
from lasg.core.server import Laziness
from lasg.core.training import Training
from lasg.errors import Faulty, LasgError
from lasg.transports.local import simulate
from tests.core.toy import KINDS, SMOOTHNESS, WEIGHTS, M, P, Toy, as_kind, numpy_of

EVERY_RULE = tuple(RULES)
each_rule = pytest.mark.parametrize("rule", EVERY_RULE)
each_kind = pytest.mark.parametrize("kind", KINDS)


class Broken(Toy):
    """A toy whose chosen gradients are not finite."""

    workers = M

    def __init__(
        self, kind: str, faults: Mapping[int, Sequence[int]], value: float = np.nan, probes: bool = False
    ) -> None:
        super().__init__(kind)
        self.faults, self.value, self.probes = faults, value, probes

    def gradients(self, iteration: int, points: Sequence[Any], rows: Any) -> list[Any]:
        found = super().gradients(iteration, [stacked(point) for point in points], rows)
        ids = self.ids if rows is None else self.ids[rows]
        for m in self.faults.get(iteration, ()):
            for i in np.flatnonzero(ids == m):
                found[-1 if self.probes else 0][i, 2] = self.value
        return found

    def loss(self, theta: Any) -> float:
        return float((theta * theta).sum())

    def accuracy(self, theta: Any) -> None:
        pass

    def export(self, theta: Any) -> dict[str, Any]:
        return {"theta": theta}

    def fresh(self) -> Broken:
        return self

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        pass


def simulation(rule: str, of: Broken, codec: Any = None, **more: Any) -> Training:
    return simulate(
        of,
        ClosedFormSGD(as_kind(np.zeros(P), of.kind), Constant(0.1)),
        rule=RULES[rule],
        codec=codec,
        laziness=Laziness(workers=M, D=6, c=0.5),
        smoothness=SMOOTHNESS if rule == "ps" else None,
        **more,
    )


def contributed(run: Training) -> Any:
    """What the server takes the workers to have said last."""
    assert run.listener is not None
    return numpy_of(run.listener.rows)


def play(run: Training, rounds: int) -> None:
    for _ in range(rounds):
        run.step()


@each_rule
@each_kind
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("codec", [None, "qsgd8"])
def test_a_gradient_that_is_not_finite_is_never_aggregated(rule: str, kind: str, value: float, codec: Any) -> None:
    from lasg.core.codec_names import parse

    faults = {k: [k % M, (k + 2) % M] for k in range(0, 30, 3)}
    run = simulation(rule, Broken(kind, faults, value), parse(codec) if codec else None)
    for k in range(30):
        finished = run.step()
        if finished.broken is not None:
            assert set(np.flatnonzero(finished.broken)) <= set(faults[k])
            assert not (finished.uploaded & finished.broken).any()
        total = contributed(run).sum(0)
        np.testing.assert_allclose(numpy_of(run.server.aggregate), total, rtol=1e-9, atol=1e-12)
        assert np.isfinite(numpy_of(run.theta)).all()


@each_kind
@pytest.mark.parametrize("rule", ["wk1", "wk2", "pse"])
def test_a_probe_that_is_not_finite_is_silence_too(rule: str, kind: str) -> None:
    run = simulation(rule, Broken(kind, {2: [1], 3: [1]}, probes=True))
    seen = []
    for _ in range(6):
        finished = run.step()
        if finished.broken is not None:
            seen.append((finished.k, np.flatnonzero(finished.broken).tolist()))
            assert not finished.uploaded[1]
    # A server rule notices only where it asks.
    assert seen == [(2, [1]), (3, [1])] or (rule == "pse" and all(who == [1] for _, who in seen))
    assert np.isfinite(run.server.smoothness).all()


@each_rule
@each_kind
def test_a_round_in_which_a_worker_is_broken_is_one_in_which_it_is_silent(rule: str, kind: str) -> None:
    """What the server ends with equals what it would have if that worker had said nothing."""
    run = simulation(rule, Broken(kind, {0: [3]}))
    finished = run.step()
    assert finished.uploaded.tolist() == [True, True, True, False, True]
    assert finished.broken is not None
    assert finished.broken.tolist() == [False, False, False, True, False]
    assert not contributed(run)[3].any()
    assert run.ledger.uploads == 4


@each_rule
def test_who_could_not_say_anything_yet_is_due_until_it_can(rule: str) -> None:
    run = simulation(rule, Broken("numpy", {0: [3], 1: [3], 2: [3]}))
    uploaded = [run.step().uploaded[3] for _ in range(4)]
    assert uploaded == [False, False, False, True]


@pytest.mark.parametrize("rule", ["wk1", "wk2", "lag", "ps", "pse"])
def test_who_missed_its_forced_upload_makes_up_for_it(rule: str) -> None:
    D = 6
    run = simulation(rule, Broken("numpy", {k: [2] for k in range(1, 9)}))
    uploaded = [bool(run.step().uploaded[2]) for _ in range(12)]
    assert uploaded[0]
    assert not any(uploaded[1:9])
    assert any(uploaded[9:11]), "staleness beyond D must end with the first finite gradient"
    assert D < 9


@each_rule
def test_after_too_many_rounds_in_a_row_a_run_stops_and_says_who_and_when(rule: str) -> None:
    faults = {k: [4] for k in range(2, 40)}
    run = simulation(rule, Broken("numpy", faults), patience=3)
    said = r"worker 4 had no finite gradient in 3 rounds in a row, the last of them round \d+"
    with pytest.raises(Faulty, match=said):
        play(run, 60)


def test_patience_counts_rounds_in_a_row() -> None:
    run = simulation("always", Broken("numpy", {k: [1] for k in range(0, 40, 2)}), patience=2)
    for _ in range(20):
        run.step()
    assert run.streak.max() <= 1


def test_rounds_in_which_a_worker_was_not_asked_neither_add_to_its_streak_nor_end_it() -> None:
    run = simulation("pse", Broken("numpy", {k: [4] for k in range(60)}), patience=1000)
    counted = 0
    for _ in range(30):
        asked = run.server.open().computes
        finished = run.step()
        assert finished.broken is None or not (finished.broken & ~asked).any()
        counted += finished.broken is not None and bool(finished.broken[4])
        assert run.streak[4] == counted
    assert counted > 3


def test_a_stopped_simulation_goes_on_once_its_faults_are_reset() -> None:
    run = simulation("always", Broken("numpy", {0: [1], 1: [1]}), patience=2)
    run.step()
    run.step()
    with pytest.raises(Faulty):
        run.step()
    run.reset_faults()
    assert run.step().uploaded.all()


def test_the_streak_survives_a_checkpoint() -> None:
    faults = {k: [0] for k in range(9)}
    whole = simulation("always", Broken("numpy", faults), patience=4)
    whole.step()
    whole.step()
    resumed = simulation("always", Broken("numpy", faults), patience=4)
    resumed.restore(whole.state())
    resumed.step()
    resumed.step()
    with pytest.raises(Faulty):
        resumed.step()


@pytest.mark.parametrize("patience", [0, -1, 1.5])
def test_patience_must_be_a_number_of_rounds(patience: Any) -> None:
    with pytest.raises(LasgError, match="patience"):
        simulation("always", Broken("numpy", {}), patience=patience)


def test_huge_but_finite_gradients_are_not_faults() -> None:
    run = simulation("wk2", Broken("numpy", {3: [1]}, value=1e150))
    play(run, 3)
    finished = run.step()
    assert finished.broken is None
    assert finished.uploaded[1]


# -- clipping --------------------------------------------------------------------------------------------------------


@each_kind
def test_clipping_limits_the_local_gradient_and_not_the_weighted_one(kind: str) -> None:
    plain, clipped = Toy(kind), Clipped(Toy(kind), 0.5)
    theta = as_kind(np.full(P, 3.0), kind)
    (whole,), (found,) = plain.gradients(0, [theta], None), clipped.gradients(0, [theta], None)
    whole, found = numpy_of(whole), numpy_of(found)
    sizes = np.linalg.norm(whole, axis=1) / WEIGHTS
    assert (sizes > 0.5).all()
    np.testing.assert_allclose(np.linalg.norm(found, axis=1) / WEIGHTS, 0.5)
    np.testing.assert_allclose(
        found / np.linalg.norm(found, axis=1)[:, None], whole / np.linalg.norm(whole, axis=1)[:, None]
    )


@each_kind
def test_small_gradients_are_not_clipped(kind: str) -> None:
    theta = as_kind(np.full(P, 3.0), kind)
    found = Clipped(Toy(kind), 1e6).gradients(0, [theta], np.array([1, 3]))[0]
    np.testing.assert_array_equal(numpy_of(found), numpy_of(Toy(kind).gradients(0, [theta], np.array([1, 3]))[0]))


def test_gradients_too_large_to_square_are_clipped_too() -> None:
    class Huge(Toy):
        def gradients(self, iteration: int, points: Sequence[Any], rows: Any) -> list[Any]:
            return [np.full((M, P), 1e30, np.float32)]

    (found,) = Clipped(Huge(dtype="float32"), 1.0).gradients(0, [np.zeros(P, np.float32)], None)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), WEIGHTS, rtol=1e-6)


@each_rule
def test_clipping_composes_with_every_rule(rule: str) -> None:
    run = simulation(rule, Broken("numpy", {}), clip=0.05)
    for _ in range(20):
        run.step()
        sizes = np.linalg.norm(contributed(run), axis=1)
        assert (sizes <= 0.05 * WEIGHTS * (1 + 1e-9)).all()


@pytest.mark.parametrize("norm", [0, -1.0, np.inf, np.nan, True, "1"])
def test_a_norm_that_nothing_can_be_clipped_to_is_refused(norm: Any) -> None:
    with pytest.raises(LasgError, match="clip must be a positive number"):
        Clipped(Toy(), norm)
