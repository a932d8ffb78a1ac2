"""Training: round after round of a server, the workers of this process, and a transport between all of them.

A round is: ask, work, decide, say, believe, step. Everything is counted as a star network would send it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from lasg.core.algorithms import Stages
from lasg.core.arrays import LONG, Array, FloatArray, IntArray, Mask, bits_per_entry, copies, count_set, stand_in
from lasg.core.clipping import Clipped
from lasg.core.codecs import Shapes
from lasg.core.ledger import Ledger
from lasg.core.messages import Request, Uploads
from lasg.core.optimizers import Optimizer, with_averages
from lasg.core.server import Laziness, Server
from lasg.core.transport import Local, Plan, Problem, Transport
from lasg.core.work import Oracle
from lasg.core.workers import Workers
from lasg.errors import Faulty, LasgError

PATIENCE = 10
"""How many rounds in a row a worker's gradient may be NaN or infinite before a run stops."""
CHECKPOINT, STOP, MORE = 1, 2, 3
"""What a process may ask all others for after a round, `Uploads.control`: the highest wins. A process that has `MORE`
to say goes on, and those that have not wait for it in silence."""


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
    """The rule's left side per worker; None where everybody had to upload."""
    tau: IntArray
    """The staleness that each worker had when the round opened."""
    broken: Mask | None = None
    """Whose gradient was NaN or infinite, and so was not used; None: nobody's."""
    remark: str = ""
    """What a user must know of this round: that laziness was given up in it, and why."""
    control: int = 0
    """What some process asked for: 0, `CHECKPOINT`, `STOP` or `MORE`. All processes are told the same."""


class Training:
    """An iterator of rounds: `for round in training: ...`, stopped by the caller when it has enough."""

    def __init__(
        self,
        problem: Oracle | None,
        optimizer: Optimizer,
        stages: Stages,
        laziness: Laziness,
        transport: Transport | None = None,
        *,
        seed: int = 0,
        smoothness: FloatArray | None = None,
        clip: float | None = None,
        patience: int = PATIENCE,
        minibatch_loss: Callable[[], float] | None = None,
        shapes: Shapes | None = None,
    ) -> None:
        """Train a problem, or, without one, a model whose workers are all elsewhere.

        Without a transport everybody is in this process. `shapes` are those of the model's tensors, where the problem
        says none. `minibatch_loss` is asked after every round's gradients, if the guard watches; NaN: there were none.
        """
        workers = getattr(problem, "workers", laziness.workers)
        if laziness.workers != workers:
            raise LasgError(f"the problem has {workers} workers, laziness says {laziness.workers}: make them equal")
        if not isinstance(patience, int) or patience < 1:
            raise LasgError(f"patience must be a number of rounds >= 1, got {patience!r}")
        self._size = int(optimizer.theta.shape[-1])
        if stages.averages:
            optimizer = with_averages(optimizer, stages.averages)
        theta = stand_in(optimizer.theta)  # the first model is not kept for its length
        self.problem = problem.fresh() if isinstance(problem, Problem) else problem
        stages = stages.for_shapes(shapes or getattr(problem, "shapes", None))
        self.stages, self.transport, self.ledger, self.patience = stages, transport or Local(), Ledger(), patience
        self.streak: IntArray = np.zeros(laziness.workers, np.int64)
        self._broken = False  # whether anybody is in a streak: quicker to ask in every round
        weights = None if self.problem is None else self.problem.weights
        self.server = Server(optimizer, stages, laziness, smoothness, weights)
        self._minibatch_loss = None if self.server.guard is None else minibatch_loss
        wants_loss = self._minibatch_loss is not None
        plan = Plan(laziness.workers, stages, theta, seed, laziness.D, optimizer, wants_loss, weights, patience)
        hosting = self.transport.begin(plan)
        self.ids, self.listener, self._here = hosting.ids, hosting.listener, hosting.carries == "news"
        self._all_here = len(self.ids) == laziness.workers
        self.workers = self._hosted(hosting.stages or stages, laziness, seed, clip)
        self._travels = type(self.transport) is not Local
        self._nobody = Uploads(np.zeros(0, np.bool_))
        self.control = 0
        """What this process asks for after the next round: 0, `CHECKPOINT`, `STOP` or `MORE`."""
        self.silent = False
        """Whether the workers of this process compute and say nothing: they only listen to those that have `MORE`."""
        self.synchronised: list[tuple[int, list[int]]] = []
        """(round, processes) of models that were not the first process's, and were set to it."""
        self._steps_of = None if stages.one_gradient else stages.work.steps_of
        self._model_bits = theta.shape[-1] * bits_per_entry(theta)
        self._estimate_bits, self._flags = stages.rule.estimate_bits, laziness.workers * stages.rule.flag_bits

    def _hosted(self, stages: Stages, laziness: Laziness, seed: int, clip: float | None) -> Workers | None:
        """Return the workers that live in this process, if any do."""
        if self.problem is None or not len(self.ids):
            return None
        oracle = self.problem if self._all_here else Hosted(self.problem, self.ids)
        return Workers(
            oracle if clip is None else Clipped(oracle, clip),
            stages,
            theta=stand_in(self.server.theta),
            ids=self.ids,
            seed=seed,
            D=laziness.D,
            workers=laziness.workers,
            listener=self.listener if self._here else None,
            gives_rows=getattr(self.problem, "gives_rows", False) and self._size > LONG,
        )

    @property
    def theta(self) -> Array:
        """The current model."""
        vector = self.server.theta
        return vector if vector.shape[-1] == self._size else vector[: self._size]

    @property
    def given_up(self) -> str:
        """Why laziness was given up, and when; empty while it was not."""
        return "" if self.server.guard is None else self.server.guard.given_up

    @property
    def measurable(self) -> Problem:
        """The problem, if it can be measured here."""
        if not isinstance(self.problem, Problem):
            raise LasgError("there is no problem here to measure: measure the loss over all samples in your own loop")
        return self.problem

    def loss(self) -> float:
        """Return the objective at the current model, over all samples."""
        return self.measurable.loss(self.theta)

    def accuracy(self) -> float | None:
        """Return the accuracy of the current model on the test set; None without one."""
        return self.measurable.accuracy(self.theta)

    def measure(self) -> tuple[float, float | None]:
        """Return loss and accuracy at the current model, the same in every process."""
        problem = self.measurable
        self.transport.collect(problem)
        measured = self.transport.from_first(
            lambda: {"loss": problem.loss(self.theta), "accuracy": problem.accuracy(self.theta)}, "measurements"
        )
        return measured["loss"], measured["accuracy"]

    def export(self) -> Any:
        """Return the model by the names of its parameters, in the process that saves with what all workers know."""
        self.transport.collect(self.measurable)
        return self.measurable.export(self.theta)

    def __iter__(self) -> Iterator[Round]:
        while True:
            yield self.step()

    def step(self) -> Round:
        """Run one round."""
        server, tau = self.server, self.server.tau
        if self._broken and self.streak.max() >= self.patience:
            worst = int(self.streak.argmax())
            raise Faulty(
                f"worker {worst} had no finite gradient in {self.streak[worst]} rounds in a row, the last of them "
                f"round {server.k - 1}: look at its data, take a smaller eta, or set clip"
            )
        request = server.open()
        uploads = self._answer(request)
        if self._travels:
            uploads = self.transport.exchange(request, uploads)
        if self.silent and uploads.control != MORE:  # everybody is: the round is void, and the server takes no step
            return Round(request.k, uploads.uploaded, request.threshold, None, tau)
        news = uploads.news
        if not self._here and self.listener is not None and (uploads.uploads or uploads.forget or self.listener.whole):
            news = self.listener.take(uploads.messages, np.flatnonzero(uploads.uploaded), uploads.forget, k=request.k)
        if uploads.weights is not None:
            server.weights = uploads.weights
        guard = server.guard
        given_up = guard is not None and bool(guard.given_up)
        server.close(uploads, news)
        remark = "" if guard is None or given_up else guard.given_up
        self._count(request, uploads)
        if uploads.differing:
            self.synchronise(request.k, uploads.differing)
        left = request.left if uploads.left is None else uploads.left
        broken = self._note_broken(request, uploads) if uploads.broken is not None or self._broken else None
        return Round(request.k, uploads.uploaded, request.threshold, left, tau, broken, remark, uploads.control)

    def synchronise(self, k: int, differing: tuple[int, ...]) -> None:
        """Take over what the first process's server and listener are: the models of some were not its."""
        own = None if self._here else self.listener
        taken = self.transport.from_first(
            lambda: {"shared": self.shared(), "listener": None if own is None else own.state()}, "the server's state"
        )
        if not self.transport.is_first:
            self.restore_shared(taken["shared"])
            if own is not None:
                own.restore(taken["listener"])
        self.synchronised.append((k, list(differing)))
        if self.transport.is_first:
            names = ", ".join(map(str, differing))
            warnings.warn(
                f"the model of rank {names} was not rank 0's in round {k}: all go on with rank 0's", stacklevel=3
            )

    def _answer(self, request: Request) -> Uploads:
        """Return what the workers of this process answer, and what it asks for."""
        if self.workers is None:
            own = self._nobody
        else:
            if not self._all_here:
                computes, must, blocks = request.computes[self.ids], request.must_upload[self.ids], request.blocks
                if blocks is not None:
                    blocks = blocks._replace(due=blocks.due[self.ids])
                request = request._replace(computes=computes, must_upload=must, blocks=blocks)
            if self.silent:
                request = request._replace(computes=np.zeros_like(request.computes))
            own = self.workers.answer(request)
        if self._minibatch_loss is not None:
            own = own._replace(loss=self._minibatch_loss())
        return own._replace(control=self.control) if self.control else own

    def _count(self, request: Request, uploads: Uploads) -> None:
        ledger, downloads = self.ledger, uploads.downloads
        if downloads is None:
            downloads = count_set(request.computes) if request.fresh else 0
        ledger.rounds += 1
        ledger.iterations += 1 if self._steps_of is None else len(self._steps_of(request.k))
        ledger.uploads += uploads.uploads
        ledger.downloads += downloads
        ledger.bits_up += uploads.bits
        ledger.bits_down += downloads * self._model_bits
        ledger.control_bits += self._flags + uploads.uploads * self._estimate_bits
        ledger.gradients += uploads.gradients

    def _note_broken(self, request: Request, uploads: Uploads) -> Mask | None:
        """Count for how many rounds in a row workers had no finite gradient; return who had none in this one."""
        broken = uploads.broken if uploads.broken is not None and uploads.broken.any() else None
        if broken is not None or self._broken:
            # Who was not asked computed nothing, and so neither failed nor succeeded.
            kept = np.where(request.computes, 0, self.streak)
            self.streak = np.where(False if broken is None else broken, self.streak + 1, kept)
            self._broken = bool(self.streak.any())
        return broken

    def reset_faults(self) -> None:
        """Forget how often gradients were not finite, so that a stopped run may be tried again."""
        self.streak, self._broken = np.zeros_like(self.streak), False

    # -- what survives the process ----------------------------------------------------------------------------------

    def state(self, *, live: bool = False) -> dict[str, Any]:
        """Return all that this process needs to go on: nested dicts of arrays and JSON values.

        `live` copies nothing: what is returned is only good until the next round.
        """
        state = {**self.shared(), **self.own()}
        return state if live else dict(copies(state))

    def shared(self) -> dict[str, Any]:
        """Return the part of the state that all processes have alike: live arrays."""
        return {"server": self.server.state(), "ledger": list(self.ledger.row()), "streak": self.streak}

    def own(self) -> dict[str, Any]:
        """Return the part of the state that is this process's alone: live arrays."""
        return {
            "workers": None if self.workers is None else self.workers.state(),
            "listener": None if self.listener is None else self.listener.state(),
            "problem": self.problem.state() if isinstance(self.problem, Problem) else {},
            "transport": self.transport.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's state."""
        state = upgraded(state)
        self.restore_shared(state)
        if self.workers is not None:
            self.workers.restore(state["workers"])
        if self.listener is not None:
            self.listener.restore(state["listener"])
        if isinstance(self.problem, Problem):
            self.problem.restore(state["problem"])
        self.transport.restore(state["transport"])

    def restore_shared(self, state: dict[str, Any]) -> None:
        """Take the part of a state that is the server's."""
        self.server.restore(state["server"])
        self.streak = np.array(state["streak"])
        self._broken = bool(self.streak.any())
        self.ledger = Ledger(*state["ledger"])


def upgraded(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state as this version has it, of one that lasg 0.1 wrote: then contributions were the workers'."""
    if "transport" in state:
        return state
    workers, exchange = state["workers"], state.get("exchange", {})
    rows = workers["contributed"] if workers["contributed"] is not None else exchange.get("contributed")
    names = ("memory", "snapshot", "iterates")
    speaker = {"encoder": {}, "decoder": {}, "last": -1, "pending": None}
    return {
        **{name: value for name, value in state.items() if name not in {"exchange", "sent"}},
        "workers": {
            "rule": {**{name: workers[name] for name in names}, "watched": {}},
            "estimator": {},
            "speaker": speaker,
        },
        "listener": None if rows is None else {"decoder": {}, "rows": rows},
        "transport": {**exchange, "sent": state["sent"]} if exchange else state.get("federation", {}),
    }
