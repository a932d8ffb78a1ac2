"""The seam between a run and what carries its messages, and the transport that carries nothing.

A transport of your own is a class with `begin` and `exchange`, and `Local` as its base for the rest: docs/extending.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from lasg.core.algorithms import Stages
from lasg.core.arrays import Array, FloatArray, IntArray
from lasg.core.belief import Listener
from lasg.core.messages import Request, Uploads
from lasg.core.optimizers import Optimizer
from lasg.core.work import Oracle


@runtime_checkable
class Problem(Oracle, Protocol):
    """Gradients, and what a whole run is measured by."""

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


class Plan(NamedTuple):
    """What a transport is told before the first round."""

    workers: int
    """M."""
    stages: Stages
    theta: Array
    """Any model: its length, dtype and device."""
    seed: int
    D: float
    optimizer: Optimizer
    """The server's, as it is in every round: who has its state can repeat its steps."""
    wants_loss: bool = False
    """Whether the guard wants to know the loss of the minibatches."""
    weights: FloatArray | None = None
    """n_m / N of all workers; None: only the transport will know them."""
    patience: int = 10
    """In how many rounds in a row a worker may have no finite gradient."""

    def listener(self, workers: int, *, whole: bool = False, forgetful: bool = False) -> Listener:
        """Return a listener to so many workers."""
        belief, codec = self.stages.belief, self.stages.codec
        bound: dict[str, Any] = {"robust": self.stages.robust, "weights": self.weights, "seed": self.seed}
        return Listener(belief, codec, workers, self.theta, whole=whole, forgetful=forgetful, **bound)


class Hosting(NamedTuple):
    """What a transport says before the first round."""

    ids: IntArray
    """The workers that live in this process."""
    listener: Listener | None
    """Who hears what is said; None: nobody in this process needs to."""
    carries: Literal["news", "messages"] = "messages"
    """Whether the workers here speak to the listener and their news travel, or messages travel and it hears all."""
    stages: Stages | None = None
    """Other stages for the workers here, where the transport takes one over."""


class Transport(Protocol):
    """What brings the uploads of all processes to every process. All but `begin` and `exchange` has a default."""

    is_first: bool = True
    """Whether this process measures and saves: one of those that share a run does."""

    def begin(self, plan: Plan) -> Hosting:
        """Get ready for a run; say which workers live in this process, and how they are heard."""
        ...

    def exchange(self, request: Request, own: Uploads) -> Uploads:
        """Return what all M workers answered, given what those of this process did.

        An answer that never comes is a worker that stayed silent. `control` is the highest of any process.
        """
        ...

    def from_first(self, make: Callable[[], dict[str, Any]], what: str) -> dict[str, Any]:  # noqa: ARG002
        """Return in every process what the first one makes: nested dicts of arrays and JSON values."""
        return make()

    def collect(self, problem: Problem) -> None:  # noqa: ARG002
        """Let the first process know what of the problem belongs to workers elsewhere."""
        return

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint of this process must hold."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:  # noqa: ARG002
        """Take a checkpoint's state."""
        return


class Local(Transport):
    """All workers stacked in this process: nothing travels."""

    def begin(self, plan: Plan) -> Hosting:
        """Host everybody."""
        return Hosting(np.arange(plan.workers), plan.listener(plan.workers), "news")

    def exchange(self, request: Request, own: Uploads) -> Uploads:  # noqa: ARG002
        """Return what the workers answered."""
        return own
