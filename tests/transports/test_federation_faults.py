"""Nodes whose own code fails, and buffers that are not what they should be."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lasg import ModuleProblem
from lasg.core.algorithms import Stages
from lasg.core.optimizers import ClosedFormSGD
from lasg.core.server import Laziness
from lasg.core.training import Training
from lasg.errors import LasgError
from lasg.problems.buffers import Buffers
from lasg.transports.federation import Federation
from lasg.transports.membership import FAILURES, Trouble
from lasg.transports.nodes import FAILED, Node, Parcel
from tests.transports.test_federation import KEYS, STEP, advanced, federation
from tests.transports.test_ranks import M
from tests.transports.wire import Wire

WORKERS = 3


def failing(*nodes: int, kind: str = "work") -> Callable[[int, Parcel, Parcel], Parcel]:
    def answer(node: int, asked: Parcel, found: Parcel) -> Parcel:
        failed = node in nodes and asked.head["kind"] == kind
        return Parcel({"kind": FAILED, "reason": "ValueError: shapes differ\nand more"}, {}) if failed else found

    return answer


def test_a_model_that_fails_on_every_node_ends_the_run_with_what_the_nodes_say() -> None:
    run, fed, wire = federation("lasg-wk2")
    fed.gather(10)
    greetings = len(wire.asked)
    wire.forged = failing(*wire.there)
    with pytest.raises(
        LasgError, match=f"every node failed {FAILURES} times in a row.*shapes differ and more"
    ) as error:
        advanced(run, 100)
    assert "\n" not in str(error.value)
    assert str(error.value).count("shapes differ") == 1
    assert len(wire.asked) - greetings == FAILURES * M


def test_nodes_that_cannot_even_begin_end_the_run_long_before_the_wait_is_over() -> None:
    _, fed, wire = federation("lasg-wk2")
    wire.forged = failing(*wire.there, kind="hello")
    with pytest.raises(LasgError, match=r"every node failed.*shapes differ"):
        fed.gather(300)
    assert wire.now < 10
    assert len(wire.asked) == FAILURES * M


def test_one_node_that_fails_is_silent_and_reported_in_few_lines_until_it_works_again() -> None:
    reports: list[Any] = []
    run, fed, wire = federation("sgd", report=reports.append)
    fed.gather(10)
    run.step()
    rows = fed.listener.rows.copy()
    wire.forged = failing(102)
    uploaded = advanced(run, 20)
    assert uploaded[:, [m for m in range(M) if m != 2]].all()
    assert not uploaded[:, 2].any()
    np.testing.assert_array_equal(fed.listener.rows[2], rows[2])
    assert [report.times for report in reports] == [1, 2, 4, 8, 16]
    assert reports[0] == Trouble(1, 102, KEYS[2], "ValueError: shapes differ and more", 1)
    assert not fed.members.refused
    wire.forged = None
    assert run.step().uploaded[2]
    wire.forged = failing(102)
    run.step()
    assert reports[-1].times == 1


def test_a_greeting_that_failed_is_repeated_more_and_more_rarely() -> None:
    _, fed, wire = federation("sgd")
    wire.forged = failing(102, kind="hello")
    wire.there[900] = wire.there[104]  # a second node of another worker: refused, so there is hope for more
    with pytest.raises(LasgError, match=f"no node came for worker {KEYS[2]} in 300 s; another.*shapes differ"):
        fed.gather(300)
    assert sum(node == 102 for node, _ in wire.asked) < 15


def test_where_nobody_is_there_a_round_waits_for_its_deadline() -> None:
    run, fed, wire = federation("lasg-wk2", deadline=5.0)
    fed.gather(10)
    run.step()
    there, wire.there = wire.there, {}
    before = wire.now
    run.step()
    assert 5 <= wire.now - before < 6
    wire.there = there
    run.step()
    assert (fed.rounds_unanswered == 0).all()


# -- buffers ----------------------------------------------------------------------------------------------------------


def network() -> nn.Module:
    torch.manual_seed(0)
    found = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    found.register_buffer("seen", torch.zeros(2, dtype=torch.bool))
    return found


def problem(m: int) -> ModuleProblem:
    chance = np.random.default_rng(m)
    data = (chance.normal(m, 1 + m, (40, 4)).astype(np.float32), chance.integers(0, 2, 40))
    return ModuleProblem(network(), nn.functional.cross_entropy, data, [np.arange(40)], batch=0.5, ids=[m])


def with_buffers(**options: Any) -> tuple[Training, Federation, Wire]:
    stages, D = Stages(), 10
    nodes = {}
    for m in range(WORKERS):
        own = problem(m)
        node = Node(
            KEYS[m],
            own,
            samples=40,
            like=own.start(),
            stages=stages,
            optimizer=lambda theta: ClosedFormSGD(theta, STEP),
            D=D,
            buffers=own.buffers,
        )
        nodes[100 + m] = node
    wire = Wire(nodes)
    options = {"away_after": D, **options}
    buffers = Buffers(network(), WORKERS)
    fed = Federation(wire, KEYS[:WORKERS], clock=wire.clock, sleep=wire.sleep, buffers=buffers, **options)
    optimizer = ClosedFormSGD(problem(0).start(), STEP)
    return Training(None, optimizer, stages, Laziness(workers=WORKERS, D=D), fed), fed, wire


def forgeries() -> dict[str, Callable[[Parcel], Parcel]]:
    def sent(found: Parcel, which: Any, array: Any) -> Parcel:
        return Parcel({**found.head, "buffers": which}, {**found.arrays, "buffers": array})

    def changed(found: Parcel, at: int, value: float) -> Parcel:
        data = found.arrays["buffers"].copy()
        data[4 * at : 4 * at + 4] = np.array([value], np.float32).view(np.uint8)
        return sent(found, found.head["buffers"], data)

    return {
        "not named by their numbers": lambda found: sent(found, [2, 1], found.arrays["buffers"]),
        "not named by their number": lambda found: sent(found, [0, True], found.arrays["buffers"]),
        "named by their numbers": lambda found: sent(found, [0, 7], found.arrays["buffers"]),
        "named by their": lambda found: sent(found, "mean", found.arrays["buffers"]),
        "its buffers are not bytes": lambda found: sent(found, [1], np.zeros(3, np.float32)),
        "its buffers have 5 bytes, not 12": lambda found: sent(found, [1], np.zeros(5, np.uint8)),
        "running_mean is not finite": lambda found: changed(found, 1, np.nan),
        "running_var is not finite": lambda found: changed(found, 3, np.inf),
        "running_var, a variance, is below 0": lambda found: changed(found, 4, -1.0),
        "seen is not of zeros and ones": lambda found: sent(found, [0], np.full(2, 7, np.uint8)),
    }


@pytest.mark.parametrize("reason", forgeries())
def test_buffers_that_cannot_be_a_workers_are_refused_with_the_whole_answer(reason: str) -> None:
    run, fed, wire = with_buffers()
    fed.gather(10)
    run.step()
    assert fed.buffers is not None
    forge = forgeries()[reason]
    held, rows, others = (
        [own[1].clone() for own in fed.buffers.own],
        fed.listener.rows[1].clone(),
        fed.buffers.own[1][0].clone(),
    )
    wire.forged = lambda node, asked, found: forge(found) if node == 101 and asked.head["kind"] == "work" else found
    assert run.step().uploaded.tolist() == [True, False, True]
    assert reason in fed.members.refused[-1].reason
    assert torch.equal(fed.listener.rows[1], rows)
    assert all(torch.equal(own[1], before) for own, before in zip(fed.buffers.own, held, strict=True))
    assert not torch.equal(fed.buffers.own[1][0], others)
    wire.forged = None
    assert run.step().uploaded.all()


def test_whatever_bytes_come_as_buffers_only_sound_ones_are_taken() -> None:
    chance = random.Random(0)
    buffers = Buffers(network(), 1)
    sizes = [value.numel() * value.itemsize for value in buffers.start]
    taken = 0
    for _ in range(3000):
        which: Any = sorted(chance.sample(range(len(sizes)), chance.randint(0, len(sizes))))
        length = max(0, sum(sizes[i] for i in which) + chance.choice([0, 0, 0, 0, 1, -1, 8]))
        data: Any = np.frombuffer(chance.randbytes(length) if chance.random() < 0.5 else bytes(length), np.uint8)
        if chance.random() < 0.1:
            which = chance.choice([None, "a", [0.0], [-1], [99], [0, 0], 3, b"x", [[0]], True])
        if chance.random() < 0.1:
            data = chance.choice([None, b"abc", data.reshape(-1, 1), data.astype(np.float64), [1, 2]])
        try:
            found = buffers.unpack(which, data)
        except LasgError:
            continue
        taken += 1
        assert [(value.dtype, value.shape) for value in found] == [(one.dtype, one.shape) for one in buffers.start]
        assert all(bool(torch.isfinite(value).all()) for value in found)
        assert bool((found[2] >= 0).all())
    assert 100 < taken < 2500


def test_a_node_with_other_buffers_than_the_server_is_told_so() -> None:
    _, fed, wire = with_buffers()
    other = Buffers(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(5)), 1)
    node = wire.there[101]
    node.buffers, node.settings["buffers"] = other, other.layout
    with pytest.raises(LasgError, match=r"its buffers is 3 of 48 bytes, .*, not 4 of 34 bytes"):
        fed.gather(1)


def test_who_is_dropped_or_never_uploaded_has_no_part_in_the_pooled_buffers() -> None:
    run, fed, wire = with_buffers(away="drop", away_after=2)
    assert fed.buffers is not None
    fed.gather(10)
    fed.load_pooled_buffers()
    assert torch.equal(fed.buffers.read()[1], torch.zeros(3))
    wire.deaf = {102}
    advanced(run, 2)
    fed.load_pooled_buffers()
    means = fed.buffers.own[1]
    torch.testing.assert_close(fed.buffers.read()[1], (means[0] + means[1]) / 2)
    wire.deaf = set()
    run.step()
    del wire.there[101]
    advanced(run, 3)
    fed.load_pooled_buffers()
    torch.testing.assert_close(fed.buffers.read()[1], (means[0] + means[2]) / 2)
    variances = fed.buffers.own[2]
    apart = (means[0] - means[2]) / 2
    torch.testing.assert_close(fed.buffers.read()[2], (variances[0] + variances[2]) / 2 + apart * apart)
