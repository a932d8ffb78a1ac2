"""All workers stacked in one process. Nothing travels; everything is counted as a star network would send it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from lasg.core.arrays import Array, FloatArray, IntArray, Mask, bits_per_entry
from lasg.core.codecs import Codec, Dense
from lasg.core.ledger import Ledger
from lasg.core.optimizers import Optimizer
from lasg.core.rules import Rule
from lasg.core.server import Laziness, Server
from lasg.core.workers import Oracle, Workers
from lasg.errors import LasgError


class Problem(Oracle, Protocol):
    """What the engine needs of a problem besides its gradients."""

    @property
    def workers(self) -> int:
        """M."""
        ...

    def loss(self, theta: Array) -> float:
        """Return the objective over all samples."""
        ...


class Round(NamedTuple):
    """One finished round."""

    k: int
    uploaded: Mask
    """Who uploaded."""
    threshold: float
    """The rule's right side."""
    left: FloatArray | None
    """The rule's left side a worker; None where everybody had to upload."""
    tau: IntArray
    """The staleness that each worker had when the round opened."""


class Simulation:
    """An iterator of rounds: `for round in simulation: ...`, stopped by the caller when it has enough."""

    def __init__(
        self,
        problem: Problem,
        optimizer: Optimizer,
        *,
        rule: Rule,
        laziness: Laziness,
        codec: Codec | None = None,
        local_steps: int = 1,
        seed: int = 0,
        smoothness: FloatArray | None = None,
    ) -> None:
        if laziness.workers != problem.workers:
            raise LasgError(
                f"the problem has {problem.workers} workers, laziness says {laziness.workers}: make them equal"
            )
        theta = optimizer.theta
        self.problem, self.ledger = problem, Ledger()
        self.server = Server(optimizer, rule, laziness, smoothness)
        self.workers = Workers(
            problem,
            rule,
            codec or Dense(),
            theta=theta,
            ids=np.arange(laziness.workers),
            seed=seed,
            D=laziness.D,
            local_steps=local_steps,
        )
        self._model_bits = theta.shape[-1] * bits_per_entry(theta)
        self._estimate_bits = rule.estimate_bits
        self._flags = laziness.workers * rule.flag_bits

    @property
    def theta(self) -> Array:
        """The current model."""
        return self.server.theta

    def loss(self) -> float:
        """Return the objective at the current model, over all samples."""
        return self.problem.loss(self.theta)

    def __iter__(self) -> Iterator[Round]:
        while True:
            yield self.step()

    def step(self) -> Round:
        """Run one round."""
        server = self.server
        opened = server.open()
        tau = server.tau
        reply = self.workers.respond(opened)
        server.close(reply.uploaded, reply.innovation, reply.estimates)
        downloads = len(tau) if opened.asked is None else int(np.count_nonzero(opened.asked))
        ledger = self.ledger
        ledger.rounds += 1
        ledger.iterations += self.workers.H
        ledger.uploads += reply.uploads
        ledger.downloads += downloads
        ledger.bits_up += reply.bits
        ledger.bits_down += downloads * self._model_bits
        ledger.control_bits += self._flags + reply.uploads * self._estimate_bits
        ledger.gradients += reply.gradients
        left = opened.left if reply.left is None else reply.left
        return Round(opened.k, reply.uploaded, opened.threshold, left, tau)

    def state(self) -> dict[str, Any]:
        """Return all that a run needs to go on: nested dicts of arrays and JSON values."""
        return {
            "server": self.server.state(),
            "workers": self.workers.state(),
            "ledger": list(self.ledger.row()),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's state."""
        self.server.restore(state["server"])
        self.workers.restore(state["workers"])
        self.ledger = Ledger(*state["ledger"])
