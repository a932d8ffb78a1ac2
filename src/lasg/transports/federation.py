"""Rounds of a server and of nodes that come and go. An answer that never comes is a worker that stayed silent.

The server believes a node only what it says of the round that is open, and checks every array before it uses it. What
is refused changes nothing, and counts as silence. Each worker's last contribution is kept here: an upload replaces it,
and so it does with the buffers that came with it. A worker that is silent has those of its last upload.
"""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from lasg.core.arrays import Array, FloatArray, IntArray, checksum, copies, host, zeros
from lasg.core.codecs import Codec, Dense
from lasg.core.optimizers import Optimizer
from lasg.core.rules import Rule
from lasg.core.server import Laziness, Opened
from lasg.core.training import Rounds
from lasg.core.workers import Reply
from lasg.errors import LasgError
from lasg.transports.answers import Answer, Checker, Unfit, failure, whole
from lasg.transports.failures import FAILURES, Failures
from lasg.transports.model_deltas import SUM, Held, Relay, aggregate, length, sums
from lasg.transports.nodes import Parcel, folded, settings

if TYPE_CHECKING:
    from lasg.problems.buffers import Buffers

DEADLINE = 60.0
"""Seconds that a round waits for answers."""
STRIKES = 3
"""Refused answers after which a node is excluded."""
Away = Literal["keep", "drop", "stop"]


class Carrier(Protocol):
    """What brings parcels to nodes, and answers back."""

    @property
    def pause(self) -> float:
        """Seconds between two looks for answers."""
        ...

    def nodes(self) -> Iterable[int]:
        """Return the nodes that can be reached now."""
        ...

    def push(self, node: int, parcel: Parcel) -> str:
        """Send a parcel to a node; return a name for its answer."""
        ...

    def pull(self, names: Sequence[str]) -> Iterable[tuple[str, Parcel | None]]:
        """Return the answers that have come, each once; None is one that was lost on its way.

        A node whose own code raised an error answers with a parcel of kind `FAILED` that says so.
        """
        ...


class Refused(NamedTuple):
    """An answer that was not used."""

    round: int
    node: int
    key: str
    reason: str


class Failed(NamedTuple):
    """A node whose own code raised an error: to the round it is silent."""

    round: int
    node: int
    key: str
    reason: str
    times: int
    """In a row. Reported at 1, 2, 4, 8 ..., so that a node that fails for ever fills no log."""


class _Told(NamedTuple):
    """What a node has, if it answers: the model of a round, and the rounds of the messages that it holds."""

    at: int
    has: dict[int, int]
    whole: bool
    """Whether it was told everything that one without any memory needs."""


class Federated(Rounds):
    """An iterator of rounds over the nodes that a carrier reaches."""

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        carrier: Carrier,
        keys: Sequence[str],
        rule: Rule,
        laziness: Laziness,
        codec: Codec | None = None,
        local_steps: int = 1,
        seed: int = 0,
        deadline: float = DEADLINE,
        away: Away = "keep",
        away_after: int | None = None,
        norm_bound: float = math.inf,
        strikes: int = STRIKES,
        relay: bool = True,
        measure: Callable[[Array], tuple[float, float | None]] | None = None,
        buffers: Buffers | None = None,
        report: Callable[[Refused | Failed], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        **options: Any,
    ) -> None:
        """Take the workers' keys, and what `Simulation` takes besides: a node is worker m if it says key m.

        A worker that has not answered for `away_after` rounds (D by default) is `away`: its contribution is kept or
        dropped, or the run stops. With `relay` a node that has an older model is told what changed it, where that is
        shorter than the model; nodes then see the quantised contributions of the others. `buffers` has a place for
        every worker's buffers, which are kept there as they come.
        """
        if len(set(keys)) != len(keys) or len(keys) != laziness.workers:
            raise LasgError(
                f"a federation of {laziness.workers} workers needs as many different keys, got {list(keys)}"
            )
        if away not in ("keep", "drop", "stop"):
            raise LasgError(f"away must be keep, drop or stop, got {away!r}")
        codec, theta, M = codec or Dense(), optimizer.theta, len(keys)
        self.elsewhere = _Elsewhere(M, measure)
        super().__init__(
            self.elsewhere,
            optimizer,
            rule=rule,
            laziness=laziness,
            codec=codec,
            local_steps=local_steps,
            seed=seed,
            ids=np.arange(0),
            **options,
        )
        self.carrier, self.keys, self.codec = carrier, list(keys), codec
        self.deadline, self.away, self.strikes_allowed = deadline, away, strikes
        self.away_after = laziness.D if away_after is None else away_after
        self.report, self.clock, self.sleep = report, clock, sleep
        self.buffers = buffers
        self.checker = Checker(codec, theta, local_steps=local_steps, norm_bound=norm_bound, buffers=buffers)
        self.settings = settings(rule, codec, laziness.D, local_steps, seed, theta, buffers)
        self.run = uuid.uuid4().hex
        self.life = uuid.uuid4().hex
        """This server, as long as it lives: after a restart rounds may come again that nodes have seen."""
        self.rows = zeros((M, theta.shape[-1]), theta)
        self.last: IntArray = np.full(M, -1)
        """The round of each worker's last upload."""
        self.unheard: IntArray = np.zeros(M, np.int64)
        """Rounds since each worker answered."""
        self.samples: IntArray = np.zeros(M, np.int64)
        self.relay = Relay(theta) if relay and optimizer.plain else None
        self.refused: list[Refused] = []
        """By this server; `refusals` counts those of its lives before, too."""
        self.refusals = 0
        self.bytes_down = self.bytes_up = 0
        self.node: dict[int, int] = {}
        """Which node is which worker."""
        self.strikes: dict[int, int] = {}
        self.failures = Failures()
        self.known: dict[int, _Told] = {}
        self.spare: dict[int, int] = {}
        """Bytes that each node has saved, or would have if it held all messages: some steps may cost as much."""
        self._greeted: dict[str, int] = {}
        self._seen: set[int] = set()
        self._greet_at: dict[int, float] = {}
        """When a node is greeted again whose greeting failed."""
        self._sums = sums(codec, theta)
        self._messaged: set[int] = set()
        self._checksum = 0

    # -- who is there -----------------------------------------------------------------------------------------

    def gather(self, seconds: float) -> None:
        """Wait until every worker has said how much data it has; after so many seconds say who is missing.

        A server that goes on from a checkpoint knows that already, and needs somebody to begin with.
        """
        end = self.clock() + seconds
        while True:
            self._meet()
            missing = [key for key, samples in zip(self.keys, self.samples, strict=True) if not samples]
            if self.node and not missing:
                return
            there = set(self.carrier.nodes())
            if len(there) >= len(self.keys) and self.failures.for_good(there - set(self.node.values())):
                self._give_up()
            if self.clock() > end:
                reasons = [one.reason for one in self.refused[-3:]] + [self.failures.said({})]
                who = ", ".join(missing or self.keys)
                raise LasgError("; ".join(filter(None, [f"no node came for worker {who} in {seconds:g} s", *reasons])))
            self.sleep(self.carrier.pause)

    def _give_up(self) -> NoReturn:
        """End a run that nobody can do: say what the nodes say."""
        names = {node: f"worker {self.keys[m]}" for m, node in self.node.items()}
        raise LasgError(
            f"every node failed {FAILURES} times in a row, so the run ends: {self.failures.said(names)}. "
            "Look at the model and the data; resume=true goes on from the last checkpoint, if there is one"
        )

    def _meet(self) -> list[int]:
        """Greet nodes that are new, forget those that left; return the workers that have come."""
        there = set(self.carrier.nodes())
        for m in [m for m, node in self.node.items() if node not in there]:
            del self.node[m]
            self.known.pop(m, None)
        self._seen &= there
        for node in sorted(there - self._seen):
            if self.clock() < self._greet_at.get(node, -math.inf):
                continue
            self._seen.add(node)
            if self.strikes.get(node, 0) >= self.strikes_allowed:
                continue
            self._greeted[self._push(node, Parcel({"kind": "hello", "settings": json.dumps(self.settings)}, {}))] = node
        come = []
        for name, parcel in self.carrier.pull(list(self._greeted)):
            node = self._greeted.pop(name)
            if self._failed(node, "", parcel):
                self._seen.discard(node)
                self._greet_at[node] = self.clock() + self.failures.pause(node)
                continue
            assert parcel is not None
            self.bytes_up += parcel.size
            self.failures.clear(node)
            try:
                come.append(self._met(node, parcel, there))
            except Unfit as error:
                self._refuse(node, "", str(error))
        return come

    def _met(self, node: int, parcel: Parcel, there: set[int]) -> int:
        """Take a node as the worker whose key it says."""
        key, samples, differs = (parcel.head.get(name) for name in ("key", "samples", "differs"))
        if parcel.head.get("kind") != "here" or not isinstance(key, str) or not whole(samples) or samples < 1:
            raise Unfit("it did not say who it is")
        if key not in self.keys:
            raise Unfit(f"nobody knows its key {key[:80]!r}")
        if differs:
            raise Unfit(f"{key} was set up otherwise: {str(differs)[:500]}")
        m = self.keys.index(key)
        if self.node.get(m, node) != node and self.node[m] in there:
            raise Unfit(f"another node is {key}")
        if self.samples[m] and self.samples[m] != samples:
            raise Unfit(f"{key} had {self.samples[m]} samples, and now has {samples}")
        self.node[m], self.samples[m] = node, samples
        self.server.weights = self.samples / self.samples.sum()
        self.known.pop(m, None)
        return m

    def _failed(self, node: int, key: str, parcel: Parcel | None) -> bool:
        """Tell whether an answer is none: it was lost, or the node says that it failed, which is then reported."""
        reason = None if parcel is None else failure(parcel)
        if parcel is None or reason is None:
            return parcel is None
        self.bytes_up += parcel.size
        times = self.failures.note(node, reason)
        if self.report is not None and times & (times - 1) == 0:
            self.report(Failed(self.server.k, node, key, reason, times))
        return True

    # -- a round ----------------------------------------------------------------------------------------------

    def respond(self, opened: Opened) -> Reply:
        """Ask the nodes, and take what they answer until all have or the deadline is over."""
        dropped = self._leave()
        wanted = set(range(len(self.keys))) if opened.asked is None else set(np.flatnonzero(opened.asked).tolist())
        answers: dict[int, Answer] = {}
        pending: dict[str, tuple[int, _Told]] = {}
        self._messaged, self._checksum = set(), checksum(opened.theta)
        end = self.clock() + self.deadline
        self._meet()
        for m in sorted(wanted & self.node.keys()):
            self._ask(m, opened, pending)
        # Where nobody is there, a round waits for somebody: it would be over at once, and the next too.
        while (pending or (wanted and not self._messaged)) and self.clock() < end:
            came = list(self.carrier.pull(list(pending)))
            for name, parcel in came:
                m, told = pending.pop(name)
                self._take(m, told, parcel, opened, pending, answers)
            for m in self._meet():  # somebody is back
                if m in wanted and m not in answers and m not in {asked for asked, _ in pending.values()}:
                    self._ask(m, opened, pending)
            if not came:
                self.sleep(self.carrier.pause)
        if not answers and self.failures.for_good(self.node.values()):
            self._give_up()
        self.unheard += 1
        self.unheard[list(answers)] = 0
        return self._reply(opened.k, answers, dropped)

    def _leave(self) -> list[int]:
        """Do what was chosen with workers that are away; return whose contribution is dropped."""
        gone = [m for m in np.flatnonzero(self.unheard >= self.away_after).tolist() if self.last[m] >= 0]
        if not gone or self.away == "keep":
            return []
        if self.away == "stop":
            names = ", ".join(self.keys[m] for m in gone)
            raise LasgError(f"worker {names} has not answered in {self.away_after} rounds")
        for m in gone:
            self.rows[m] = 0
            self.last[m] = -1
        return gone

    def _ask(self, m: int, opened: Opened, pending: dict[str, tuple[int, _Told]], whole: bool = False) -> None:
        """Ask a worker for its round: with the model, or with what changed the one that it has."""
        k, known = opened.k, None if whole else self.known.get(m)
        steps = None
        if self.relay is not None and known is not None:
            spare = self.spare.get(m, 0)
            steps = self.relay.path(known.at, known.has, k, spare)
            saved = self.relay.lost(known.at, k) if steps is None else self.relay.limit - length(steps)
            self.spare[m] = spare + saved
        head: dict[str, Any] = {
            "kind": "work",
            "run": self.run,
            "life": self.life,
            "round": k,
            "worker": m,
            "workers": len(self.keys),
            "eta": float(opened.eta),
            "threshold": float(opened.threshold),
            "points": opened.points,
            "due": bool(opened.due if isinstance(opened.due, bool) else opened.due[m]),
            "based": int(self.last[m]),
            "weight": float(self.samples[m] / self.samples.sum()),
            "checksum": self._checksum,
        }
        has = {} if known is None else dict(known.has)
        if steps is None:
            arrays: dict[str, npt.NDArray[Any]] = {"model": host(opened.theta)}
            if known is None and self.buffers is not None and self.last[m] >= 0:
                head["buffers"], arrays["buffers"] = self.buffers.pack(m)
        else:
            assert known is not None
            head["basis"] = known.at
            more, arrays = folded(steps)
            head |= more
            for step in steps:
                has |= {unit: j for unit, (j, _) in step.came.items()}
        self._messaged.add(m)
        pending[self._push(self.node[m], Parcel(head, arrays))] = (m, _Told(k, has, known is None))

    def _push(self, node: int, parcel: Parcel) -> str:
        self.bytes_down += parcel.size
        return self.carrier.push(node, parcel)

    def _take(
        self,
        m: int,
        told: _Told,
        parcel: Parcel | None,
        opened: Opened,
        pending: dict[str, tuple[int, _Told]],
        answers: dict[int, Answer],
    ) -> None:
        """Take an answer, or refuse it."""
        if m not in self.node or self._failed(self.node[m], self.keys[m], parcel):
            self.known.pop(m, None)
            return
        assert parcel is not None
        self.bytes_up += parcel.size
        try:
            must = opened.asked is not None or bool(np.broadcast_to(opened.due, len(self.keys))[m])
            found = self.checker.check(parcel, self.run, opened.k, self.keys[m], must_upload=must)
            if found.kind == "lost" and told.whole:
                raise Unfit("it did not understand the model")
        except Unfit as error:
            self._refuse(self.node[m], self.keys[m], str(error))
            self.known.pop(m, None)
            return
        if found.kind == "lost":
            self.known.pop(m, None)
            self._ask(m, opened, pending, whole=True)
        elif found.kind != "stale":
            self.failures.clear(self.node[m])
            self.known[m] = told
            answers[m] = found

    def _refuse(self, node: int, key: str, reason: str) -> None:
        """Count a refused answer; exclude a node that has too many."""
        self.strikes[node] = self.strikes.get(node, 0) + 1
        found = [Refused(self.server.k, node, key, reason)]
        if self.strikes[node] >= self.strikes_allowed:
            for m in [m for m, other in self.node.items() if other == node]:
                del self.node[m]
                self.known.pop(m, None)
            found.append(Refused(self.server.k, node, key, f"excluded after {self.strikes[node]} refused answers"))
        self.refusals += 1
        for one in found:
            self.refused.append(one)
            if self.report is not None:
                self.report(one)

    def _reply(self, k: int, answers: dict[int, Answer], dropped: Sequence[int]) -> Reply:
        """Hold what was uploaded; return what all workers answered."""
        M = len(self.keys)
        uploads = {m: answers[m] for m in sorted(answers) if answers[m].kind == "upload"}
        uploaded, broken = np.zeros(M, np.bool_), np.zeros(M, np.bool_)
        uploaded[list(uploads)] = True
        broken[[m for m, answer in answers.items() if answer.kind == "broken"]] = True
        for m, answer in uploads.items():
            self.rows[m], self.last[m] = answer.decoded, k
            if self.buffers is not None and answer.buffers is not None:
                self.buffers.keep(m, answer.buffers)
        total = aggregate(self.rows) if uploads or dropped else None
        if self.relay is not None:
            came = dict.fromkeys(dropped, b"") | {m: answer.message for m, answer in uploads.items()}
            if self._sums:
                came = {} if total is None else {SUM: Dense().encode(total[None])[0]}
            self.relay.note(k, came)
        left = np.array([answers[m].left if m in answers else math.nan for m in range(M)])
        return Reply(
            uploaded,
            None,
            len(uploads),
            8 * sum(len(answer.message) for answer in uploads.values()),
            sum(answer.evaluations for answer in answers.values()),
            None if np.isnan(left).all() else left,
            np.array([answer.estimate for answer in uploads.values()]) if self.server.rule.estimate else None,
            broken if broken.any() else None,
            total=total,
        )

    def downloads(self, opened: Opened) -> int:  # noqa: ARG002
        """Return how many workers the round was opened to."""
        return len(self._messaged)

    def load_pooled_buffers(self) -> None:
        """Give the server's module the buffers of all whose contributions serve, pooled by their samples."""
        if self.buffers is not None:
            samples = np.where(self.last >= 0, self.samples, 0)
            self.buffers.load_pooled(samples / max(1, samples.sum()))

    def measure(self) -> tuple[float, float | None]:
        """Return what the server can measure at the current model, in one pass."""
        return self.elsewhere.measured(self.theta)

    # -- what survives the server -------------------------------------------------------------------------------

    def state(self, *, live: bool = False) -> dict[str, Any]:
        """Return all that the server needs to go on."""
        held: Held = {} if self.relay is None else self.relay.latest
        mine = {
            "run": self.run,
            "settings": self.settings,
            "rows": self.rows,
            "last": self.last,
            "unheard": self.unheard,
            "samples": self.samples,
            "strikes": [[node, count] for node, count in self.strikes.items()],
            "bytes": [self.bytes_down, self.bytes_up],
            "refused": self.refusals,
            "buffers": {} if self.buffers is None else self.buffers.state(),
            "held": [[unit, k, np.frombuffer(message, np.uint8)] for unit, (k, message) in held.items()],
        }
        state = {**super().state(live=True), "federation": mine}
        return state if live else dict(copies(state))

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's state: every node is met anew."""
        super().restore(state)
        mine = state["federation"]
        self.run = mine["run"]
        self.rows = copies(mine["rows"], self.theta)
        self.last, self.unheard, self.samples = (host(mine[name]).copy() for name in ("last", "unheard", "samples"))
        self.server.weights = self.samples / self.samples.sum()
        self.strikes = dict(map(tuple, mine["strikes"]))
        self.bytes_down, self.bytes_up = mine["bytes"]
        self.refusals = mine["refused"]
        if self.buffers is not None and mine.get("buffers"):  # older checkpoints have none: uploads bring them
            self.buffers.restore(mine["buffers"])
        self.node, self.known, self.spare, self._greeted, self._seen = {}, {}, {}, {}, set()
        self._greet_at, self.failures = {}, Failures()
        if self.relay is not None:
            self.relay = Relay(self.theta)
            self.relay.before = {unit: (k, host(message).tobytes()) for unit, k, message in mine["held"]}


class _Elsewhere:
    """The problem, as the server knows it: its workers are on the nodes, and so is the data."""

    def __init__(self, workers: int, measure: Callable[[Array], tuple[float, float | None]] | None) -> None:
        self.workers, self._measure = workers, measure

    @property
    def weights(self) -> FloatArray:
        """None of them are here."""
        return np.zeros(0)

    def gradients(self, iteration: int, points: Any, rows: Any) -> list[Array]:  # noqa: ARG002
        """Refuse: nobody computes here."""
        raise LasgError("the server of a federation has no data to differentiate on")

    def measured(self, theta: Array) -> tuple[float, float | None]:
        """Return loss and accuracy, NaN and None if the server can measure nothing."""
        return (math.nan, None) if self._measure is None else self._measure(theta)

    def loss(self, theta: Array) -> float:
        """Return the loss alone."""
        return self.measured(theta)[0]

    def accuracy(self, theta: Array) -> float | None:
        """Return the accuracy alone."""
        return self.measured(theta)[1]

    def export(self, theta: Array) -> Any:
        """Return the model as one vector: names belong to the nodes."""
        return {"theta": theta}

    def fresh(self) -> _Elsewhere:
        """Return itself: nothing in it changes."""
        return self

    def state(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Take nothing."""
