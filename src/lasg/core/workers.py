"""The workers that live in this process: what they compute, whether it is news, and how they say it.

All vectors are stacked, `(W, p)`. W is M in a simulation and 1 in a process that is one worker.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lasg import counter
from lasg.core.algorithms import Stages
from lasg.core.arrays import (
    AT_ONCE,
    Array,
    FloatArray,
    IntArray,
    Mask,
    all_finite,
    cast,
    copies,
    finite_rows,
    host,
    pieces,
    stacked,
    zeros,
)
from lasg.core.belief import Listener, Speaker, pick, put
from lasg.core.messages import News, Request, Uploads
from lasg.core.rules import Iterates, Record
from lasg.errors import LasgError


class Oracle(Protocol):
    """What the workers differentiate: their data, their minibatches and the loss."""

    @property
    def weights(self) -> FloatArray:
        """n_m / N for each worker of this process."""
        ...

    def gradients(self, iteration: int, points: Sequence[Array], rows: IntArray | None) -> list[Array]:
        """Return each worker's contribution on its minibatch of `iteration`, at each of the points.

        A point is one model `(p,)` for all, or one per worker: `(n, p)`, or a list of n tensors. The first point is
        where the workers are, the others are probes. `rows` chooses workers; None is all.
        """
        ...


class Workers:
    """W stacked workers: the stages of work, decide and say."""

    def __init__(
        self,
        oracle: Oracle,
        stages: Stages,
        *,
        theta: Array,
        ids: IntArray,
        seed: int,
        D: int,
        listener: Listener | None = None,
        confirmed_later: bool = False,
    ) -> None:
        """Take the workers `ids` of all M.

        What they say is heard by the listener in this process and answered as news; without one it is packed into
        messages. `confirmed_later`: the one worker here learns with the next request whether its upload counts.
        """
        self.oracle, self.stages, self.rule, self.H = oracle, stages, stages.rule, stages.local_steps
        self.ids, self.seed, self.D, self.listener = ids, seed, D, listener
        shape = (len(ids), theta.shape[-1])
        self.speaker = Speaker(stages.belief, stages.codec, len(ids), theta, confirmed_later=confirmed_later)
        self.estimates = {} if stages.estimator is None else stages.estimator.init(len(ids), theta)
        self.memory = {name: zeros(shape, theta) for name in self.rule.remembers}
        self.watched = {} if self.rule.watch is None else self.rule.watch.init(len(ids), theta)
        self.iterates = Iterates(len(ids), theta) if self.rule.probe == "last" else None
        self.snapshot = theta
        self._remembers = bool(self.memory) or self.iterates is not None
        self._nobody = np.zeros(len(ids), np.bool_)
        self._all = np.arange(len(ids))

    @property
    def remembers_rounds(self) -> bool:
        """Whether to compute a round twice is not to compute it once: a stage keeps something of every round.

        An estimate of L_m compares with the last upload's model, which an upload that may be lost replaces.
        """
        stages, rule = self.stages, self.stages.rule
        return bool(stages.estimator or rule.watch or rule.estimate) or stages.belief == "residual"

    def answer(self, request: Request) -> Uploads:
        """Compute what was asked, decide who uploads (worker rules), and say it."""
        if self.rule.periodic and request.k % self.D == 0:
            self.snapshot = request.theta  # whoever computes in this round: all processes have the same
        count = int(np.count_nonzero(request.computes))
        if count == 0:
            return Uploads(self._nobody, news=self._no_news())
        rows = None if count == len(self.ids) else np.flatnonzero(request.computes)
        now, evaluations = self._compute(request, rows, count)
        left, uploaded = self._decide(request, now, rows)
        estimates = self.rule.estimate(now, Record()) if self.rule.estimate else None
        broken = None
        if not (all_finite(now.grad) and _finite(left) and _finite(estimates)):
            broken = self._nobody.copy()
            broken[slice(None) if rows is None else rows] = ~_sound(now)
            uploaded = uploaded & ~broken
        contributions = self._contribute(request.k, now.grad, rows, broken)
        uploads = int(np.count_nonzero(uploaded))
        if uploads == 0:
            return Uploads(uploaded, 0, 0, evaluations, self._no_news(), left=left, broken=broken)
        who = self._all if uploads == len(self.ids) else np.flatnonzero(uploaded)
        places = _places(who, rows, uploads, count)
        news, messages, bits = self._say(request.k, contributions, who, places)
        if self._remembers:
            self._remember(now, uploaded, who, places)
        if estimates is not None:
            estimates = estimates[places]
        return Uploads(uploaded, uploads, bits, evaluations, news, messages, (), left, estimates, broken)

    # -- work -------------------------------------------------------------------------------------------------

    def _compute(self, request: Request, rows: IntArray | None, count: int) -> tuple[Record, int]:
        """Return the record of now, a row per worker that computes, and the gradient evaluations it took."""
        theta = request.theta
        moved = None
        points = [theta]
        if request.points > 1:
            points.append(self.snapshot if self.iterates is None else self.iterates.rows(rows))
        if self.rule.estimate:
            assert self.iterates is not None
            moved = self.iterates.moved(theta, rows) if request.k else np.zeros(count)
        gradients = self._work(request, points, rows)
        probe = gradients[-1] if self.rule.probe else None
        now = Record(theta=theta, grad=gradients[0], probe=probe, moved=moved)
        return now, count * len(points) * self.H

    def _work(self, request: Request, points: Sequence[Array], rows: IntArray | None) -> list[Array]:
        """One round of local work from each starting point: a gradient, or H steps as a pseudo-gradient.

        The pseudo-gradient is (n_m / N) (theta - theta_m) / eta: the server's step on its sum IS the weighted
        average of the local models. It equals the sum of the contributions on the way, and is computed as that:
        no digits cancel, and a step of 0 divides nothing. With H = 1 it is the gradient.
        """
        total = self.oracle.gradients(request.k * self.H, points, rows)
        if self.H > 1:
            weights = self.oracle.weights if rows is None else self.oracle.weights[rows]
            step = request.eta / cast(weights[:, None], points[0])
        for h in range(1, self.H):
            local = [stacked(start) - step * so_far for start, so_far in zip(points, total, strict=True)]
            gradients = self.oracle.gradients(request.k * self.H + h, local, rows)
            total = [so_far + grad for so_far, grad in zip(total, gradients, strict=True)]
        return total

    def _contribute(self, k: int, grad: Array, rows: IntArray | None, broken: Mask | None) -> Array:
        """Return the contributions of those that computed: what the estimator makes of their gradients."""
        estimator = self.stages.estimator
        if estimator is None and self.stages.belief != "residual":
            return grad
        who: Any = slice(None) if rows is None else rows
        sound: Any = slice(None)
        if broken is not None:  # who has no finite gradient remembers nothing of this round
            who = np.arange(len(self.ids))[who]
            sound = np.flatnonzero(~broken[who])
            who, grad = who[sound], zeros(grad.shape, grad) + grad
        if estimator is not None:
            contributions, state = estimator.update(k, grad[sound], pick(self.estimates, who))
            put(self.estimates, who, state)
            if broken is None:
                grad = contributions
            else:
                grad[sound] = contributions
        self.speaker.add(grad[sound], who)
        return grad

    # -- decide -----------------------------------------------------------------------------------------------

    def _decide(self, request: Request, now: Record, rows: IntArray | None) -> tuple[FloatArray | None, Mask]:
        """Return the rule's left side, where the workers evaluate it, and who is to upload."""
        must = request.must_upload
        if self.rule.watch is not None:
            now = now._replace(state=self._watch(now, rows))
        if self.rule.left is None or self.rule.where == "server" or not request.by_rule:
            return None, must if rows is None else must & request.computes
        left = self._left(now, rows)
        if left.shape != (len(now.grad),):
            expected, came = f"one number per worker, {(len(now.grad),)}", left.shape
            raise LasgError(f"rule {self.rule.name}: its left side must be {expected}, got an array {came}")
        if rows is None:
            return left, (left > request.threshold) | must
        spread = np.full(len(self.ids), np.nan)
        spread[rows] = left
        return spread, ((spread > request.threshold) | must) & request.computes

    def _watch(self, now: Record, rows: IntArray | None) -> dict[str, Array]:
        """Let the rule see the round of those that computed, whether they upload or not; return what it knows."""
        assert self.rule.watch is not None
        who: Any = slice(None) if rows is None else rows
        state = self.rule.watch.update(now, pick(self.watched, who))
        # Who has no finite gradient remembers nothing of this round.
        sound = np.flatnonzero(_sound(now))
        put(self.watched, np.arange(len(self.ids))[who][sound], pick(state, sound))
        return state

    def _evaluate(self, now: Record, last: Record) -> FloatArray:
        """Return a rule's numbers; refuse what is no array, such as the pair that torch's max(-1) gives."""
        assert self.rule.left is not None
        left = self.rule.left(now, last)
        if not hasattr(left, "shape"):
            kind = type(left).__name__
            raise LasgError(f"rule {self.rule.name}: its left side must be an array, one number per worker, got {kind}")
        return host(left)

    def _left(self, now: Record, rows: IntArray | None) -> FloatArray:
        """Evaluate the rule, of long vectors piece by piece."""
        count, p = now.grad.shape
        if rows is None and p * count <= AT_ONCE:
            return self._evaluate(now, Record(**self.memory))
        left = []
        for some in pieces(count, p):
            which: Any = some if rows is None else rows[some]
            mine = now._replace(grad=now.grad[some], probe=None if now.probe is None else now.probe[some])
            if now.state:
                mine = mine._replace(state=pick(now.state, some))
            left.append(self._evaluate(mine, Record(**{name: kept[which] for name, kept in self.memory.items()})))
        return np.concatenate(left)

    # -- say --------------------------------------------------------------------------------------------------

    def _say(
        self, k: int, contributions: Array, who: IntArray, places: IntArray | slice
    ) -> tuple[News | None, tuple[bytes, ...], int]:
        """Say the rows of the uploaders, which stand at `places`; return the news or the messages, and the bits."""
        p, listener, speaker = contributions.shape[-1], self.listener, self.speaker
        if listener is not None and len(who) * p <= AT_ONCE and not listener.sums_rows:
            senders: Any = slice(None) if len(who) == len(self.ids) else who
            said = speaker.to_say(contributions[places], senders)
            decoded, bits = speaker.say(said, senders, functools.partial(self._noise, k, senders, p))
            changed = listener.hear(decoded, senders)
            return listener.news(changed), (), bits
        changed = None if listener is None or listener.sums_rows else listener.nothing()
        standing = np.arange(len(contributions))[places]
        messages: list[bytes] = []
        bits = 0
        for some in pieces(len(who), p):
            mine, noise = _view(who[some]), functools.partial(self._noise, k, who[some], p)
            said = speaker.to_say(contributions[_view(standing[some])], mine)
            if listener is None:
                messages += speaker.pack(k, said, mine, noise)
                continue
            decoded, size = speaker.say(said, mine, noise)
            listener.hear_long(changed, decoded, who[some])
            bits += size
        if listener is not None:
            return listener.news(changed), (), bits
        if not all(messages):
            raise LasgError("the codec made an empty message, which cannot be told from silence")
        return None, tuple(messages), 8 * sum(map(len, messages))

    def _no_news(self) -> News | None:
        """Return what it means that nobody here uploads: nothing, or where news are the whole, the same as before."""
        return self.listener.news(None) if self.listener is not None and self.listener.whole else None

    def _noise(self, k: int, senders: IntArray | slice, p: int) -> npt.NDArray[np.float64]:
        """Return uniform numbers for each sender and entry, a function of (seed, worker, round)."""
        key = counter.keys(self.seed, counter.QUANTISER, self.ids[senders], k)[0]
        return counter.uniforms(key, p)

    def _remember(self, now: Record, uploaded: Mask, who: IntArray, places: IntArray | slice) -> None:
        """Keep of the uploaders what the rule compares with later."""
        if self.memory:
            rows = np.arange(len(now.grad))[places]
            for name, kept in self.memory.items():
                for some in pieces(len(who), kept.shape[-1]):
                    kept[who[some]] = getattr(now, name)[rows[some]]
        if self.iterates is not None:
            self.iterates.keep(now.theta, uploaded)

    # -- what survives the process ------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold: live arrays, to be copied or written before the next round."""
        return {
            "rule": {
                "memory": dict(self.memory),
                "snapshot": self.snapshot,
                "iterates": None if self.iterates is None else self.iterates.state(),
                "watched": self.watched,
            },
            "estimator": self.estimates,
            "speaker": self.speaker.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take a checkpoint's state."""
        rule = copies(state["rule"], self.snapshot)
        self.memory, self.snapshot, self.watched = dict(rule["memory"]), rule["snapshot"], rule["watched"]
        if self.iterates is not None:
            self.iterates.restore(rule["iterates"])
        self.estimates = copies(state["estimator"], self.snapshot)
        self.speaker.restore(state["speaker"])


def _places(who: IntArray, rows: IntArray | None, uploads: int, count: int) -> IntArray | slice:
    """Return where, among the rows of those that computed, the uploaders stand."""
    if uploads == count:
        return slice(None)
    return who if rows is None else np.searchsorted(rows, who)


def _view(rows: IntArray) -> IntArray | slice:
    """Return a slice for a single row, since a list of rows would be copied."""
    return slice(int(rows[0]), int(rows[0]) + 1) if len(rows) == 1 else rows


def _finite(numbers: FloatArray | None) -> bool:
    return numbers is None or all_finite(numbers)


def _sound(now: Record) -> Mask:
    """Tell of each worker that computed whether its gradients are finite."""
    sound = finite_rows(now.grad)
    if now.probe is not None and now.probe is not now.grad:
        sound = sound & finite_rows(now.probe)
    return sound
