"""A server and nodes that come and go: the same as the simulation, and what is lost, late or wrong changes nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from lasg.core.algorithms import ALGORITHMS, Stages
from lasg.core.arrays import host
from lasg.core.codecs import QSGD, Codec
from lasg.core.optimizers import ClosedFormSGD, Constant
from lasg.core.server import Laziness
from lasg.core.training import Hosted, Training
from lasg.errors import LasgError
from lasg.transports.federation import Federation
from lasg.transports.membership import Admission
from lasg.transports.nodes import Node, Parcel
from tests.transports.test_ranks import SIZES, M, regression, stages_of
from tests.transports.wire import Wire

ROUNDS = 80
"""tests/flower/test_apps.py has the same over 200 rounds."""
STEP = Constant(0.1)
KEYS = [f"site-{m}" for m in range(M)]


LAZINESS = Laziness(workers=M, D=10, c=0.3)


def member(m: int, stages: Stages, problem: Any, D: float = 10) -> Node:
    return Node(
        KEYS[m],
        Hosted(problem, np.array([m])),
        samples=SIZES[m],
        like=problem.start(),
        stages=stages,
        optimizer=lambda theta: ClosedFormSGD(theta, STEP),
        D=D,
    )


def federation(
    name: str, dtype: str = "float64", codec: Codec | None = None, **options: Any
) -> tuple[Training, Federation, Wire]:
    problem = regression(dtype)
    stages = stages_of(name, codec)
    wire = Wire({100 + m: member(m, stages, problem) for m in range(M)})
    return *serve(stages, wire, problem, **options), wire


def serve(stages: Stages, wire: Wire, problem: Any, **options: Any) -> tuple[Training, Federation]:
    laziness = options.pop("laziness", LAZINESS)
    options = {"away_after": laziness.D, "admission": Admission(bind="key"), **options}
    federation = Federation(wire, KEYS, clock=wire.clock, sleep=wire.sleep, **options)
    return training(stages, problem, laziness, None, federation), federation


def simulated(name: str, dtype: str = "float64", laziness: Laziness | None = None) -> Training:
    problem = regression(dtype)
    return training(stages_of(name), problem, laziness or LAZINESS, problem)


def training(stages: Stages, problem: Any, laziness: Laziness, here: Any, transport: Any = None) -> Training:
    """Return a training of the workers that are here, and of those that a federation reaches."""
    told = stages.rule.where == "server" and stages.rule.estimate is None
    return Training(
        here,
        ClosedFormSGD(problem.start(), STEP),
        stages,
        laziness,
        transport,
        smoothness=problem.smoothness("paper") if told else None,
    )


def advanced(run: Training, rounds: int = ROUNDS) -> npt.NDArray[np.bool_]:
    return np.array([run.step().uploaded for _ in range(rounds)])


@pytest.mark.parametrize("send_deltas", [True, False])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_uploads_and_model_are_the_simulations(name: str, send_deltas: bool) -> None:
    run, fed, wire = federation(name, send_deltas=send_deltas)
    fed.gather(10)
    expected = simulated(name)
    np.testing.assert_array_equal(advanced(run), advanced(expected))
    np.testing.assert_allclose(host(run.theta), host(expected.theta), rtol=0, atol=1e-10)
    assert run.ledger.row() == expected.ledger.row()
    assert not fed.members.refused
    assert fed.members.bytes_up == sum(answer.size for answer in wire.answered)
    assert fed.members.bytes_down == sum(parcel.size for _, parcel in wire.asked)
    assert fed.members.bytes_up == sum(node.bytes_up for node in wire.there.values())
    assert fed.members.bytes_down == sum(node.bytes_down for node in wire.there.values())


@pytest.mark.parametrize("name", ["lasg-wk1", "lasg-wk2", "laqsg-pse"])
def test_the_guard_of_a_federation_sees_what_the_simulations_does(name: str) -> None:
    guarded = Laziness(workers=M, D=10, rho=0.5, guard=True)
    run, fed, _ = federation(name, laziness=guarded)
    fed.gather(10)
    expected = simulated(name, laziness=guarded)
    uploaded = advanced(run, 120)
    np.testing.assert_array_equal(uploaded, advanced(expected, 120))
    assert not uploaded.all()
    assert run.server.guard is not None
    assert expected.server.guard is not None
    assert run.server.guard.agreement == pytest.approx(expected.server.guard.agreement)
    assert -1 < run.server.guard.agreement < 1
    assert run.ledger.row() == expected.ledger.row()


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if "q" not in name])
def test_in_single_precision_the_model_is_the_simulations_too(name: str) -> None:
    run, fed, _ = federation(name, "float32")
    fed.gather(10)
    expected = simulated(name, "float32")
    advanced(run, 50), advanced(expected, 50)
    np.testing.assert_allclose(host(run.theta), host(expected.theta), rtol=0, atol=1e-5)


def downloaded(wire: Wire) -> int:
    return sum(sum(array.nbytes for array in parcel.arrays.values()) for _, parcel in wire.asked)


def test_what_changed_the_model_is_told_where_that_is_shorter() -> None:
    told = {}
    for send_deltas in (True, False):
        run, fed, wire = federation("laqsg-wk2", send_deltas=send_deltas)
        fed.gather(10)
        advanced(run)
        told[send_deltas] = downloaded(wire)
        assert all("model" in parcel.arrays for _, parcel in wire.asked if parcel.arrays) == (not send_deltas)
    assert told[True] < 0.5 * told[False]


def test_messages_that_are_together_longer_than_the_model_are_told_once_they_are_worth_it() -> None:
    codec = QSGD(bits=16)
    run, fed, wire = federation("laqsg-wk2", codec=codec)
    fed.gather(10)
    p = fed.listener.rows.shape[-1]
    assert M * codec.length(p) > 8 * p > codec.length(p)
    uploads = int(advanced(run).sum())
    everything = M * uploads * codec.length(p)  # every upload told to every node
    assert everything < 0.8 * M * ROUNDS * 8 * p
    assert downloaded(wire) < 1.2 * everything
    assert not any(answer.head["kind"] == "lost" for answer in wire.answered)


def test_a_node_that_does_not_answer_is_silent_and_the_round_goes_on() -> None:
    run, fed, wire = federation("lasg-wk2", deadline=5.0)
    fed.gather(10)
    advanced(run, 3)
    wire.deaf = {102}
    rows = host(fed.listener.rows).copy()
    before = wire.now
    found = run.step()
    assert not found.uploaded[2]
    assert 5 <= wire.now - before < 6
    np.testing.assert_array_equal(fed.listener.rows[2], rows[2])
    tau = run.server.tau[2]
    run.step()
    assert run.server.tau[2] == tau + 1
    wire.deaf = set()
    uploaded = [run.step().uploaded[2] for _ in range(10)]
    assert any(uploaded)
    assert run.server.tau.max() <= 10
    np.testing.assert_allclose(host(run.server.aggregate), host(fed.listener.rows).sum(0), atol=1e-12)


def test_a_node_that_lost_its_memory_or_has_a_new_id_uploads_in_full() -> None:
    run, fed, wire = federation("lasg-wk2")
    fed.gather(10)
    advanced(run, 20)
    problem = regression("float64")
    for number, node in ((102, 102), (103, 900)):  # the same id with an empty memory; another id
        del wire.there[number]
        wire.there[node] = member(number - 100, stages_of("lasg-wk2"), problem)
    found = run.step()
    assert found.uploaded[2]
    assert found.uploaded[3]
    assert fed.members.node_of_worker[3] == 900
    assert not fed.members.refused
    advanced(run, 20)
    np.testing.assert_allclose(host(run.server.aggregate), host(fed.listener.rows).sum(0), atol=1e-12)


@pytest.mark.parametrize("name", ["lasg-wk2", "laqsg-wk2", "lasg-wk1", "lasg-pse"])
def test_a_server_that_dies_after_any_round_goes_on_with_the_same_uploads_and_bits(name: str) -> None:
    whole, all_along, _ = federation(name)
    all_along.gather(10)
    expected = advanced(whole, 40)
    run, fed, wire = federation(name)
    fed.gather(10)
    uploads = advanced(run, 17)
    state = run.state()
    run.step()  # which nobody will remember
    again, on = serve(stages_of(name), wire, regression("float64"))
    again.restore(state)
    on.gather(10)
    uploads = np.concatenate([uploads, advanced(again, 23)])
    assert not on.members.refused
    np.testing.assert_array_equal(uploads, expected)
    np.testing.assert_array_equal(host(again.theta), host(whole.theta))
    assert again.ledger.row()[:4] == whole.ledger.row()[:4]


def test_nodes_follow_a_server_that_went_on_from_an_older_checkpoint() -> None:
    run, fed, wire = federation("lasg-wk2")
    fed.gather(10)
    advanced(run, 10)
    state = run.state()
    advanced(run, 10)
    again, on = serve(stages_of("lasg-wk2"), wire, regression("float64"))
    again.restore(state)
    on.gather(10)
    again.step()
    assert (on.rounds_unanswered == 0).all()
    advanced(again, 20)
    assert not on.members.refused
    np.testing.assert_allclose(host(again.server.aggregate), host(on.listener.rows).sum(0), atol=1e-12)


def test_a_server_that_goes_on_needs_not_everybody_to_be_there() -> None:
    run, fed, wire = federation("lasg-wk2")
    fed.gather(10)
    advanced(run, 3)
    again, on = restored(run, wire)
    gone = wire.there.pop(101)
    on.gather(10)
    before = host(on.listener.rows)[1].copy()
    advanced(again, 2)
    np.testing.assert_array_equal(host(on.listener.rows)[1], before)
    assert on.rounds_unanswered.tolist() == [0, 2, *[0] * (M - 2)]
    wire.there[101] = gone
    advanced(again, 1)
    assert on.rounds_unanswered[1] == 0
    wire.there.clear()
    with pytest.raises(LasgError, match=f"no node came for worker {', '.join(KEYS)} in 10 s"):
        restored(run, wire)[1].gather(10)


def restored(run: Training, wire: Wire) -> tuple[Training, Federation]:
    again, on = serve(stages_of("lasg-wk2"), wire, regression("float64"))
    again.restore(run.state())
    return again, on


@pytest.mark.parametrize(("away", "kept"), [("keep", True), ("drop", False)])
def test_who_is_away_for_long_is_kept_or_dropped_as_the_user_chose(away: Any, kept: bool) -> None:
    run, fed, wire = federation("lasg-wk2", away=away, away_after=4)
    fed.gather(10)
    advanced(run, 5)
    gone = wire.there.pop(101)
    advanced(run, 6)
    assert bool(np.any(host(fed.listener.rows)[1])) == kept
    np.testing.assert_allclose(host(run.server.aggregate), host(fed.listener.rows).sum(0), atol=1e-12)
    wire.there[101] = gone
    assert run.step().uploaded[1]
    assert np.any(host(fed.listener.rows)[1])
    advanced(run, 5)
    assert not fed.members.refused


def test_or_the_run_stops_with_who_is_away() -> None:
    run, fed, wire = federation("lasg-wk2", away="stop", away_after=3)
    fed.gather(10)
    run.step()
    del wire.there[104]
    with pytest.raises(LasgError, match="site-4 has not answered in 3 rounds"):
        advanced(run, 10)


def test_an_answer_of_an_older_round_or_twice_changes_nothing() -> None:
    run, fed, wire = federation("lasg-wk2")
    fed.gather(10)
    kept: list[Parcel] = []

    def repeat(node: int, asked: Parcel, found: Parcel) -> Parcel:
        if node != 101 or asked.head["kind"] != "work":
            return found
        kept.append(found)
        return kept[0]

    wire.forged = repeat
    run.step()
    rows = host(fed.listener.rows).copy()
    run.step()
    assert fed.members.refused[-1].reason == "it is not of site-1 in round 1"
    np.testing.assert_array_equal(host(fed.listener.rows)[1], rows[1])
    member_1 = wire.there[101]
    stale = next(parcel for node, parcel in wire.asked if node == 101 and parcel.head["kind"] == "work")
    before, counts = member_1.memory(), (member_1.bytes_up, member_1.bytes_down)
    assert member_1.answer(stale).head["kind"] == "stale"
    member_1.bytes_up, member_1.bytes_down = counts  # which alone have changed
    assert member_1.memory() == before


def forgeries() -> dict[str, Callable[[Parcel], Parcel]]:
    def changed(found: Parcel, **values: Any) -> Parcel:
        return Parcel({**found.head, **values}, found.arrays)

    def sent(found: Parcel, array: Any) -> Parcel:
        return Parcel({**found.head, "kind": "upload"}, {"contribution": array})

    huge = np.full(18, 1e300).view(np.uint8)
    return {
        "it is no answer": lambda found: changed(found, kind="nonsense"),
        "it is not of": lambda found: changed(found, key="site-5"),
        "not of site-2 in round": lambda found: changed(found, round=[1]),
        "other arrays": lambda found: Parcel(found.head, {**found.arrays, "more": np.zeros(3)}),
        "how many gradients": lambda found: changed(found, evaluations=True),
        "no number": lambda found: changed(found, left="left"),
        "had to upload": lambda found: Parcel({**found.head, "kind": "silent"}, {}),
        "not bytes": lambda found: sent(found, np.zeros(18)),
        "has 7 bytes": lambda found: sent(found, np.zeros(7, np.uint8)),
        "not finite": lambda found: sent(found, np.full(18, np.nan).view(np.uint8)),
        "above 1000": lambda found: sent(found, huge),
    }


@pytest.mark.parametrize("reason", forgeries())
def test_what_is_no_answer_is_refused_with_the_reason_and_after_three_the_node_is_excluded(reason: str) -> None:
    run, fed, wire = federation("sgd", norm_bound=1000.0)
    fed.gather(10)
    run.step()
    rows = host(fed.listener.rows).copy()
    forge = forgeries()[reason]
    wire.forged = lambda node, asked, found: forge(found) if node == 102 and asked.head["kind"] == "work" else found
    asked = len(wire.asked)
    found = [run.step() for _ in range(5)]
    assert reason in fed.members.refused[0].reason
    assert fed.members.refused[0].node == 102
    assert [refused.reason for refused in fed.members.refused][-1] == "excluded after 3 refused answers"
    assert not any(one.uploaded[2] for one in found)
    assert np.any(rows[2])
    assert not np.any(host(fed.listener.rows)[2])  # with the node goes what it said
    np.testing.assert_allclose(host(run.server.aggregate), host(fed.listener.rows).sum(0), atol=1e-12)
    assert sum(node == 102 for node, _ in wire.asked[asked:]) == 3
    assert math.isfinite(float(host(run.theta).sum()))


def test_nodes_with_an_unknown_key_other_settings_or_the_key_of_another_are_refused() -> None:
    run, fed, wire = federation("lasg-wk2")
    fed.gather(10)
    problem = regression("float64")
    other = member(0, stages_of("lasg-wk2"), problem)
    other.key = "stranger"
    wire.there |= {7: other, 8: member(1, stages_of("lasg-wk2"), problem), 9: member(2, stages_of("sgd"), problem)}
    run.step()
    reasons = [refused.reason for refused in fed.members.refused]
    assert reasons[0] == "nobody knows its key 'stranger'"
    assert reasons[1] == "another node is site-1"
    assert "its rule is always, not wk2" in reasons[2]


def test_who_is_missing_at_the_start_is_said() -> None:
    _, fed, wire = federation("sgd")
    del wire.there[103]
    with pytest.raises(LasgError, match="no node came for worker site-3 in 5 s"):
        fed.gather(5)
