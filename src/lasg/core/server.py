"""The server: a deterministic state machine. No clock, no randomness, no I/O.

`open` says who computes, who must upload and what the rules' right side is; `close` takes the news of those
that uploaded and moves the model. eqn:LASGiteration2: theta^{k+1} = theta^k - eta_k nabla^k, with
nabla^k = nabla^{k-1} + the sum of the innovations.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from lasg.core.agreement import Agreement
from lasg.core.arrays import (
    LONG,
    Array,
    FloatArray,
    Mask,
    add_to,
    cast,
    copies,
    for_sums,
    namespace,
    sq,
    sq_distance,
    sq_sum,
    zeros,
)
from lasg.core.block_ages import BlockAges
from lasg.core.block_codec import BlockCodec
from lasg.core.guard import WINDOW, Guard, is_guarded
from lasg.core.guard import check_staleness as check_staleness  # noqa: PLC0414 (specs take it from here)
from lasg.core.messages import News, Request, Uploads
from lasg.core.rules import Iterates, Record, points_of
from lasg.errors import Diverged, LasgError

if TYPE_CHECKING:
    from lasg.core.algorithms import Stages
    from lasg.core.optimizers import Optimizer


PAPER_C = 0.1
"""The paper's constant c, which its experiments share: ten or twenty workers and plain SGD."""
DEFAULT_D = 100
"""The largest staleness where none is given: the paper's."""
FAR = 1 << 62
"""A staleness that is due even where D is infinite: of who was asked for a first upload and could not give one."""
RHO = 0.5
"""The bound on the aggregate's relative error where nothing else is said."""


@dataclass(frozen=True, kw_only=True)
class Laziness:
    """How lazy: the constants of the rules' right side, (c / (eta^2 M^2)) * sum of the last moves.

    Or, as the theorems have it, (c_d / M^2) * the same sum, with a c_d that does not follow the step.

    Or, for any number of workers and any optimizer, a bound rho on the aggregate's relative error. If every silent
    worker's change is at most (rho / M) ||aggregate||, the aggregate is at most rho ||aggregate|| from the fresh one,
    even where all errors agree. Two things make an error count for more than its size. It stays while the contribution
    is used again: over tau rounds it adds up tau times, where fresh noise adds up sqrt(tau) times. And momentum beta
    amplifies what stays by sqrt((1 + beta) / (1 - beta)) over what alternates. So the right side is
    (rho / M)^2 mean ||aggregate||^2 (1 - beta) / (1 + beta) / mean tau. For SGD whose contributions are fresh it is the
    paper's with rho^2 = c * window: c = 0.1 allows an error as large as the aggregate itself.
    """

    workers: int
    """M."""
    D: int | float = DEFAULT_D
    """The largest staleness: who was silent for D rounds uploads. D = 1 is plain SGD. Infinite only where something
    else bounds what staleness does: the rule itself (`vr`), or the guard."""
    c: float = PAPER_C
    """The weight of every move, before division by eta^2 M^2. c = 0 is plain SGD."""
    window: int = 10
    """How many moves are summed: c_d = 0 beyond it, and beyond D, where the paper's sum ends."""
    start: Literal["ask-twice", "zero"] = "ask-twice"
    """How PSE begins: everybody asked at k = 0 and k = 1, or only at k = 0 with L-hat = 0 after it."""
    c_d: float | None = None
    """A constant weight of every move, before division by M^2; None: c / eta_k^2. Takes the place of c."""
    rho: float | None = None
    """The bound on the aggregate's relative error. Takes the place of c. 0 is plain SGD."""
    variance_bound: float | None = None
    """Theta, for rules that decide for all: the variance of the workers' models at which they upload; None: that of
    the first rounds, measured. 0: in every round; inf: every D rounds."""
    guard: bool = False
    """Whether laziness is watched, and given up where it hurts (`guard.py`)."""

    def __post_init__(self) -> None:
        if not isinstance(self.workers, int) or self.workers < 1:
            raise LasgError(f"workers must be an integer >= 1, got {self.workers!r}")
        endless = isinstance(self.D, float) and math.isinf(self.D)
        if not (isinstance(self.D, int) or endless) or self.D < 1:
            raise LasgError(f"D must be an integer >= 1, or inf, got {self.D!r}. D = 1 is plain SGD.")
        if not self.c >= 0:
            raise LasgError(f"c must be >= 0, got {self.c!r}. c = 0 is plain SGD, inf uploads every D rounds.")
        if not isinstance(self.window, int) or self.window < 1:
            raise LasgError(f"window must be an integer >= 1, got {self.window!r}")
        if self.start not in {"ask-twice", "zero"}:
            raise LasgError(f"start must be 'ask-twice' or 'zero', got {self.start!r}")
        if self.c_d is not None and not 0 <= self.c_d < float("inf"):
            raise LasgError(f"c_d must be >= 0 and finite, or None for c / eta^2, got {self.c_d!r}")
        if self.rho is not None and not 0 <= self.rho < float("inf"):
            raise LasgError(f"rho must be >= 0 and finite, a bound on the aggregate's relative error, got {self.rho!r}")
        if self.variance_bound is not None and not self.variance_bound >= 0:
            raise LasgError(
                f"variance_bound must be >= 0, got {self.variance_bound!r}; absent: that of the first rounds, inf: none"
            )
        if self.rho is not None and self.c_d is not None:
            raise LasgError("rho and c_d both say how lazy: set one of them")


def laziness_of(
    workers: int, *, rho: float | None, c: float | None, guard: bool | None = None, **options: Any
) -> Laziness:
    """Return how lazy real workers are: by a bound rho, `RHO` unless one is given, or by the paper's constant c.

    What is bounded by rho is guarded, too, and what has the paper's constant is not, unless `guard` says otherwise.
    """
    if rho is not None and c is not None:
        raise LasgError(f"rho = {rho} and c = {c} both say how lazy: set one of them")
    if c is not None or (rho is None and options.get("c_d") is not None):
        return Laziness(workers=workers, c=PAPER_C if c is None else c, guard=bool(guard), **options)
    return Laziness(workers=workers, rho=RHO if rho is None else rho, guard=guard in (None, True), **options)


class Server:
    """The model, the aggregate, and what the rules need to know of the past."""

    def __init__(
        self,
        optimizer: Optimizer,
        stages: Stages,
        laziness: Laziness,
        smoothness: FloatArray | None = None,
        weights: FloatArray | None = None,
    ) -> None:
        """Take how the model moves and who may be silent; `weights` are n_m / N, equal unless they are given."""
        M, rule = laziness.workers, stages.rule
        theta = optimizer.theta
        if laziness.c_d is not None and not optimizer.plain:
            raise LasgError("c_d weighs moves of plain SGD; with another optimizer set c, which weighs gradients")
        self.optimizer, self.rule, self.laziness = optimizer, rule, laziness
        self.agreement = Agreement(rule, M, laziness.variance_bound) if rule.where == "all" else None
        self._probe = stages.probe
        self._own_probe = stages.own_probe
        self._periodic = rule.periodic
        check_staleness(stages, laziness)
        self.guard = Guard() if is_guarded(stages, laziness) else None
        self._longest = laziness.D if math.isfinite(laziness.D) else FAR
        self.weights = weights
        self.k = 0
        self.aggregate = for_sums(zeros(theta.shape, theta))
        self.history: deque[Any] = deque(maxlen=int(min(laziness.window, laziness.D)))
        """Of the last rounds a number each; or a number per block, where blocks are decided by themselves."""
        self.tau = np.ones(M, np.int64)
        codec = stages.codec
        self.blocks = BlockAges(codec, M, theta.shape[-1]) if isinstance(codec, BlockCodec) else None
        self._everybody = np.ones(M, np.bool_)
        self._nobody = np.zeros(M, np.bool_)
        self._scratch: Array = None
        # Of an optimizer that steps in place: what gives a copy of the model before a step.
        self._copy_before: Callable[[Array], Array] | None = getattr(optimizer, "copy_before", None)
        self.iterates = Iterates(M, theta) if rule.where == "server" else None
        if rule.where == "server" and rule.estimate is None:
            if smoothness is None:
                raise LasgError(
                    f"rule {rule.name} needs the smoothness constants L_m of the workers; pse estimates them"
                )
            self.smoothness = np.broadcast_to(np.asarray(smoothness, np.float64), (M,)).copy()
        else:
            self.smoothness = np.zeros(M)
        self.recent = None if rule.recent is None else np.zeros((M, rule.recent))

    @property
    def theta(self) -> Array:
        """The current model, theta^k."""
        return self.optimizer.theta

    def threshold(self, eta: float) -> Any:
        """Return the right side shared by all rules; of each block, where blocks are decided by themselves.

        With plain SGD it is the paper's, from the squared moves. Otherwise, and where rho says how lazy, the history
        holds squared norms of the aggregate, which is the same number for SGD of one step size.
        """
        if self.rule.right is not None:
            mean = sum(self.history) / max(1, len(self.history))
            square = eta * eta if self._in_moves else 1.0
            return self.rule.right(mean / square if square else 0.0, self.laziness.workers)
        if self.laziness.rho is not None:
            mean = sum(self.history) / max(1, len(self.history))
            longest = self.laziness.D if math.isfinite(self.laziness.D) else self.k + 1
            ages = self.tau if self.blocks is None else self.blocks.ages
            reuse = np.minimum(ages, longest).mean(0)  # who is gone has a tau without bounds
            return (self.laziness.rho / self.laziness.workers) ** 2 * mean * self._forgetting / reuse
        if self.laziness.c_d is not None:
            return self.laziness.c_d / self.laziness.workers**2 * sum(self.history)
        scale = self.laziness.c / self.laziness.workers**2
        if scale == 0 or scale == float("inf"):
            return scale  # inf means: silent until due; inf * 0 would be nan
        if self.optimizer.plain:
            if eta * eta == 0:
                return float("inf")  # a schedule came to its end: the model stands still, nothing is new
            scale /= eta * eta
        return scale * sum(self.history)

    @property
    def _forgetting(self) -> float:
        """(1 - beta) / (1 + beta), for the optimizer's momentum as it is now: 1 for plain SGD."""
        return (1 - self.optimizer.momentum) / (1 + self.optimizer.momentum)

    def open(self) -> Request:
        """Open round k: decide who computes (server rules) and who must upload."""
        if self.guard is not None:
            self.guard.horizon = WINDOW * self._forgetting
        eta = self.optimizer.rate(self.k)
        if self.agreement is not None:
            return self._open_for_all(self.agreement, eta)
        gave_up = self.guard is not None and bool(self.guard.given_up)
        threshold = math.nan if gave_up else self.threshold(eta)
        # Who has given up laziness needs no rule's probe; an estimator needs its own in every round.
        points = int(points_of(self._own_probe if gave_up else self._probe, self.k, self.laziness.D))
        must: Mask = self._everybody if gave_up else self._must_upload()
        if self.iterates is None or must is self._everybody:
            by_rule, blocks = must is not self._everybody, None
            if self.blocks is not None:
                blocks = self.blocks.open(threshold, must)
                threshold, must = float(blocks.thresholds.sum()), np.asarray(blocks.due.any(-1))
            return Request(self.k, self.theta, eta, threshold, self._everybody, must, None, points, by_rule, blocks)
        assert self.rule.left is not None  # otherwise everybody must upload
        now = Record(theta=self.theta, moved=self.iterates.moved(self.theta), smoothness=self.smoothness)
        left = self.rule.left(now, Record())
        asked = (left > threshold) | must
        return Request(self.k, self.theta, eta, threshold, asked, asked, left, points)

    def _open_for_all(self, agreement: Agreement, eta: float) -> Request:
        """Open a round in which all compute, and all upload or nobody."""
        must = agreement.uploading(self.k, int(self.tau.min()), self._longest)
        left = np.full(len(must), agreement.left) if self.k else None
        theta, bound = self.theta, agreement.threshold
        return Request(self.k, theta, eta, bound, self._everybody, must, left, 1, by_rule=False, fresh=agreement.fresh)

    def _must_upload(self) -> Mask:
        """Who must upload: all at k = 0; then by staleness (alg: LASG-WK2, PS, PSE) or period (alg: LASG-WK1).

        Where blocks are decided by themselves, which blocks of whom.
        """
        if self.k == 0 or self.rule.left is None:
            return self._everybody
        limit = math.inf if self.guard is None else self.guard.reuse_limit
        tau = self.tau if self.blocks is None else self.blocks.ages
        if not self.rule.forces:
            return self._nobody if limit == math.inf else tau >= limit
        if self._periodic:
            if self.k % self.laziness.D == 0:
                return self._everybody
            return (tau > self.laziness.D) | (tau >= limit)
        if self.rule.estimate and self.k == 1 and self.laziness.start == "ask-twice":
            return self._everybody
        return tau >= min(self._longest, limit)

    def close(self, uploads: Uploads, news: News | None) -> Array:
        """Close round k with what all workers answered, and what that means for the aggregate; return theta^{k+1}."""
        before, uploaded = self.theta, uploads.uploaded
        if self.agreement is not None and not self.agreement.close(self.k, uploads, self.weights):
            self.tau, self.k = self.tau + 1, self.k + 1  # void: no step, whatever the optimizer remembers
            return before
        if self.blocks is not None:
            self.blocks.close(uploads)
        if self.guard is not None and self.k and not uploads.forget:
            self._watch(uploaded, news, uploads.loss)
        self.tau = self.tau + 1  # a new array: rounds that were reported keep theirs
        if self.k == 0 or (self._periodic and self.k % self.laziness.D == 0):
            # Everybody had to upload; whoever could not, for want of a finite gradient, stays due until it does.
            self.tau[~uploaded] = self._longest + 1
            if self.blocks is not None:
                self.blocks.ages[~uploaded] = self._longest + 1
        if news is not None:
            if news.whole:
                self.aggregate = news.vector
            else:
                add_to(self.aggregate, news.vector)
            self.tau[uploaded] = 1
            if self.iterates is not None:
                self.iterates.keep(before, uploaded)
        if uploads.estimates is not None:
            self._note_smoothness(uploaded, uploads.estimates)
        size = self._step(changed=news is not None)
        if not (size < float("inf") if self.blocks is None else np.isfinite(size).all()):
            raise Diverged(f"the model is no longer finite after round {self.k}: take a smaller eta")
        self.history.append(size)
        self.k += 1
        return self.theta

    def _note_smoothness(self, uploaded: Mask, estimates: FloatArray) -> None:
        """Keep the largest estimate of L_m: of all, or of each worker's most recent ones."""
        if self.recent is None:
            self.smoothness[uploaded] = np.maximum(self.smoothness[uploaded], estimates)
            return
        self.recent[uploaded] = np.roll(self.recent[uploaded], 1, axis=-1)
        self.recent[uploaded, 0] = estimates
        self.smoothness = self.recent.max(-1)

    def _step(self, *, changed: bool) -> Any:
        """Move the model; return what the history keeps of the round. `changed`: whether the aggregate has."""
        if not self._in_moves:
            size = self._size_of(self.aggregate) if changed or not self.history else self.history[-1]
            self.optimizer.step(self.k, self.aggregate)
            return size
        before = self._copy_before(self.aggregate) if self._copy_before else self.theta
        return self._size(self.optimizer.step(self.k, self.aggregate), before)

    def _size(self, theta: Array, before: Array) -> Any:
        """Return ||theta - before||^2, or one per block."""
        if self.blocks is None and theta.shape[-1] > LONG:
            return float(sq_distance(theta, before))
        if isinstance(theta, np.ndarray):
            return self._size_of(theta - before)
        # A new vector every round would cost more than the rest: a copy of the model may become the difference.
        room = before if self._copy_before else self._scratch
        if room is None:
            room = self._scratch = zeros(theta.shape, theta)
        return self._size_of(namespace(theta).sub(theta, before, out=room))

    def _size_of(self, vector: Array) -> Any:
        """Return a vector's squared norm, or one per block."""
        return float(sq(vector)) if self.blocks is None else self.blocks.blocks.squares(vector)

    def _watch(self, uploaded: Mask, news: News | None, loss: float | None) -> None:
        """Show the guard what the round brought, before the aggregate changes."""
        assert self.guard is not None
        innovation = None if news is None else news.vector - self.aggregate if news.whole else for_sums(news.vector)
        squares = np.ones(len(uploaded)) if self.weights is None else np.asarray(self.weights, np.float64) ** 2
        share = 1.0 if uploaded.all() else float(squares[uploaded].sum() / squares.sum())
        if self.blocks is not None:
            seen = self.blocks.watch(innovation, self.aggregate, squares)
            self.guard.close(self.k, seen.share, seen.news, seen.size, loss, silent=seen.silent)
            return
        change = size = 0.0
        if innovation is not None:
            change = float(sq(innovation))
            size = 0.5 * float(sq(self.aggregate) + sq_sum(self.aggregate, innovation))
        self.guard.close(self.k, share, change, size, loss)

    @property
    def _in_moves(self) -> bool:
        """Whether the history holds squared moves, as the paper has it, and not squared norms of the aggregate."""
        return self.optimizer.plain and self.laziness.rho is None

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold: live arrays, to be copied or written before the next round."""
        guard = {} if self.guard is None else {"guard": self.guard.state()}
        return {
            **guard,
            "in_moves": self._in_moves,
            "k": self.k,
            "aggregate": self.aggregate,
            "history": list(self.history),
            "tau": self.tau,
            "smoothness": self.smoothness,
            **({} if self.recent is None else {"recent": self.recent}),
            **({} if self.blocks is None else {"ages": self.blocks.ages}),
            "optimizer": self.optimizer.state(),
            "iterates": None if self.iterates is None else self.iterates.state(),
            **({} if self.agreement is None else {"agreement": self.agreement.state()}),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take a checkpoint's state."""
        state = copies(state, self.theta)
        self.k = int(state["k"])
        self.aggregate = cast(state["aggregate"], self.aggregate)
        same = bool(state.get("in_moves", self.optimizer.plain)) == self._in_moves
        self.history = deque(state["history"] if same else (), maxlen=self.history.maxlen)
        self.tau, self.smoothness, self.recent = state["tau"], state["smoothness"], state.get("recent")
        if self.blocks is not None:
            self.blocks.ages = state["ages"]
        self.optimizer.restore(state["optimizer"])
        if self.iterates is not None:
            self.iterates.restore(state["iterates"])
        if self.agreement is not None:
            self.agreement.restore(state["agreement"])
        if self.guard is not None and "guard" in state:  # a checkpoint without one begins to be watched now
            self.guard.restore(state["guard"])
