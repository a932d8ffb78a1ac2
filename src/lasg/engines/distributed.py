"""Workers on the ranks of a process group. Every rank runs the same server, so the model never travels."""

from __future__ import annotations

from typing import Any

import numpy as np

from lasg.core.arrays import IntArray, copies
from lasg.core.codecs import Codec, Dense
from lasg.core.optimizers import Optimizer
from lasg.core.rules import Rule
from lasg.core.server import Laziness, Opened
from lasg.core.workers import Reply
from lasg.engines.exchange import Exchange, form
from lasg.engines.links import Links
from lasg.engines.rounds import Problem, Rounds
from lasg.errors import LasgError


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
        **options: Any,
    ) -> None:
        """Take what `Simulation` takes, the links, and how uploads are exchanged over them."""
        links, codec, theta = links or Links(), codec or Dense(), optimizer.theta
        owners = hosts(laziness.workers, links.ranks)
        self.ids: IntArray = np.flatnonzero(owners == links.rank)
        packs = form(theta.shape[-1], int(theta.itemsize), laziness.workers, codec) == "packed"
        super().__init__(
            problem, optimizer, rule=rule, laziness=laziness, codec=codec, ids=self.ids, packs=packs, **options
        )
        self.links = links
        self.exchange = Exchange(links, owners, codec, rule, theta, setting=exchange, relay=relay, tell_left=tell_left)

    def respond(self, opened: Opened) -> Reply:
        """Return what all workers answer, wherever they are."""
        reply = self.exchange.carry(self.workers.respond(opened.to(self.ids)))
        asked = len(self.streak) if opened.asked is None else int(np.count_nonzero(opened.asked))
        points = int(self.server.rule.points(opened.k, self.server.laziness.D))
        return reply._replace(gradients=asked * points * self.workers.H)

    def state(self, *, live: bool = False) -> dict[str, Any]:
        """Return all that this rank needs to go on."""
        own = self.exchange.state()
        return {**super().state(live=live), "exchange": own if live else copies(own)}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's state."""
        super().restore(state)
        self.exchange.restore(state["exchange"])


def hosts(workers: int, ranks: int) -> IntArray:
    """Return the rank that hosts each worker: consecutive ones, as evenly as can be."""
    if ranks > workers:
        raise LasgError(f"{ranks} ranks for {workers} workers: a rank without a worker has nothing to do, start fewer")
    return np.arange(workers) * ranks // workers
