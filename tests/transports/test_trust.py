"""Who may be which worker, and how much it counts for: whatever nodes say, and in whatever order they come and go."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lasg.core.algorithms import choose_stages
from lasg.core.arrays import host
from lasg.errors import LasgError
from lasg.transports.membership import LONGEST_PAUSE, SAMPLES_BOUND, STRIKES, Admission, Membership
from lasg.transports.nodes import Parcel
from tests.transports.test_federation import KEYS, advanced, federation, member, restored, serve
from tests.transports.test_ranks import SIZES, M, regression, stages_of
from tests.transports.wire import Wire

STRICT = Admission(bind="node")


# -- weights ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("claim", [10**6, 10**12])
def test_samples_that_a_node_says_it_has_count_up_to_five_times_the_median_of_the_others(claim: int) -> None:
    reports: list[Any] = []
    run, fed, wire = federation("sgd", report=reports.append)
    wire.there[104].samples = claim
    fed.gather(10)
    counted = SAMPLES_BOUND * 12  # the lower one in the middle of 8, 9, 12, 30, 50
    others = sum(SIZES) - SIZES[4]
    np.testing.assert_allclose(fed.members.weights[4], counted / (counted + others))
    assert [(report.key, report.taken) for report in reports] == [(KEYS[4], True)]
    assert f"counted as {counted}. The setting samples says what counts" in reports[0].reason
    before = regression("float64").loss(run.theta)
    advanced(run, 30)
    assert regression("float64").loss(run.theta) < before


@pytest.mark.parametrize("claim", [0, -5, 10**12 + 1, 2**62, 2**63 - 1, 1e3, True, "9"])
def test_samples_that_nobody_can_have_are_refused_and_weigh_nothing(claim: Any) -> None:
    _, fed, wire = federation("sgd")
    wire.there[104].samples = claim
    fed.members.meet()
    assert (fed.members.weights >= 0).all()
    assert fed.members.weights[4] == 0
    assert fed.members.weights.sum() == pytest.approx(1)
    assert fed.members.refused[0].node == 104


def test_samples_of_the_settings_count_whatever_nodes_say() -> None:
    run, fed, wire = federation("sgd", admission=Admission(samples=SIZES))
    for node in wire.there.values():
        node.samples = 10**9
    fed.gather(10)
    np.testing.assert_array_equal(fed.members.weights, np.array(SIZES) / sum(SIZES))
    whole, on, _ = federation("sgd")
    on.gather(10)
    advanced(run, 10), advanced(whole, 10)
    np.testing.assert_array_equal(host(run.theta), host(whole.theta))


# -- names ------------------------------------------------------------------------------------------------------------


def test_a_name_stays_with_the_first_node_that_said_it_also_when_that_is_gone_and_after_a_restart() -> None:
    run, fed, wire = federation("lasg-wk2", admission=STRICT)
    fed.gather(10)
    advanced(run, 3)
    first = wire.there.pop(101)
    wire.there[900] = member(1, stages_of("lasg-wk2"), regression("float64"))
    run.step()
    assert fed.members.node_of_worker.get(1) is None
    assert fed.members.refused[-1].reason.startswith("site-1 belongs to node 101")
    again, on = restored(run, wire)
    on.members.admission = STRICT
    again.restore(run.state())
    again.step()
    assert on.members.node_of_worker.get(1) is None
    wire.there[101] = first
    again.step()
    assert on.members.node_of_worker[1] == 101


def test_a_duplicate_is_greeted_again_as_soon_as_the_first_one_dies() -> None:
    run, fed, wire = federation("lasg-wk2", admission=Admission(bind="key"))
    wire.there[900] = member(1, stages_of("lasg-wk2"), regression("float64"))
    fed.gather(10)
    run.step()
    assert fed.members.node_of_worker[1] == 101
    assert not fed.members.strikes
    del wire.there[101]
    assert run.step().uploaded[1]
    assert fed.members.node_of_worker[1] == 900


def test_a_node_is_one_worker_and_may_not_take_a_second_name() -> None:
    _, fed, wire = federation("sgd", admission=STRICT)
    late = wire.there.pop(105)
    fed.members.meet()
    node = wire.there.pop(101)
    fed.members.meet()
    node.key = KEYS[5]
    wire.there[101] = node
    fed.members.meet()
    assert fed.members.refused[-1].reason == "it says that it is site-5, and is site-1: a node is one worker"
    wire.there[105] = late
    fed.members.meet()
    assert fed.members.node_of_worker[5] == 105


def test_nodes_that_the_settings_name_are_the_workers_and_nobody_else_is() -> None:
    chosen = (900, *range(101, 100 + M))
    _, fed, wire = federation("sgd", admission=Admission(nodes=chosen))
    fed.members.meet()
    assert 0 not in fed.members.node_of_worker
    wire.there[900] = member(0, stages_of("sgd"), regression("float64"))
    fed.gather(10)
    assert fed.members.node_of_worker[0] == 900


# -- broken and excluded --------------------------------------------------------------------------------------------


def broken(*nodes: int, since: int = 3) -> Any:
    def answer(node: int, asked: Parcel, found: Parcel) -> Parcel:
        if node not in nodes or asked.head["kind"] != "work" or asked.head["round"] < since:
            return found
        head = {name: value for name, value in found.head.items() if name not in ("left", "estimate", "base")}
        return Parcel({**head, "kind": "broken"}, {})

    return answer


@pytest.mark.parametrize("name", ["sgd", "lasg-wk2", "laqsg-wk2"])
def test_a_node_whose_gradients_are_broken_for_ever_is_excluded_and_the_run_goes_on(name: str) -> None:
    run, fed, wire = federation(name)
    fed.gather(10)
    wire.forged = broken(102)
    rounds = [run.step() for _ in range(20)]
    assert all(one.broken is not None and one.broken[2] for one in rounds[3:12])
    assert not any(one.broken is not None for one in rounds[12:])
    assert fed.members.refused[-1].reason == "excluded: no finite gradient in 10 rounds in a row"
    assert not np.any(host(fed.listener.rows)[2])
    np.testing.assert_allclose(host(run.server.aggregate), host(fed.listener.rows).sum(0), atol=1e-12)
    assert fed.members.weights[2] == 0
    assert fed.members.weights.sum() == pytest.approx(1)


def test_broken_rounds_are_counted_across_a_restart_of_the_server_and_forgotten_by_a_sound_one() -> None:
    run, fed, wire = federation("lasg-wk2")
    fed.gather(10)
    wire.forged = broken(102, since=0)
    advanced(run, 9)
    wire.forged = None
    run.step()
    wire.forged = broken(102, since=0)
    advanced(run, 8)
    again, on = restored(run, wire)
    on.gather(10)
    advanced(again, 1)
    assert not on.members.excluded
    advanced(again, 1)
    assert list(on.members.excluded) == [2]


def test_where_all_gradients_are_broken_the_run_ends_as_everywhere() -> None:
    run, fed, wire = federation("sgd")
    fed.gather(10)
    wire.forged = broken(*wire.there)
    with pytest.raises(LasgError, match="no finite gradient in 10 rounds in a row"):
        advanced(run, 30)


def test_where_every_node_is_excluded_the_run_ends_with_the_reasons() -> None:
    run, fed, wire = federation("sgd")
    fed.gather(10)
    run.step()
    wire.forged = lambda node, asked, found: Parcel({**found.head, "kind": "nonsense"}, {})
    with pytest.raises(LasgError, match=r"every worker's node was excluded, so the run ends: worker site-0: excluded"):
        advanced(run, 30)


@pytest.mark.parametrize("belief", ["replace", "difference", "residual"])
@pytest.mark.parametrize("send_deltas", [True, False])
def test_with_an_excluded_node_goes_what_it_said_and_the_others_follow(belief: str, send_deltas: bool) -> None:
    stages, problem = choose_stages(f"always+qsgd8+{belief}"), regression("float64")
    wire = Wire({100 + m: member(m, stages, problem) for m in range(M)})
    run, fed = serve(stages, wire, problem, send_deltas=send_deltas)
    fed.gather(10)
    advanced(run, 5)
    fed.members.exclude(102, KEYS[2], "excluded by hand")
    advanced(run, 3)
    assert fed.held[2] == -1
    if fed.listener.rows is not None:
        assert not np.any(host(fed.listener.rows)[2])
        np.testing.assert_allclose(host(run.server.aggregate), host(fed.listener.rows).sum(0), atol=1e-12)
    lost = sum(answer.head["kind"] == "lost" for answer in wire.answered)
    assert lost == 0
    assert not any(node == 102 for node, _ in wire.asked[-M:])


# -- a model of it all ------------------------------------------------------------------------------------------------


class Crowd:
    """Carries greetings to nodes that say a key, at once."""

    pause = 1.0

    def __init__(self) -> None:
        self.there: dict[int, int] = {}
        """The worker whose key each node says."""
        self.answers: dict[str, Parcel] = {}
        self.numbers = itertools.count()
        self.now = 0.0

    def nodes(self) -> Iterable[int]:
        return list(self.there)

    def push(self, node: int, parcel: Parcel) -> str:
        name = str(next(self.numbers))
        head = {"kind": "here", "key": KEYS[self.there[node]], "samples": 10 + self.there[node], "differs": ""}
        self.answers[name] = Parcel(head, {})
        return name

    def pull(self, names: Sequence[str]) -> Iterable[tuple[str, Parcel | None]]:
        return [(name, self.answers.pop(name)) for name in names if name in self.answers]


class Who(RuleBasedStateMachine):
    """Nodes come with any key, leave, lie until they are excluded, and the server restarts: against plain dicts."""

    @initialize(bind=st.sampled_from(["node", "key"]))
    def begin(self, bind: Any) -> None:
        self.crowd, self.admission = Crowd(), Admission(bind=bind)
        self.members = self.made()
        self.is_worker: dict[int, int] = {}  # by node
        self.owner: dict[int, int] = {}  # by worker
        self.banned: set[int] = set()
        self.lost: set[int] = set()

    def made(self) -> Membership:
        clock = {"clock": lambda: self.crowd.now, "sleep": lambda _: None}
        return Membership(self.crowd, KEYS, admission=self.admission, report=None, **clock)  # type: ignore[arg-type]

    def settle(self) -> None:
        """Let the longest pause pass, so that everybody was greeted since anything changed."""
        self.crowd.now += 2 * LONGEST_PAUSE
        self.members.meet()
        for node in list(self.is_worker):
            if node not in self.crowd.there:
                del self.is_worker[node]
        for node, m in sorted(self.crowd.there.items()):
            if node in self.banned or node in self.is_worker or m in self.is_worker.values():
                continue
            if self.admission.bind == "node":
                owned = [n for n, owner in self.owner.items() if owner == node]
                if self.owner.get(m, node) != node or owned not in ([], [m]):
                    continue
                self.owner[m] = node
            self.is_worker[node] = m
            self.lost.discard(m)

    @rule(node=st.integers(1, 9), m=st.integers(0, M - 1))
    def comes(self, node: int, m: int) -> None:
        if node not in self.crowd.there:
            self.crowd.there[node] = m
        self.settle()

    @rule(node=st.integers(1, 9))
    def leaves(self, node: int) -> None:
        self.crowd.there.pop(node, None)
        self.settle()

    @rule(node=st.integers(1, 9), other=st.integers(1, 9), m=st.integers(0, M - 1))
    def one_leaves_while_another_comes(self, node: int, other: int, m: int) -> None:
        self.crowd.there.pop(node, None)
        if other != node:
            self.crowd.there.setdefault(other, m)
        self.settle()

    @rule(node=st.integers(1, 9))
    def lies(self, node: int) -> None:
        for _ in range(STRIKES):
            self.members.refuse(node, "", "a lie")
        self.banned.add(node)
        if node in self.is_worker:
            self.lost.add(self.is_worker.pop(node))
        self.settle()

    @rule()
    def the_server_restarts(self) -> None:
        state = self.members.state()
        self.members = self.made()
        self.members.restore(state)
        self.is_worker.clear()
        self.settle()

    @invariant()
    def everybody_is_who_the_reference_says(self) -> None:
        if not hasattr(self, "members"):
            return
        assert self.members.node_of_worker == {m: node for node, m in self.is_worker.items()}
        assert set(self.members.excluded) == self.lost
        if self.admission.bind == "node":
            assert self.members.owners == self.owner
        weights = self.members.weights
        assert (weights >= 0).all()
        assert not weights[list(self.lost)].any()
        assert weights.sum() == pytest.approx(1) or not weights.any()


Who.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestWho = Who.TestCase


def test_the_model_sees_a_wrong_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two servers that were wrong once: one forgets duplicates, one gives a name away."""

    def drop(self: Membership, m: int) -> None:
        del self.node_of_worker[m]
        self._greet_at = dict.fromkeys(self._greet_at, float("inf"))

    monkeypatch.setattr(Membership, "_drop", drop)
    crowd = Who()
    crowd.begin("key")
    crowd.comes(1, 0)
    crowd.comes(2, 0)
    crowd.leaves(1)
    with pytest.raises(AssertionError):
        crowd.everybody_is_who_the_reference_says()
