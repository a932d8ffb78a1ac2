"""What the server takes workers to say: the same in every engine, and after a restart."""

from __future__ import annotations

import numpy as np
import pytest

from lasg.core.algorithms import Stages, choose_stages
from lasg.core.arrays import host
from lasg.core.belief import NEVER, Listener
from lasg.core.codecs import QSGD, Codec, Dense
from lasg.core.rules import RULES
from lasg.errors import LasgError
from lasg.transports.nodes import Answer, Checker, Parcel
from tests.transports.engines import (
    ROUNDS,
    assert_same_bits,
    assert_same_run,
    distributed,
    distributed_as_simulated,
    federated,
    played,
    simulated,
)
from tests.transports.flaky import Flaky
from tests.transports.test_federation import member, serve
from tests.transports.test_ranks import M, regression

CODECS: dict[str, Codec] = {"dense": Dense(), "qsgd8": QSGD(bits=8), "qsgd16:1": QSGD(bits=16, bucket=1)}
"""The messages of the last are so long that ranks send sums instead."""
CASES = {
    f"{rule}+{codec}+{belief}": Stages(rule=RULES[rule], codec=CODECS[codec], belief=belief)  # type: ignore[arg-type]
    for rule in ("always", "wk2", "pse")
    for belief, codecs in (("replace", CODECS), ("difference", CODECS), ("residual", ["dense"]))
    for codec in codecs
    if (rule, belief) != ("pse", "residual")  # refused: who is not asked has nothing left to say
}
RELAYED = {
    f"{rule}+qsgd16:5+{belief}": Stages(rule=RULES[rule], codec=QSGD(bits=16, bucket=5), belief=belief)
    for rule in ("wk2", "pse")
    for belief in ("replace", "difference")
}
"""Messages that three ranks send to the hub, which sends on their sum."""


@pytest.mark.parametrize("name", CASES)
def test_a_simulation_resumes_bit_for_bit_under_every_belief(name: str) -> None:
    whole, halves = simulated(CASES[name])
    assert_same_bits(whole, halves)
    assert whole.uploaded.all() == name.startswith("always")
    assert whole.uploaded.sum() > M


@pytest.mark.parametrize("belief", ["difference", "residual"])
def test_where_everything_is_said_in_every_round_all_beliefs_are_plain_sgd(belief: str) -> None:
    expected, _ = simulated(CASES["always+dense+replace"])
    found, _ = simulated(CASES[f"always+dense+{belief}"])
    assert_same_run(found, expected)


@pytest.mark.parametrize("name", CASES)
def test_a_federation_has_the_simulations_uploads_and_model_and_resumes_bit_for_bit(name: str) -> None:
    expected, _ = simulated(CASES[name])
    whole, halves = federated(CASES[name])
    assert_same_run(whole, expected)
    assert_same_bits(whole, halves)


def test_ranks_have_the_simulations_uploads_and_model_and_resume_bit_for_bit() -> None:
    ranks = distributed_as_simulated(CASES)
    forms = {ranks[0][name, "hub"][0].form for name in CASES}
    assert forms == {"packed", "summed", "totals"}


def test_what_a_hub_alone_hears_is_the_same_too() -> None:
    ranks = distributed(3, RELAYED, ["hub"])
    for name, stages in RELAYED.items():
        expected, _ = simulated(stages)
        for found in ranks:
            whole, halves = found[name, "hub"]
            assert whole.form == "relayed"
            assert_same_run(whole, expected, name)
            assert_same_bits(whole, halves)
            assert len(whole.uploaded) == ROUNDS


@pytest.mark.parametrize("name", CASES)
def test_who_begins_again_and_who_is_asked_twice_end_up_believed_alike(name: str) -> None:
    """Answers are lost, nodes forget, and the server goes on from an older checkpoint."""
    stages, problem = CASES[name], regression("float64")
    lossy = {(k, m): ("lost", "moved", "deaf")[(k + m) % 3] for k in range(ROUNDS) for m in range(k % 2, M, 4)}
    wire = Flaky({100 + m: member(m, stages, problem) for m in range(M)}, lossy)
    run, federation = serve(stages, wire, problem, deadline=1.0)
    federation.gather(10)
    played(run, 8)
    state = run.state()
    played(run, 5)
    for number in [number for number in wire.there if number % 100 == 2]:
        wire.there[number] = member(2, stages, problem)
    run, federation = serve(stages, wire, problem, deadline=1.0)
    run.restore(state)
    federation.gather(10)
    wire.fates.clear()
    played(run, ROUNDS)
    assert not federation.members.refused
    for node in wire.there.values():
        speaker, m = node.workers.speaker, node.worker
        speaker.confirm(federation.held[m])
        if stages.belief == "difference":
            assert speaker.rows[0].tobytes() == federation.listener.rows[m].tobytes()
    if stages.belief != "residual":
        total = host(federation.listener.rows).sum(0)
        np.testing.assert_allclose(host(run.server.aggregate), total, atol=1e-12)
    assert 0.3 < problem.loss(run.theta) / problem.loss(problem.start()) < 0.7


def test_a_norm_bound_is_of_what_differences_add_up_to() -> None:
    stages = choose_stages("always+dense+difference")
    listener = Listener("difference", stages.codec, 1, np.zeros(3), whole=True, forgetful=True)
    checker = Checker(listener, stages, norm_bound=1.0, buffers=None)
    message = np.array([0.8, 0.0, 0.0]).tobytes()

    def check(held: int) -> Answer:
        head = {"kind": "upload", "run": "r", "round": 0, "key": "k", "evaluations": 1, "base": held}
        parcel = Parcel(head, {"contribution": np.frombuffer(message, np.uint8)})
        return checker.check(parcel, "r", 0, 0, "k", held, must_upload=True)

    assert check(NEVER).message == message
    listener.take([message], np.array([0]))
    with pytest.raises(LasgError, match=r"1\.6, above 1"):
        check(7)
