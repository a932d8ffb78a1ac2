"""One choice of stages in every engine, in one go and after a restart in the middle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lasg.core.algorithms import Stages
from lasg.core.arrays import host
from lasg.core.server import Laziness
from lasg.core.training import Training
from lasg.packing import pack, unpack
from lasg.transports.ranks import Ranks
from tests.transports.ranks import on_ranks
from tests.transports.test_federation import LAZINESS, member, serve, training
from tests.transports.test_ranks import M, regression
from tests.transports.wire import Wire

ROUNDS, CUT = 16, 7
"""CUT: after how many rounds everybody is killed and started again."""
Cases = Mapping[str, Stages]
EXCHANGES = ("auto", "hub")


class Found(NamedTuple):
    """What a run shows."""

    uploaded: npt.NDArray[np.bool_]
    theta: npt.NDArray[Any]
    ledger: tuple[int, ...]
    form: str = ""


def played(run: Training, rounds: int, before: Sequence[npt.NDArray[np.bool_]] = ()) -> Found:
    """Do some rounds; those before them are another process's."""
    uploaded = [*before, *(run.step().uploaded for _ in range(rounds))]
    return Found(np.array(uploaded), host(run.theta).copy(), run.ledger.row(), getattr(run.transport, "form", ""))


def in_halves(make: Callable[[], Training], restart: Callable[[Training], Training]) -> tuple[Found, Found]:
    """Return what a run shows in one go, and what another one does that is killed in the middle."""
    whole = played(make(), ROUNDS)
    killed = make()
    first = played(killed, CUT)
    return whole, played(restart(killed), ROUNDS - CUT, list(first.uploaded))


def restored(make: Callable[[], Training], killed: Training) -> Training:
    """Return a new process that goes on with the checkpoint of another one."""
    again = make()
    again.restore(unpack(pack(killed.state(live=True)), "the checkpoint"))
    return again


def simulated(stages: Stages, laziness: Laziness = LAZINESS) -> tuple[Found, Found]:
    problem = regression("float64")

    def make() -> Training:
        return training(stages, problem, laziness, problem)

    return in_halves(make, lambda killed: restored(make, killed))


def federated(stages: Stages, send_deltas: bool = True, laziness: Laziness = LAZINESS) -> tuple[Found, Found]:
    """The server goes on from its checkpoint, and every node from its memory."""
    problem = regression("float64")

    def nodes() -> Wire:
        return Wire({100 + m: member(m, stages, problem, laziness.D) for m in range(M)})

    def make(wire: Wire | None = None, killed: Training | None = None) -> Training:
        run, federation = serve(stages, wire or nodes(), problem, send_deltas=send_deltas, laziness=laziness)
        if killed is not None:
            run.restore(unpack(pack(killed.state(live=True)), "the checkpoint"))
        federation.gather(10)
        return run

    def restart(killed: Training) -> Training:
        wire = nodes()
        before = killed.transport.members.carrier  # type: ignore[attr-defined]
        for number, node in wire.there.items():
            node.recall(before.there[number].memory())
        return make(wire, killed)

    return in_halves(make, restart)


def distributed(
    ranks: int, cases: Cases, exchanges: Sequence[str] = EXCHANGES, laziness: Laziness = LAZINESS
) -> list[Any]:
    """Return what each rank found in each case and exchange: in one go, and after a restart of all ranks."""
    return on_ranks(ranks, _on_a_rank, cases, exchanges, laziness)


def _on_a_rank(
    cases: Cases, exchanges: Sequence[str], laziness: Laziness
) -> dict[tuple[str, str], tuple[Found, Found]]:
    problem, found = regression("float64"), {}
    for name, stages in cases.items():
        for exchange in exchanges:

            def make(stages: Stages = stages, exchange: str = exchange) -> Training:
                return training(stages, problem, laziness, problem, Ranks(exchange=exchange))

            found[name, exchange] = in_halves(make, lambda killed, make=make: restored(make, killed))  # type: ignore[misc]
    return found


def assert_same_bits(one: Found, other: Found) -> None:
    np.testing.assert_array_equal(one.uploaded, other.uploaded)
    assert one.theta.tobytes() == other.theta.tobytes()
    assert one.ledger == other.ledger


def assert_same_run(one: Found, other: Found, where: str = "") -> None:
    """The same uploads and bits, and the same model to rounding."""
    np.testing.assert_array_equal(one.uploaded, other.uploaded, err_msg=where)
    np.testing.assert_allclose(one.theta, other.theta, rtol=0, atol=1e-10, err_msg=where)
    assert one.ledger == other.ledger, where


def distributed_as_simulated(cases: Cases, laziness: Laziness = LAZINESS) -> list[Any]:
    """Run cases on two ranks by every exchange; each must find what the simulation finds, and resume bit for bit."""
    ranks = distributed(2, cases, laziness=laziness)
    for name, stages in cases.items():
        expected, _ = simulated(stages, laziness)
        for exchange in EXCHANGES:
            for found in ranks:
                whole, halves = found[name, exchange]
                assert_same_run(whole, expected, f"{name}, {exchange}")
                assert_same_bits(whole, halves)
                assert_same_bits(whole, ranks[0][name, exchange][0])
    return ranks
