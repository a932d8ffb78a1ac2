"""A server and nodes that come and go. An answer that never comes is a worker that stayed silent.

The server believes a node only what it says of the round that is open, and checks every array before it uses it. What
is refused changes nothing, and counts as silence. Buffers that come with an upload are kept with it: a worker that is
silent has those of its last upload.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from lasg.core.arrays import FloatArray, IntArray, checksum, host
from lasg.core.belief import NEVER, upload_id
from lasg.core.block_codec import BlockCodec
from lasg.core.messages import Request, Uploads
from lasg.core.rules import REPORTED
from lasg.core.transport import Hosting, Local, Plan
from lasg.errors import LasgError
from lasg.packing import pack
from lasg.transports.membership import Admission, Carrier, Membership, Report
from lasg.transports.model_deltas import DeltaLog, NodeModel, encode_steps, tells_sums
from lasg.transports.nodes import Answer, Checker, Parcel, agreed_settings, require

if TYPE_CHECKING:
    from lasg.problems.buffers import Buffers

DEADLINE = 60.0
"""Seconds that a round waits for answers."""
Away = Literal["keep", "drop", "stop"]


class OpenRound(NamedTuple):
    """A round under way."""

    request: Request
    checksum: int
    """Of the model."""
    pending: dict[str, tuple[int, NodeModel]]
    """Who was asked and has not answered, by the name of the answer, with what its node then has."""
    answers: dict[int, Answer]
    asked: set[int]


class Federation(Local):
    """The server's side of a run whose workers are on nodes that a carrier reaches."""

    def __init__(
        self,
        carrier: Carrier,
        keys: Sequence[str],
        *,
        deadline: float = DEADLINE,
        away: Away = "keep",
        away_after: float,
        admission: Admission = Admission(),  # noqa: B008 (it is frozen)
        norm_bound: float = math.inf,
        send_deltas: bool = True,
        buffers: Buffers | None = None,
        report: Report | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Take the workers' keys: a node is worker m if it says key m, and may, as `admission` says.

        A worker that has not answered for `away_after` rounds is `away`: its contribution is kept or dropped, or the
        run stops. With `send_deltas` a node that has an older model is sent what changed it, where that is shorter than
        the model; nodes then see the quantised contributions of the others. `buffers` has a place for every worker's
        buffers, which are kept there as they come.
        """
        if away not in ("keep", "drop", "stop"):
            raise LasgError(f"away must be keep, drop or stop, got {away!r}")
        self.members = Membership(carrier, keys, admission=admission, report=report, clock=clock, sleep=sleep)
        self.keys, self.deadline, self.away, self.away_after = list(keys), deadline, away, away_after
        self.norm_bound, self.send_deltas, self.buffers = norm_bound, send_deltas, buffers
        self.run = uuid.uuid4().hex
        self.incarnation = uuid.uuid4().hex
        """This server, as long as it lives: after a restart rounds may come again that nodes have seen."""
        self.held: list[int] = [NEVER] * len(keys)
        """Each worker's last upload, by the name that both sides know it by."""
        self.rounds_unanswered: IntArray = np.zeros(len(keys), np.int64)
        self.rounds_broken: IntArray = np.zeros(len(keys), np.int64)
        """In how many rounds in a row a worker's gradient was not finite."""

    def begin(self, plan: Plan) -> Hosting:
        """Host nobody: the server has no data."""
        if len(set(self.keys)) != len(self.keys) or len(self.keys) != plan.workers:
            raise LasgError(f"a federation of {plan.workers} workers needs as many different keys, got {self.keys}")
        # The aggregate is a function of what is held, and of nothing before it: so nodes can follow the server.
        self.listener = plan.listener(plan.workers, whole=True, forgetful=True)
        self.estimates = plan.stages.rule.estimate is not None
        self.checker = Checker(self.listener, plan.stages, norm_bound=self.norm_bound, buffers=self.buffers)
        self.members.settings = agreed_settings(plan.stages, plan.D, plan.seed, plan.theta, self.buffers)
        self.optimizer, self.robust, self.patience = plan.optimizer, plan.stages.robust is not None, plan.patience
        # A sum is as long as the model: for that no node needs to know an optimizer's momenta.
        follows = self.send_deltas and (plan.optimizer.plain or not tells_sums(plan.stages, plan.theta))
        self.deltas = DeltaLog(plan.stages, plan.theta) if follows else None
        return Hosting(np.arange(0), None)

    def gather(self, seconds: float) -> None:
        """Wait until every worker has come once."""
        self.members.gather(seconds)

    # -- a round ----------------------------------------------------------------------------------------------

    def exchange(self, request: Request, own: Uploads) -> Uploads:  # noqa: ARG002
        """Ask the nodes, and take what they answer until all have or the deadline is over."""
        members = self.members
        members.k = request.k
        gone = self._gone()
        wanted = set(np.flatnonzero(request.computes).tolist())
        now = OpenRound(request, checksum(request.theta), {}, {}, set())
        end = members.clock() + self.deadline
        members.meet()
        for m in sorted(wanted & members.node_of_worker.keys()):
            self._ask(m, now)
        # Where nobody is there, a round waits for somebody: it would be over at once, and the next too.
        while (now.pending or (wanted and not now.asked)) and members.clock() < end:
            came = list(members.carrier.pull(list(now.pending)))
            for name, parcel in came:
                self._take(*now.pending.pop(name), parcel, now)
            for m in members.meet():  # somebody is back
                if m in wanted and m not in now.answers and m not in {asked for asked, _ in now.pending.values()}:
                    self._ask(m, now)
            if not came:
                members.sleep(members.carrier.pause)
        if not now.answers:
            members.stop_if_all_fail(members.node_of_worker.values())
        self._exclude_broken(now.answers)
        members.stop_if_all_excluded()
        self.rounds_unanswered[list(wanted)] += 1
        self.rounds_unanswered[list(now.answers)] = 0
        return self._together(now, gone)

    def _exclude_broken(self, answers: dict[int, Answer]) -> None:
        """Exclude nodes whose gradients are not finite for ever, while any other worker works.

        Where none does, the run ends as everywhere: see `Training.step`.
        """
        broken = self.rounds_broken
        for m, answer in answers.items():
            broken[m] = broken[m] + 1 if answer.kind == "broken" else 0
        for m in np.flatnonzero(broken >= self.patience).tolist():
            node = self.members.node_of_worker.get(m)
            works = any(broken[other] < self.patience for other in self.members.node_of_worker)
            if node is not None and works:
                self.members.exclude(node, self.keys[m], f"excluded: no finite gradient in {broken[m]} rounds in a row")
                broken[m] = 0
                del answers[m]

    def _gone(self) -> list[int]:
        """Do what was chosen with workers that are away; return whose contribution is dropped."""
        unanswered = np.flatnonzero(self.rounds_unanswered >= self.away_after).tolist()
        gone = [m for m in unanswered if self.held[m] != NEVER]
        if not gone or self.away == "keep":
            return []
        if self.away == "stop":
            names = ", ".join(self.keys[m] for m in gone)
            raise LasgError(f"worker {names} has not answered in {self.away_after} rounds")
        if self.listener.rows is None:  # what is said is used once: there is nothing to drop
            return []
        for m in gone:
            self.held[m] = NEVER
        return gone

    def _ask(self, m: int, now: OpenRound) -> None:
        """Ask a worker for its round: with the model, or with what changed the one that it has."""
        request = now.request
        head: dict[str, Any] = {
            "kind": "work",
            "run": self.run,
            "life": self.incarnation,
            "round": request.k,
            "worker": m,
            "workers": len(self.keys),
            "eta": float(request.eta),
            "threshold": float(request.threshold),
            "points": request.points,
            "due": bool(request.must_upload[m]),
            "based": self.held[m],
            "weight": float(self.members.weights[m]),
            "checksum": now.checksum,
        }
        more, arrays, node_model = self._model_or_steps(m, now)
        arrays |= {} if request.blocks is None else request.blocks.pack(m)
        now.asked.add(m)
        name = self.members.push(self.members.node_of_worker[m], Parcel({**head, **more}, arrays))
        now.pending[name] = (m, node_model)

    def _model_or_steps(self, m: int, now: OpenRound) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]], NodeModel]:
        """Return what brings a worker's node to the model of the round, and what it then has."""
        k, had = now.request.k, self.members.node_models.get(m)
        if k == 0 and m not in now.asked and self.members.starts.get(m) == now.checksum:
            return {}, {}, NodeModel(0, {}, False)  # it has the model
        has = {} if had is None else dict(had.has)
        steps = None if self.deltas is None or had is None else self.deltas.steps_for(m, had, k)
        if had is not None and steps is not None:
            head, arrays = encode_steps(steps)
            head |= {"basis": had.at, **({"weights": self.members.weights.tolist()} if self.robust else {})}
            has |= {unit: j for held in steps.values() for unit, (j, _) in held.items()}
            return head, arrays, NodeModel(k, has, False)
        head, arrays, at = {}, {"model": host(now.request.theta)}, k
        if self.deltas is not None and (state := self._optimizer_state()):
            if self.optimizer.plain or self.deltas.helps(m):
                arrays["optimizer"] = np.frombuffer(pack(state), np.uint8)
            else:
                at = NEVER
        if had is None and self.buffers is not None and self.held[m] != NEVER:
            head["buffers"], arrays["buffers"] = self.buffers.pack(m)
        return head, arrays, NodeModel(at, has, had is None)

    def _optimizer_state(self) -> dict[str, Any]:
        """Return what repeating the server's steps takes besides the model: nothing, for plain SGD in closed form."""
        return {name: value for name, value in self.optimizer.state().items() if name != "theta"}

    def _take(self, m: int, node_model: NodeModel, parcel: Parcel | None, now: OpenRound) -> None:
        """Take an answer, or refuse it."""
        members, key = self.members, self.keys[m]
        members.node_models.pop(m, None)  # until it is known that the node took what it was sent
        node = members.node_of_worker.get(m)
        if node is None or members.failed(node, key, parcel):
            return
        assert parcel is not None
        try:
            k, must = now.request.k, bool(now.request.must_upload[m])
            answer = self.checker.check(parcel, self.run, k, m, key, self.held[m], must_upload=must)
            require(answer.kind != "lost" or not node_model.whole, "it did not understand the model")
        except LasgError as error:
            members.refuse(node, key, str(error))
            return
        if answer.kind == "lost":
            if self.deltas is not None and now.request.k:  # before the first round there are no steps
                self.deltas.note_lost(m)
            self._ask(m, now)
        elif answer.kind != "stale":
            members.failures.pop(node, None)
            members.node_models[m] = node_model
            now.answers[m] = answer

    def _together(self, now: OpenRound, gone: Sequence[int]) -> Uploads:
        """Hear what was uploaded; return what all workers answered."""
        k, answers, everybody = now.request.k, now.answers, range(len(self.keys))
        for m in [m for m in self.members.excluded if self.held[m] != NEVER]:  # with the node goes what it said
            self.held[m] = NEVER
            gone = sorted({*gone, m})
        uploads = {m: answers[m] for m in everybody if m in answers and answers[m].kind == "upload"}
        broken = np.array([m in answers and answers[m].kind == "broken" for m in everybody])
        again = [m for m, answer in uploads.items() if self.checker.chained and answer.base == NEVER]
        for m, answer in uploads.items():
            self.held[m] = upload_id(k, answer.message, answer.base, chained=self.checker.chained)
            if self.buffers is not None and answer.buffers is not None:
                self.buffers.keep(m, answer.buffers)
        messages = {m: answer.message for m, answer in uploads.items()}
        self.listener.weights = self.members.weights
        who = np.array(list(messages), np.int64)
        news = self.listener.take(list(messages.values()), who, sorted({*gone, *again}), k=k)
        if self.deltas is not None:
            self.deltas.note(k, messages, gone, news)
        codec, p = self.listener.codec, self.listener.like.shape[-1]
        said = codec.said(list(messages.values()), p) if isinstance(codec, BlockCodec) else None
        left = np.array([answers[m].left if m in answers else math.nan for m in everybody])
        return Uploads(
            np.array([m in uploads for m in everybody]),
            len(uploads),
            8 * sum(map(len, messages.values())),
            sum(answer.evaluations for answer in answers.values()),
            news,
            forget=tuple(gone),
            left=None if np.isnan(left).all() else left,
            estimates=np.array([answer.estimate for answer in uploads.values()]) if self.estimates else None,
            broken=broken if broken.any() else None,
            reports=self._reports(answers) if self.checker.reports else None,
            downloads=len(now.asked) if now.request.fresh else 0,
            weights=self.members.weights,
            said=said,
        )

    def _reports(self, answers: dict[int, Answer]) -> FloatArray:
        """Return what each worker reports; NaN of those that did not."""
        reports = np.full((len(self.keys), REPORTED), np.nan)
        for m, answer in answers.items():
            if answer.report:
                reports[m] = answer.report
        return reports

    def load_pooled_buffers(self) -> None:
        """Give the server's module the buffers of all whose contributions serve, pooled by their samples."""
        if self.buffers is not None:
            samples = np.where(np.array(self.held) != NEVER, self.members.counted, 0)
            self.buffers.load_pooled(samples / max(1, samples.sum()))

    # -- what survives the server -------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return all that the server needs to go on."""
        return {
            **self.members.state(),
            "run": self.run,
            "listener": self.listener.state(),
            "uploads": self.held,
            "unheard": self.rounds_unanswered,
            "broken": self.rounds_broken,
            "buffers": {} if self.buffers is None else self.buffers.state(),
            "held": [] if self.deltas is None else self.deltas.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's state: every node is met again."""
        self.members.restore(state)
        self.run = state["run"]
        # lasg 0.1 had rows alone, and knew uploads by their rounds: its nodes upload once more.
        heard = state["listener"] if "listener" in state else {"decoder": {}, "rows": state["rows"]}
        self.listener.restore(heard)
        self.held = list(state["uploads"]) if "uploads" in state else host(state["last"]).tolist()
        self.rounds_unanswered = host(state["unheard"]).copy()
        if "broken" in state:
            self.rounds_broken = host(state["broken"]).copy()
        if self.buffers is not None and state.get("buffers"):  # older checkpoints have none: uploads bring them
            self.buffers.restore(state["buffers"])
        if self.deltas is not None:
            self.deltas.restore(state["held"])
