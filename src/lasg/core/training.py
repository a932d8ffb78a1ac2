"""Round after round of a server and its workers: what is the same wherever the workers are.

Everything is counted as a star network would send it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from lasg.core.arrays import Array, FloatArray, IntArray, Mask, bits_per_entry, copies
from lasg.core.clipping import Clipped
from lasg.core.codecs import Codec, Dense
from lasg.core.ledger import Ledger
from lasg.core.optimizers import Optimizer
from lasg.core.rules import Rule
from lasg.core.server import Laziness, Opened, Server
from lasg.core.workers import Gives, Oracle, Reply, Workers
from lasg.errors import Faulty, LasgError

PATIENCE = 10
"""How many rounds in a row a worker's gradient may be NaN or infinite before a run stops."""


class Problem(Oracle, Protocol):
    """What the engine needs of a problem besides its gradients."""

    @property
    def workers(self) -> int:
        """M."""
        ...

    def loss(self, theta: Array) -> float:
        """Return the objective over all samples."""
        ...

    def accuracy(self, theta: Array) -> float | None:
        """Return the accuracy on the test set, if there is one."""
        ...

    def export(self, theta: Array) -> Any:
        """Return a model by the names of its parameters."""
        ...

    def fresh(self) -> Problem:
        """Return a problem of its own for one run: what changes while it trains is not shared, the data is."""
        ...

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold of what changes while it trains: nothing, for most problems."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Take a checkpoint's state."""
        ...


class Hosted:
    """Some of a problem's workers, as the oracle of the process that hosts them."""

    def __init__(self, problem: Oracle, ids: IntArray) -> None:
        self.problem, self.ids = problem, ids

    @property
    def weights(self) -> FloatArray:
        """n_m / N for each of them."""
        return self.problem.weights[self.ids]

    def gradients(self, iteration: int, points: Sequence[Array], rows: IntArray | None) -> list[Array]:
        """Return their contributions."""
        return self.problem.gradients(iteration, points, self.ids if rows is None else self.ids[rows])


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
    broken: Mask | None = None
    """Whose gradient was NaN or infinite, and so was not used; None: nobody's."""
    remark: str = ""
    """What a user must know of this round: that laziness was given up in it, and why."""


class Rounds(ABC):
    """An iterator of rounds: `for round in rounds: ...`, stopped by the caller when it has enough."""

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
        clip: float | None = None,
        patience: int = PATIENCE,
        ids: IntArray | None = None,
        gives: Gives = "innovation",
    ) -> None:
        """Take the workers `ids`, all by default, into this process; `gives` is that of `Workers`."""
        if laziness.workers != problem.workers:
            raise LasgError(
                f"the problem has {problem.workers} workers, laziness says {laziness.workers}: make them equal"
            )
        if not isinstance(patience, int) or patience < 1:
            raise LasgError(f"patience must be a number of rounds >= 1, got {patience!r}")
        theta = optimizer.theta
        self.problem, self.ledger = problem.fresh(), Ledger()
        self.patience = patience
        self.streak: IntArray = np.zeros(laziness.workers, np.int64)
        self._broken = False  # whether anybody is in a streak: quicker to ask in every round
        self.server = Server(optimizer, rule, laziness, smoothness, self.problem.weights)
        oracle: Oracle = self.problem if ids is None else Hosted(self.problem, ids)
        self.workers = Workers(
            oracle if clip is None else Clipped(oracle, clip),
            rule,
            codec or Dense(),
            theta=theta,
            ids=np.arange(laziness.workers) if ids is None else ids,
            seed=seed,
            D=laziness.D,
            local_steps=local_steps,
            gives=gives,
        )
        self.wish = 0
        """What this process would have after the next round: nothing, or more urgently the higher it is."""
        self._model_bits = theta.shape[-1] * bits_per_entry(theta)
        self._estimate_bits = rule.estimate_bits
        self._flags = laziness.workers * rule.flag_bits

    @abstractmethod
    def respond(self, opened: Opened) -> Reply:
        """Return what all M workers answer."""

    @property
    def theta(self) -> Array:
        """The current model."""
        return self.server.theta

    @property
    def given_up(self) -> str:
        """Why laziness was given up, and when; empty while it was not."""
        return "" if self.server.guard is None else self.server.guard.given_up

    @property
    def wished(self) -> int:
        """What was wished most urgently before the last round, by whichever process: all are told the same."""
        return self.wish

    def loss(self) -> float:
        """Return the objective at the current model, over all samples."""
        return self.problem.loss(self.theta)

    def accuracy(self) -> float | None:
        """Return the accuracy of the current model on the test set; None without one."""
        return self.problem.accuracy(self.theta)

    def measure(self) -> tuple[float, float | None]:
        """Return loss and accuracy at the current model, the same in every process."""
        return self.problem.loss(self.theta), self.problem.accuracy(self.theta)

    def export(self) -> Any:
        """Return the model by the names of its parameters."""
        return self.problem.export(self.theta)

    def __iter__(self) -> Iterator[Round]:
        while True:
            yield self.step()

    def step(self) -> Round:
        """Run one round."""
        server = self.server
        if self._broken and self.streak.max() >= self.patience:
            worst = int(self.streak.argmax())
            raise Faulty(
                f"worker {worst} had no finite gradient in {self.streak[worst]} rounds in a row, the last of them "
                f"round {server.k - 1}: look at its data, take a smaller eta, or set clip"
            )
        opened = server.open()
        tau = server.tau
        reply = self.respond(opened)
        before = self.given_up
        server.close(reply.uploaded, reply.innovation, reply.estimates, reply.total, reply.loss)
        remark = "" if before else self.given_up
        downloads = self.downloads(opened)
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
        broken = reply.broken if reply.broken is not None and reply.broken.any() else None
        if broken is not None or self._broken:
            # Who was not asked computed nothing, and so neither failed nor succeeded.
            kept = 0 if opened.asked is None else np.where(opened.asked, 0, self.streak)
            self.streak = np.where(False if broken is None else broken, self.streak + 1, kept)
            self._broken = bool(self.streak.any())
        return Round(opened.k, reply.uploaded, opened.threshold, left, tau, broken, remark)

    def downloads(self, opened: Opened) -> int:
        """Return how many workers get the model in a round."""
        return len(self.streak) if opened.asked is None else int(np.count_nonzero(opened.asked))

    def forgive(self) -> None:
        """Forget how often gradients were not finite, so that a stopped run may be tried again."""
        self.streak, self._broken = np.zeros_like(self.streak), False

    def state(self, *, live: bool = False) -> dict[str, Any]:
        """Return all that a run needs to go on: nested dicts of arrays and JSON values.

        `live` copies nothing: what is returned is only good until the next round.
        """
        state = {
            "server": self.server.state(),
            "workers": self.workers.state(),
            "problem": self.problem.state(),
            "ledger": list(self.ledger.row()),
            "streak": self.streak,
        }
        found: dict[str, Any] = state if live else copies(state)
        return found

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's state."""
        self.take_shared(state)
        self.workers.restore(state["workers"])
        self.problem.restore(state["problem"])

    def take_shared(self, state: dict[str, Any]) -> None:
        """Take the part of a state that is the server's."""
        self.server.restore(state["server"])
        self.streak = state["streak"].copy()
        self._broken = bool(self.streak.any())
        self.ledger = Ledger(*state["ledger"])
