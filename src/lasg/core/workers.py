"""The workers that live in this process: what they remember, and what they answer to an opened round.

All vectors are stacked, `(W, p)`. W is M in a simulation and 1 in a process that is one worker.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from lasg import counter
from lasg.core.arrays import (
    Array,
    FloatArray,
    IntArray,
    Mask,
    all_finite,
    cast,
    copies,
    finite_rows,
    host,
    stacked,
    zeros,
)
from lasg.core.codecs import Codec, transmit
from lasg.core.contributions import AT_ONCE, Contributions, pieces
from lasg.core.iterates import Iterates
from lasg.core.rules import Record, Rule
from lasg.errors import LasgError

if TYPE_CHECKING:
    from lasg.core.server import Opened


class Oracle(Protocol):
    """What the workers differentiate: their data, their minibatches and the loss."""

    @property
    def weights(self) -> FloatArray:
        """n_m / N for each worker of this process."""
        ...

    def gradients(self, iteration: int, points: Sequence[Array], rows: IntArray | None) -> list[Array]:
        """Return each worker's contribution on its minibatch of `iteration`, at each of the points.

        A point is one model `(p,)` for all, or one a worker: `(n, p)`, or a list of n tensors. The first point is
        where the workers are, the others are probes. `rows` chooses workers; None is all.
        """
        ...


class Reply(NamedTuple):
    """What the workers of this process answer."""

    uploaded: Mask
    """Who uploads, among this process's workers."""
    innovation: Array | None
    """The sum over the uploads of (decoded contribution - the one before it), in float64; None if none."""
    uploads: int
    """How many upload."""
    bits: int
    """The uploads' bits."""
    gradients: int
    """Gradient evaluations spent."""
    left: FloatArray | None
    """The rule's left side, where the workers evaluated it."""
    estimates: FloatArray | None
    """Estimates of L_m, one an upload."""
    broken: Mask | None = None
    """Whose gradient was NaN or infinite: they are silent, whatever the rule says. None: nobody's."""
    messages: tuple[bytes, ...] = ()
    """The encoded contributions, one an upload, of workers that give them; they leave the innovation to others."""
    total: Array | None = None
    """The sum of all last contributions, old ones too, of workers that give it in every round: no innovation then."""
    loss: float | None = None
    """The mean loss of the workers' minibatches, where the engine knows it and the guard wants it."""


Gives = Literal["innovation", "messages", "total"]
"""What workers answer with."""


class Workers:
    """W stacked workers under one rule and codec."""

    def __init__(
        self,
        oracle: Oracle,
        rule: Rule,
        codec: Codec,
        *,
        theta: Array,
        ids: IntArray,
        seed: int,
        D: int,
        local_steps: int = 1,
        gives: Gives = "innovation",
    ) -> None:
        """Take the workers `ids` of all M.

        Where they give messages, whoever receives them turns them into an innovation: then `Contributions` are kept
        there, and not here. Totals are for rules under which everybody uploads in every round: an innovation would
        subtract what the server then adds again.
        """
        self.oracle, self.rule, self.codec = oracle, rule, codec
        self.ids, self.seed, self.D, self.H, self.gives = ids, seed, D, local_steps, gives
        shape = (len(ids), theta.shape[-1])
        self.contributions = None if gives == "messages" else Contributions(len(ids), theta)
        self.memory = {name: zeros(shape, theta) for name in rule.remembers}
        self.iterates = Iterates(len(ids), theta) if rule.probe == "last" else None
        self.snapshot = theta
        self._nobody = np.zeros(len(ids), np.bool_)
        self._everybody = np.ones(len(ids), np.bool_)

    @property
    def contributed(self) -> Array:
        """What each last contributed, `(W, p)`, of workers that do not give messages."""
        assert self.contributions is not None
        return self.contributions.rows

    def respond(self, opened: Opened) -> Reply:
        """Compute what was asked, decide who uploads (worker rules), and encode it."""
        rows = None if opened.asked is None or opened.asked.all() else np.flatnonzero(opened.asked)
        if rows is not None and len(rows) == 0:
            return Reply(self._nobody, None, 0, 0, 0, None, None)
        if self.rule.periodic and opened.k % self.D == 0:
            self.snapshot = opened.theta
        now, evaluations = self._compute(opened, rows)
        estimates = self.rule.estimate(now, Record()) if self.rule.estimate else None
        left, uploaded = self._decide(opened, now)
        broken = None
        if not (all_finite(now.grad) and _finite(left) and _finite(estimates)):
            sound = _sound(now)
            broken = self._nobody.copy()
            broken[slice(None) if rows is None else rows] = ~sound
            uploaded, estimates = uploaded & ~broken, _pick(estimates, sound)
            if rows is not None:  # only those that were asked have a row, and all that have one upload
                now = now._replace(grad=now.grad[sound], probe=_pick(now.probe, sound), moved=_pick(now.moved, sound))
        uploads = int(np.count_nonzero(uploaded))
        if uploads == 0:
            return Reply(uploaded, None, 0, 0, evaluations, left, None, broken, total=self._total())
        innovation, bits, messages = self._upload(opened.k, now.grad, uploaded, uploads)
        self._remember(now, uploaded)
        total = self._total()
        return Reply(uploaded, innovation, uploads, bits, evaluations, left, estimates, broken, messages, total)

    def _total(self) -> Array | None:
        """Return the sum of all last contributions, where it is given."""
        return self.contributions.total() if self.contributions and self.gives == "total" else None

    def _decide(self, opened: Opened, now: Record) -> tuple[FloatArray | None, Mask]:
        """Return the rule's left side, where the workers evaluate it, and who is to upload."""
        if opened.asked is not None:
            return None, opened.asked
        if opened.due is True or self.rule.left is None:
            return None, self._everybody
        left = self._left(now)
        if left.shape != self._everybody.shape:
            expected, came = f"one number per worker, {self._everybody.shape}", left.shape
            raise LasgError(f"rule {self.rule.name}: its left side must be {expected}, got an array {came}")
        return left, (left > opened.threshold) | opened.due

    def _evaluated(self, now: Record, last: Record) -> FloatArray:
        """Return a rule's numbers; refuse what is no array, such as the pair that torch's max(-1) gives."""
        assert self.rule.left is not None
        found = self.rule.left(now, last)
        if not hasattr(found, "shape"):
            kind = type(found).__name__
            raise LasgError(f"rule {self.rule.name}: its left side must be an array, one number per worker, got {kind}")
        return host(found)

    def _left(self, now: Record) -> FloatArray:
        """Evaluate the rule, of long vectors piece by piece."""
        if now.grad.shape[-1] * len(self.ids) <= AT_ONCE:
            return self._evaluated(now, Record(**self.memory))
        found = []
        for some in pieces(len(self.ids), now.grad.shape[-1]):
            mine = now._replace(grad=now.grad[some], probe=None if now.probe is None else now.probe[some])
            last = Record(**{name: kept[some] for name, kept in self.memory.items()})
            found.append(self._evaluated(mine, last))
        return np.concatenate(found)

    def _compute(self, opened: Opened, rows: IntArray | None) -> tuple[Record, int]:
        """Return the record of now, and the gradient evaluations it took."""
        theta, count = opened.theta, len(self.ids) if rows is None else len(rows)
        moved = None
        points = [theta]
        if opened.points > 1:
            points.append(self.snapshot if self.iterates is None else self.iterates.rows(rows))
        if self.rule.estimate:
            assert self.iterates is not None
            moved = self.iterates.moved(theta, rows) if opened.k else np.zeros(count)
        found = self._work(opened, points, rows)
        probe = found[-1] if self.rule.probe else None
        return Record(theta=theta, grad=found[0], probe=probe, moved=moved), count * len(points) * self.H

    def _work(self, opened: Opened, points: Sequence[Array], rows: IntArray | None) -> list[Array]:
        """One round of local work from each starting point: a gradient, or H steps as a pseudo-gradient.

        The pseudo-gradient is (n_m / N) (theta - theta_m) / eta: the server's step on its sum IS the weighted
        average of the local models. It equals the sum of the contributions on the way, and is computed as that:
        no digits cancel, and a step of 0 divides nothing. With H = 1 it is the gradient.
        """
        total = self.oracle.gradients(opened.k * self.H, points, rows)
        if self.H > 1:
            weights = self.oracle.weights if rows is None else self.oracle.weights[rows]
            step = opened.eta / cast(weights[:, None], points[0])
        for h in range(1, self.H):
            local = [stacked(start) - step * so_far for start, so_far in zip(points, total, strict=True)]
            found = self.oracle.gradients(opened.k * self.H + h, local, rows)
            total = [so_far + grad for so_far, grad in zip(total, found, strict=True)]
        return total

    def _upload(self, k: int, grad: Array, uploaded: Mask, uploads: int) -> tuple[Array | None, int, tuple[bytes, ...]]:
        """Send the uploaders' contributions; return the sum of their innovations, the bits, and what was packed.

        `grad` has a row for every worker, or, under a server rule, for those that were asked: all of them upload.
        """
        p = grad.shape[-1]
        who = np.flatnonzero(uploaded)
        places: IntArray = np.arange(uploads) if uploads == len(grad) else who
        if self.contributions is None:
            messages: list[bytes] = []
            for some in pieces(uploads, p):
                rows = grad[_view(places[some])]
                messages += self.codec.encode(rows, functools.partial(self._noise, k, who[some], p))
            if not all(messages):
                raise LasgError("the codec made an empty message, which cannot be told from silence")
            return None, 8 * sum(map(len, messages)), tuple(messages)
        if uploads * p <= AT_ONCE and self.gives == "innovation":
            senders: Any = slice(None) if uploads == len(self.ids) else who
            sent = grad if uploads == len(grad) else grad[senders]
            decoded, bits = transmit(self.codec, sent, functools.partial(self._noise, k, senders, p))
            return self.contributions.replace(decoded, senders), bits, ()
        innovation, bits = self.contributions.nothing() if self.gives == "innovation" else None, 0
        for some in pieces(uploads, p):
            mine = who[some]
            decoded, size = transmit(self.codec, grad[_view(places[some])], functools.partial(self._noise, k, mine, p))
            if innovation is None:
                self.contributions.rows[_view(mine)] = decoded
            else:
                self.contributions.add(innovation, decoded, mine)
            bits += size
        return innovation, bits, ()

    def _noise(self, k: int, senders: IntArray | slice, p: int) -> npt.NDArray[np.float64]:
        """Return uniform numbers for each sender and entry, a function of (seed, worker, round)."""
        key = counter.keys(self.seed, counter.QUANTISER, self.ids[senders], k)[0]
        return counter.uniforms(key, p)

    def _remember(self, now: Record, uploaded: Mask) -> None:
        who = np.flatnonzero(uploaded) if self.memory else ()
        for name, kept in self.memory.items():
            for some in pieces(len(who), kept.shape[-1]):
                kept[who[some]] = getattr(now, name)[who[some]]
        if self.iterates is not None:
            self.iterates.keep(now.theta, uploaded)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold: live arrays, to be copied or written before the next round."""
        return {
            "contributed": None if self.contributions is None else self.contributed,
            "memory": dict(self.memory),
            "snapshot": self.snapshot,
            "iterates": None if self.iterates is None else self.iterates.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take a checkpoint's state."""
        state = copies(state, self.snapshot)
        if self.contributions is not None:
            self.contributions.rows = state["contributed"]
        self.memory, self.snapshot = dict(state["memory"]), state["snapshot"]
        if self.iterates is not None:
            self.iterates.restore(state["iterates"])


def _view(rows: IntArray) -> IntArray | slice:
    """Return a slice for a single row, since a list of rows would be copied."""
    return slice(int(rows[0]), int(rows[0]) + 1) if len(rows) == 1 else rows


def _finite(numbers: FloatArray | None) -> bool:
    return numbers is None or all_finite(numbers)


def _sound(now: Record) -> Mask:
    """Tell of each worker that computed whether its gradients are finite."""
    found = finite_rows(now.grad)
    if now.probe is not None and now.probe is not now.grad:
        found = found & finite_rows(now.probe)
    return found


def _pick(field: Array, rows: Mask) -> Array:
    return None if field is None else field[rows]
