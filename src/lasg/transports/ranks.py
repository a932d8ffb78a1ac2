"""Workers on the ranks of a process group. Every rank runs the same server, so the model never travels."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import lasg
from lasg.core.arrays import IntArray, checksum, copies, host
from lasg.core.codecs import Codec, Dense
from lasg.core.optimizers import Optimizer
from lasg.core.rules import Rule
from lasg.core.server import Laziness, Opened
from lasg.core.training import Problem, Round, Rounds
from lasg.core.workers import Reply
from lasg.errors import LasgError
from lasg.packing import pack, unpack
from lasg.transports.exchange import GIVES, Exchange, form
from lasg.transports.links import PATIENT, Links

CHECK_EVERY = 100
"""Rounds between two comparisons of the ranks' models."""
SHARED = {"server", "ledger", "streak"}
"""What of a run's state is the same on every rank."""


class Distributed(Rounds):
    """An iterator of rounds, the same on every rank: each hosts some of the M workers and computes for them alone."""

    def __init__(
        self,
        problem: Problem,
        optimizer: Optimizer,
        *,
        rule: Rule,
        laziness: Laziness,
        codec: Codec | None = None,
        links: Links | None = None,
        exchange: str = "auto",
        relay: int = 0,
        tell_left: bool = False,
        check_every: int = CHECK_EVERY,
        requantise: bool = False,
        minibatch_loss: Callable[[], float] | None = None,
        **options: Any,
    ) -> None:
        """Take what `Simulation` takes, the links, and how uploads are exchanged over them.

        Every `check_every` rounds the ranks compare checksums of their models; 0 is never. `requantise` allows what the
        simulation does not do: to round the sum of quantised uploads again, where that is shorter. `minibatch_loss` is
        asked after every round's gradients, if the guard watches; NaN: there were none.
        """
        links, codec, theta = (links or Links()).apart(), codec or Dense(), optimizer.theta
        owners = hosts(laziness.workers, links.ranks)
        self.ids: IntArray = np.flatnonzero(owners == links.rank)
        how = form(theta.shape[-1], int(theta.itemsize), owners, codec, rule, exchange, requantise=requantise)
        super().__init__(
            problem,
            optimizer,
            rule=rule,
            laziness=laziness,
            codec=Dense() if how == "requantised" else codec,  # there the exchange encodes
            ids=self.ids,
            gives=GIVES[how],
            **options,
        )
        self.links, self.check_every, self.codec = links, check_every, codec
        self._minibatch_loss = minibatch_loss if self.server.guard is not None else None
        self.resynchronised: list[tuple[int, list[int]]] = []
        """(round, ranks) of models that were not rank 0's, and were set to it."""
        self.exchange = Exchange(
            links,
            owners,
            codec,
            rule,
            theta,
            setting=exchange,
            relay=relay,
            tell_left=tell_left,
            tell_loss=self._minibatch_loss is not None,
            requantise=requantise,
            seed=options.get("seed", 0),
        )

    def respond(self, opened: Opened) -> Reply:
        """Return what all workers answer, wherever they are."""
        checks = self.check_every and opened.k and opened.k % self.check_every == 0
        number = checksum(opened.theta) if checks else None
        own = self.workers.respond(opened.to(self.ids))
        loss = math.nan if self._minibatch_loss is None else self._minibatch_loss()
        reply = self.exchange.carry(opened.k, own, self.wish, number, loss)
        return reply._replace(gradients=self.downloads(opened) * opened.points * self.workers.H)

    def step(self) -> Round:
        """Run one round; if it showed that models differ, take rank 0's everywhere."""
        finished = super().step()
        if self.exchange.differing:
            self._resynchronise(finished.k)
        return finished

    def _resynchronise(self, k: int) -> None:
        """Take over what rank 0's server and its memory of the workers are."""
        ranks = self.exchange.differing
        # Under a hub the relay alone holds contributions, which its own model has no part in.
        held = self.exchange.contributions if self.exchange.form == "packed" else None
        state = {"shared": self.shared(), "contributed": None if held is None else held.rows}
        said = self.links.say(pack(state) if self.links.rank == 0 else b"", "the server's state")
        if self.links.rank:
            found = unpack(said, "rank 0's state")
            self.take_shared(found["shared"])
            if held is not None:
                held.rows = copies(found["contributed"], self.theta)
        self.resynchronised.append((k, ranks))
        if self.links.rank == 0:
            names = ", ".join(map(str, ranks))
            warnings.warn(
                f"the model of rank {names} was not rank 0's in round {k}: all go on with rank 0's", stacklevel=3
            )

    @property
    def wished(self) -> int:
        """What any rank wished before the last round."""
        return self.exchange.wished

    def measure(self) -> tuple[float, float | None]:
        """Return loss and accuracy, which rank 0 measures."""
        self._collect()
        found = np.full(2, np.nan)
        if self.links.rank == 0:
            loss, accuracy = super().measure()
            found[:] = loss, np.nan if accuracy is None else accuracy
        loss, accuracy = host(self.links.copy_from(0, torch.from_numpy(found), "measurements", PATIENT)).tolist()
        return loss, None if math.isnan(accuracy) else accuracy

    def export(self) -> Any:
        """Return the model, on rank 0 with what all workers know of it."""
        self._collect()
        return super().export()

    def _collect(self) -> None:
        """Let rank 0 know what of the problem belongs to the workers of the others, such as BatchNorm's statistics."""
        for rows in self.problem.state().values():
            if self.links.rank:
                self.links.exchange({0: self.links.wire(rows[self.ids])}, {}, "buffers")
                continue
            for rank in self.links.others:
                theirs = np.flatnonzero(self.exchange.owners == rank)
                received = torch.empty_like(rows[theirs], device="cpu")
                self.links.exchange({}, {rank: received}, "buffers")
                rows[theirs] = received.to(rows.device)

    def shared(self) -> dict[str, Any]:
        """Return the part of the state that all ranks have alike: live arrays."""
        return {name: value for name, value in super().state(live=True).items() if name in SHARED}

    def own(self) -> dict[str, Any]:
        """Return the part of the state that is this rank's alone: live arrays."""
        mine = {name: value for name, value in super().state(live=True).items() if name not in SHARED}
        return {**mine, "exchange": self.exchange.state(), "sent": self.links.sent}

    def state(self, *, live: bool = False) -> dict[str, Any]:
        """Return all that this rank needs to go on."""
        state = {**self.shared(), **self.own()}
        return state if live else dict(copies(state))

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's state."""
        super().restore(state)
        self.exchange.restore(state["exchange"])
        self.links.sent[:] = host(state["sent"])


def code() -> str:
    """Return the version of lasg, with a short checksum of the code that all ranks must share."""
    folder = Path(lasg.__file__).parent
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("core/*.py"), *folder.glob("transports/*.py"), *folder.glob("loops/*.py")]):
        digest.update(path.read_bytes())
    return f"{lasg.__version__} ({digest.hexdigest()[:8]})"


def hosts(workers: int, ranks: int) -> IntArray:
    """Return the rank that hosts each worker: consecutive ones, as evenly as can be."""
    if ranks > workers:
        raise LasgError(f"{ranks} ranks for {workers} workers: a rank without a worker has nothing to do, start fewer")
    return np.arange(workers) * ranks // workers
