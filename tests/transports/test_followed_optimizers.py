"""Nodes that repeat the steps of whatever optimizer the server has: told what was said, they find the same model."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from lasg.core.algorithms import Outer, Stages, algorithm
from lasg.core.arrays import Array, host
from lasg.core.optimizers import ClosedFormSGD, Constant, Optimizer, TorchOptimizer
from lasg.core.server import Laziness
from lasg.core.training import Hosted, Training
from lasg.core.work import OptimizerSteps
from lasg.packing import pack, unpack
from lasg.runs import factories
from lasg.runs.tasks import task
from lasg.transports.federation import Federation
from lasg.transports.membership import Admission
from lasg.transports.nodes import Node
from tests.transports.flaky import Flaky
from tests.transports.wire import Wire

M, ROUNDS = 4, 14
KEYS = [f"site-{m}" for m in range(M)]
INNER = OptimizerSteps(steps=3, eta=0.1, options={"momentum": 0.9})
STAGES = {
    "top-k": Stages(codec="topk0.05:2bit", belief="residual", decay=0.95, inner=INNER),  # type: ignore[arg-type]
    "median-clip": Stages(
        codec="topk0.05:warm3+ec",  # type: ignore[arg-type]
        belief="residual",
        robust="median-clip",  # type: ignore[arg-type]
        inner=INNER,
    ),
    "all or nobody": Stages(rule="fda", codec="topk0.05", belief="residual", inner=INNER),  # type: ignore[arg-type]
    "lazy, 2 bits": algorithm("wk2+qsgd2:512").stages(),
}
OUTER = {
    "Nesterov": Outer("SGD", 0.3, {"momentum": 0.9, "nesterov": True}),
    "Adam": Outer("Adam", 0.01, {"betas": [0.9, 0.99], "eps": 1e-3}),
    "average": Outer(),
}


@functools.cache
def problem() -> Any:
    return factories.problem(task("digits").spec("sgd", workers=M, dtype="float64"))


def optimizer(outer: Outer, theta: Array) -> Optimizer:
    spec = task("digits").spec("diloco", outer=outer.name, outer_eta=outer.eta, outer_options=dict(outer.options))
    return factories.optimizer(spec, theta)


def member(m: int, stages: Stages, outer: Outer) -> Node:
    samples = round(problem().weights[m] * problem().samples)
    options: dict[str, Any] = {"samples": samples, "like": problem().start(), "D": 10}
    own = Hosted(problem(), np.array([m]))
    return Node(KEYS[m], own, stages=stages, optimizer=lambda theta: optimizer(outer, theta), **options)


def nodes(stages: Stages, outer: Outer) -> dict[int, Node]:
    return {100 + m: member(m, stages, outer) for m in range(M)}


def serve(stages: Stages, outer: Outer, wire: Wire, **options: Any) -> tuple[Training, Federation]:
    clock: dict[str, Any] = {"clock": wire.clock, "sleep": wire.sleep}
    federation = Federation(wire, KEYS, away_after=10, admission=Admission(bind="key"), **clock, **options)
    return training(stages, outer, None, federation), federation


def training(stages: Stages, outer: Outer, here: Any, transport: Any = None) -> Training:
    laziness = Laziness(workers=M, D=10, c=0.1)
    return Training(here, optimizer(outer, problem().start()), stages, laziness, transport)


def played(run: Training, rounds: int = ROUNDS) -> Any:
    if isinstance(run.transport, Federation):
        run.transport.gather(10)
    for _ in range(rounds):
        run.step()
    return host(run.theta).copy()


def told(wire: Wire, what: str, since: int = 0) -> list[tuple[int, int]]:
    """Return who was sent an array, and when."""
    works = [parcel for _, parcel in wire.asked if parcel.head["kind"] == "work"]
    found = [(p.head["round"], p.head["worker"]) for p in works if what in p.arrays]
    return [(k, m) for k, m in found if k >= since]


@pytest.mark.parametrize("outer", OUTER)
@pytest.mark.parametrize("name", STAGES)
def test_nodes_are_told_messages_alone_and_find_the_simulations_model(name: str, outer: str) -> None:
    stages, chosen = STAGES[name], OUTER[outer]
    wire = Wire(nodes(stages, chosen))
    run, federation = serve(stages, chosen, wire)
    found = played(run)
    np.testing.assert_allclose(found, played(training(stages, chosen, problem())), rtol=0, atol=1e-10)
    assert told(wire, "model") == [(0, m) for m in range(M)]
    assert not any(answer.head["kind"] == "lost" for answer in wire.answered)
    assert federation.members.bytes_down < 0.5 * M * ROUNDS * 8 * len(found)


def fates(*what: str) -> Mapping[tuple[int, int], str]:
    shares = [0.55, *[0.45 / len(what)] * len(what)]
    kinds = np.random.default_rng(1).choice(["", *what], (ROUNDS, M), p=shares)
    return {(k, m): str(kind) for (k, m), kind in np.ndenumerate(kinds) if kind}


@pytest.mark.parametrize("outer", ["Nesterov", "Adam"])
@pytest.mark.parametrize("name", STAGES)
def test_who_is_not_reached_or_moves_changes_no_bit_of_what_a_server_that_sends_models_finds(
    name: str, outer: str
) -> None:
    found = []
    for send_deltas in (True, False):
        wire = Flaky(nodes(STAGES[name], OUTER[outer]), fates("deaf", "moved"))
        run, federation = serve(STAGES[name], OUTER[outer], wire, deadline=1.0, send_deltas=send_deltas)
        found.append(played(run))
        assert not federation.members.refused
        assert bool(told(wire, "steps")) == send_deltas
    assert found[0].tobytes() == found[1].tobytes()


@pytest.mark.parametrize("outer", ["Nesterov", "Adam"])
@pytest.mark.parametrize("name", STAGES)
def test_whoever_answers_has_the_servers_model_and_optimizer_whatever_was_lost_before(name: str, outer: str) -> None:
    wire = Flaky(nodes(STAGES[name], OUTER[outer]), {**fates("deaf", "lost", "moved"), (ROUNDS - 1, 0): ""})
    run, federation = serve(STAGES[name], OUTER[outer], wire, deadline=1.0)
    played(run, ROUNDS - 1)
    before = run.server.optimizer.state()
    expected = pack({"theta": before["theta"], "optimizer": before["optimizer"]})
    run.step()
    there = {node.key: node for node in wire.there.values()}
    answered = [
        there[key] for key, unanswered in zip(KEYS, federation.rounds_unanswered, strict=True) if not unanswered
    ]
    assert answered
    assert all(pack(node.optimizer.state()) == expected for node in answered if node.optimizer is not None)
    assert not federation.members.refused
    assert told(wire, "steps", since=1)


@pytest.mark.parametrize("name", STAGES)
def test_a_server_and_nodes_that_are_started_again_go_on_bit_for_bit(name: str) -> None:
    stages, outer = STAGES[name], OUTER["Nesterov"]
    whole = played(serve(stages, outer, Wire(nodes(stages, outer)))[0])
    wire = Wire(nodes(stages, outer))
    killed, _ = serve(stages, outer, wire)
    played(killed, 6)
    fresh = Wire(nodes(stages, outer))
    for number, node in fresh.there.items():
        node.recall(wire.there[number].memory())
    again, _ = serve(stages, outer, fresh)
    again.restore(unpack(pack(killed.state(live=True)), "the checkpoint"))
    assert played(again, ROUNDS - 6).tobytes() == whole.tobytes()
    assert told(fresh, "optimizer") == [(6, m) for m in range(M)]  # with the model, once


def test_a_newcomer_gets_the_model_and_the_optimizers_state_once_and_follows_from_there() -> None:
    stages, outer = STAGES["top-k"], OUTER["Nesterov"]
    wire = Wire(nodes(stages, outer))
    run, federation = serve(stages, outer, wire)
    played(run, 5)
    del wire.there[101]
    wire.there[901] = member(1, stages, outer)
    played(run, 5)
    assert told(wire, "model", since=1) == told(wire, "optimizer", since=1) == [(5, 1)]
    assert not any(answer.head["kind"] == "lost" for answer in wire.answered)
    assert not federation.members.refused


class Inexact(TorchOptimizer):
    """Arithmetic with other last digits than the server's."""

    def step(self, k: int, aggregate: Array) -> Array:
        return super().step(k, aggregate * (1 + 1e-9))


def test_a_node_whose_last_digits_differ_is_mostly_sent_models() -> None:
    import torch

    stages, outer = STAGES["top-k"], OUTER["Nesterov"]
    wire = Wire(nodes(stages, outer))

    def inexact(theta: Array) -> Optimizer:
        return Inexact(theta, lambda parameters: torch.optim.SGD(parameters, lr=outer.eta, **dict(outer.options)))

    wire.there[102].make_optimizer = inexact
    run, federation = serve(stages, outer, wire)
    found = played(run, 2 * ROUNDS)
    np.testing.assert_array_equal(found, played(serve(stages, outer, Wire(nodes(stages, outer)))[0], 2 * ROUNDS))
    sent = sum(array.nbytes for node, parcel in wire.asked if node == 102 for array in parcel.arrays.values())
    assert sent < 2 * 2 * ROUNDS * found.nbytes
    assert told(wire, "model", since=1)
    assert {m for _, m in told(wire, "model", since=1)} == {2}
    assert not federation.members.refused


@pytest.mark.parametrize("codec", ["dense", "topk0.6:float"])
def test_where_messages_are_long_nodes_get_the_model_and_never_an_optimizers_momenta(codec: str) -> None:
    stages = Stages(codec=codec, belief="residual", inner=INNER)  # type: ignore[arg-type]
    wire = Wire(nodes(stages, OUTER["Nesterov"]))
    run, federation = serve(stages, OUTER["Nesterov"], wire)
    found = played(run)
    assert not told(wire, "optimizer", since=1)
    assert federation.members.bytes_down < 1.1 * M * ROUNDS * (found.nbytes + 500)


def test_plain_sgd_sends_no_state_of_an_optimizer() -> None:
    wire = Wire(nodes(STAGES["top-k"], OUTER["average"]))
    played(serve(STAGES["top-k"], OUTER["average"], wire)[0], 3)
    assert not told(wire, "optimizer")
    assert isinstance(wire.there[100].optimizer, ClosedFormSGD)
    assert wire.there[100].optimizer.schedule == Constant(1.0)


@pytest.mark.parametrize("same", [True, False])
def test_a_node_that_starts_from_the_servers_model_by_itself_is_not_sent_it(same: bool) -> None:
    stages, outer = STAGES["top-k"], OUTER["Nesterov"]
    expected = played(serve(stages, outer, Wire(nodes(stages, outer)))[0])
    wire = Wire(nodes(stages, outer))
    for node in wire.there.values():
        node.start = problem().start() + (0 if same else 1)
    run, federation = serve(stages, outer, wire)
    assert played(run).tobytes() == expected.tobytes()
    assert told(wire, "model") == ([] if same else [(0, m) for m in range(M)])
    assert not federation.members.refused


def test_a_node_that_no_longer_has_the_start_that_it_spoke_of_is_sent_the_model() -> None:
    stages, outer = STAGES["top-k"], OUTER["Nesterov"]
    expected = played(serve(stages, outer, Wire(nodes(stages, outer)))[0])
    wire = Wire(nodes(stages, outer))
    wire.there[101].start = problem().start()
    run, federation = serve(stages, outer, wire)
    federation.gather(10)
    wire.there[101].start = None
    assert played(run).tobytes() == expected.tobytes()
    assert told(wire, "model") == [(0, m) for m in (0, 2, 3, 1)]
    assert not federation.members.refused
