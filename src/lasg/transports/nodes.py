"""A node of a federation: one worker, its data, and what it remembers between rounds.

A node may be silent only if it remembers the upload that the server holds of it. A node that lost its memory, or whose
last upload was not taken, uploads. A message that builds on others says on which: where the two sides do not agree, the
node begins again with one that stands for itself. With an upload go the buffers that training has changed (BatchNorm's
statistics). A node that lost its memory takes them back as it last uploaded them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lasg.core.algorithms import Stages
from lasg.core.arrays import Array, FloatArray, IntArray, all_finite, cast, checksum, float64, host, norms
from lasg.core.belief import NEVER, Listener, is_chained
from lasg.core.clipping import Clipped
from lasg.core.entropy import format_for
from lasg.core.messages import BlockTerms, Request
from lasg.core.optimizers import Optimizer, lengthen, with_averages
from lasg.core.rules import REPORTED
from lasg.core.work import Oracle
from lasg.core.workers import Workers
from lasg.errors import LasgError
from lasg.packing import pack, unpack
from lasg.transports.model_deltas import Held, decode_steps, follow

if TYPE_CHECKING:
    from torch import Tensor

    from lasg.problems.buffers import Buffers

FAILED = "failed"
"""The kind of an answer that is none: the node's own code raised an error, which it carries."""


class Parcel(NamedTuple):
    """What travels: numbers and words, and arrays."""

    head: dict[str, Any]
    arrays: dict[str, npt.NDArray[Any]]

    @property
    def size(self) -> int:
        """Bytes of it, before whatever carries it adds its own."""
        return len(repr(self.head)) + sum(array.nbytes for array in self.arrays.values())


def agreed_settings(stages: Stages, D: float, seed: int, like: Array, buffers: Buffers | None = None) -> dict[str, Any]:
    """Return what the server and its nodes must agree on."""
    return {
        **stages.describe(),
        "D": D,
        "seed": seed,
        "parameters": int(like.shape[-1]),
        "dtype": str(host(like).dtype),
        "format of coded messages": format_for(int(like.shape[-1])),
        **({} if buffers is None else {"buffers": buffers.layout}),
    }


class Node:
    """Answers what the server asks. What it remembers can be taken out and given back: `memory`, `recall`."""

    def __init__(
        self,
        key: str,
        oracle: Oracle,
        *,
        samples: int,
        like: Array,
        stages: Stages,
        optimizer: Callable[[Array], Optimizer],
        D: float,
        seed: int = 0,
        clip: float | None = None,
        buffers: Buffers | None = None,
        start: Array | None = None,
    ) -> None:
        """Take the worker's own problem, an oracle of one worker whose weight the server decides.

        `like` is any vector of the model's length, dtype and device. `optimizer` gives the server's optimizer of a
        model, with which its steps can be repeated. `buffers` are the oracle's, if training changes
        any; they are then part of the oracle's state. `start` is the model that it would start from by itself: where
        that is the server's, it need not be sent.
        """
        like = lengthen(like, stages.averages)  # the server's vector: all that is kept and sent has its length
        start = None if start is None else lengthen(start, stages.averages)
        self.key, self.samples, self.like, self.clip = key, samples, like, clip
        self.oracle, self.stages, self.rule, self.make_optimizer = oracle, stages, stages.rule, optimizer
        self.D, self.seed, self.buffers, self.start = D, seed, buffers, start
        self.settings = agreed_settings(stages, D, seed, like, buffers)
        self.bytes_up = self.bytes_down = 0
        """What it has sent and received, as far as it remembers."""
        self._forget("", 0, 1)

    def _forget(self, run: str, worker: int, workers: int) -> None:
        """Begin again, as a worker of a run."""
        self.run, self.worker, self.count = run, worker, workers
        self.incarnation, self.k, self.last, self.epoch = "", -1, -1, -1
        self.answered: tuple[list[int], Parcel] | None = None
        self.at: int | None = None
        self.optimizer: Optimizer | None = None
        """The server's, as it was in round `at`, with the model of that round."""
        self.held: Held = {}
        """What the server held then, as far as it was sent."""
        if self.buffers is not None:
            self.buffers.reset()
        self.weighted_oracle = oracle = _Weighted(self.oracle)
        self.workers = Workers(
            oracle if self.clip is None else Clipped(oracle, self.clip),
            self.stages,
            theta=self.like,
            ids=np.array([worker]),
            seed=self.seed,
            D=self.D,
            workers=workers,
            confirmed_later=True,
        )

    def answer(self, asked: Parcel) -> Parcel:
        """Do what the server asks."""
        kind = asked.head.get("kind")
        if kind not in ("hello", "work"):
            raise LasgError(f"the server asked for {kind!r}, which this version of lasg does not know")
        answer = self._work(*asked) if kind == "work" else self._greet(json.loads(asked.head["settings"]))
        self.bytes_down += asked.size
        self.bytes_up += answer.size
        return answer

    def _greet(self, settings: dict[str, Any]) -> Parcel:
        """Say who this is, and what of the server's settings differs here."""
        theirs = {"buffers": "none", **settings}
        mine = {"buffers": theirs["buffers"], **self.settings}  # who changes no buffer sends none
        differing = [name for name in theirs if theirs[name] != mine.get(name)]
        differs = "; ".join(f"its {name} is {mine.get(name)}, not {theirs[name]}" for name in differing)
        start = {} if self.start is None else {"start": checksum(self.start)}
        return Parcel({"kind": "here", "key": self.key, "samples": self.samples, "differs": differs, **start}, {})

    def _work(self, head: dict[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Parcel:
        """Compute a round, and upload or be silent."""
        k = int(head["round"])
        which = (str(head["run"]), int(head["worker"]), int(head["workers"]))
        if which != (self.run, self.worker, self.count):
            self._forget(*which)
        if head["life"] != self.incarnation:
            # A server that went on from a checkpoint may be in an earlier round than this node was.
            self.incarnation, self.k = str(head["life"]), -1
        said: dict[str, Any] = {"run": self.run, "round": k, "key": self.key}
        if k < self.k:
            return Parcel({**said, "kind": "stale"}, {})
        if not self._reach(k, head, arrays) or not self._take_back(head, arrays):
            return Parcel({**said, "kind": "lost"}, {})
        question = [k, int(head["based"]), int(head["checksum"])]
        if self.answered is not None and self.answered[0] == question:
            return self.answered[1]  # the answer was lost: stages that remember rounds have had this one
        answer = self._compute(k, head, arrays, said)
        self.answered = (question, answer) if self.workers.remembers_rounds else None
        return answer

    def _compute(self, k: int, head: dict[str, Any], arrays: Mapping[str, Array], said: dict[str, Any]) -> Parcel:
        """Compute a round at the model that was reached; return the answer."""
        self.k = k
        self.weighted_oracle.share = float(head["weight"])
        assert self.optimizer is not None
        theta = self.optimizer.theta
        if self.rule.periodic and int(k // self.D) != self.epoch:
            self.workers.snapshot, self.epoch = theta, int(k // self.D)
        if self.last < 0 and self.workers.iterates is not None and self.stages.probe == "last":
            self.workers.iterates.keep(theta, np.array([True]))  # it remembers no other upload's model
        agreed, base = self.workers.confirm(int(head["based"])), self.workers.speaker.base
        request = Request(
            k,
            theta,
            float(head["eta"]),
            float(head["threshold"]),
            computes=np.array([True]),
            # Where all upload or nobody does, who is not believed waits for the others.
            must_upload=np.array([bool(head["due"]) or not (agreed or self.rule.report)]),
            points=int(head["points"] if "points" in head else self.stages.points(k, self.D)),
            blocks=BlockTerms.unpack(arrays, all_due=not agreed) if "thresholds" in arrays else None,
        )
        uploads = self.workers.answer(request)
        said["evaluations"] = uploads.gradients
        if uploads.left is not None:
            said["left"] = float(uploads.left[0])
        if uploads.broken is not None and uploads.broken[0]:
            return Parcel({**said, "kind": "broken"}, {})
        if uploads.reports is not None:
            said["report"] = uploads.reports[0].tolist()
        if not uploads.uploads:
            return Parcel({**said, "kind": "silent"}, {})
        self.last = k
        if base != NEVER:
            said["base"] = base
        if uploads.estimates is not None:
            said["estimate"] = float(uploads.estimates[0])
        sent = {"contribution": np.frombuffer(uploads.messages[0], np.uint8)}
        if self.buffers is not None:
            said["buffers"], sent["buffers"] = self.buffers.pack(0)
        return Parcel({**said, "kind": "upload"}, sent)

    def _take_back(self, head: dict[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> bool:
        """Where the last upload is forgotten, take the buffers that went with it; False if they did not come."""
        if self.buffers is None or self.last >= 0 or int(head["based"]) < 0:
            return True
        if "buffers" not in head:
            return False
        self.buffers.keep(0, self.buffers.unpack(head["buffers"], arrays["buffers"]))
        return True

    def _reach(self, k: int, head: dict[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> bool:
        """Have the model of round k, which came or is reached by the server's steps; tell whether it is that."""
        if "model" in arrays:
            optimizer = unpack(arrays["optimizer"].tobytes(), "the server's optimizer") if "optimizer" in arrays else {}
            self._set_optimizer(arrays["model"].copy(), optimizer)
        elif "basis" not in head:
            if self.start is None:
                return False
            self._set_optimizer(host(self.start).copy(), {})
        elif self.optimizer is None or self.at not in (k, int(head["basis"])):
            return False
        elif self.at != k:  # else the request came twice
            weights = np.array(head["weights"]) if "weights" in head else None
            follow(self.optimizer, self.held, decode_steps(head, arrays), self.stages, self.count, self.seed, weights)
        assert self.optimizer is not None
        reached = checksum(self.optimizer.theta) == int(head["checksum"])
        self.at = k if reached else None
        return reached

    def _set_optimizer(self, theta: npt.NDArray[Any], state: dict[str, Any]) -> None:
        """Have the server's optimizer as it is with this model, and with the state that it has besides, if it came."""
        vector, averages = cast(theta, self.like), self.stages.averages
        own = self.make_optimizer(vector[: vector.shape[-1] // (1 + averages)])
        self.optimizer = with_averages(own, averages, vector)
        if state:
            self.optimizer.restore({**state, "theta": self.optimizer.theta})

    def memory(self) -> bytes:
        """Return all that is remembered."""
        server = {} if self.optimizer is None else self.optimizer.state()
        held = {str(unit): [k, np.frombuffer(message, np.uint8)] for unit, (k, message) in self.held.items()}
        state = {
            "who": [self.run, self.worker, self.count],
            "life": self.incarnation,
            "rounds": [self.k, self.last, self.epoch, self.at],
            "bytes": [self.bytes_up, self.bytes_down],
            "model": server.pop("theta", None),
            "optimizer": server,
            "held": held,
            "workers": self.workers.state(),
            "oracle": getattr(self.oracle, "state", dict)(),
            "answered": None if self.answered is None else [self.answered[0], list(self.answered[1])],
        }
        return pack(state)

    def recall(self, data: bytes) -> None:
        """Take back what was remembered."""
        state = unpack(data, "this node's memory")
        self._forget(*state["who"])
        self.bytes_up, self.bytes_down = state["bytes"]
        if "rule" not in state["workers"]:  # of lasg 0.1: what it uploaded is not known, so it uploads again
            return
        self.incarnation = state["life"]
        self.k, self.last, self.epoch, self.at = state["rounds"]
        if state["model"] is not None:
            self._set_optimizer(host(state["model"]), state.get("optimizer", {}))
        self.held = {int(unit): (k, message.tobytes()) for unit, (k, message) in state["held"].items()}
        self.workers.restore(state["workers"])
        if state["answered"] is not None:
            question, (head, arrays) = state["answered"]
            self.answered = (question, Parcel(head, arrays))
        if state["oracle"]:
            self.oracle.restore(state["oracle"])  # type: ignore[attr-defined]


class _Weighted:
    """A worker's own mean gradient, times the share that the server gives it."""

    def __init__(self, oracle: Oracle) -> None:
        self.oracle, self.share = oracle, 1.0

    @property
    def weights(self) -> FloatArray:
        """The share of the objective."""
        return np.array([self.share])

    def gradients(self, iteration: int, points: Any, rows: IntArray | None) -> list[Array]:
        """Return the contribution at each point."""
        own = float(self.oracle.weights[0])
        found = self.oracle.gradients(iteration, points, rows)
        return found if own == self.share else [grad * (self.share / own) for grad in found]


# -- what the server makes of an answer -------------------------------------------------------------------------------

KINDS = ("upload", "silent", "broken", "lost", "stale")
NOTHING = np.zeros(0, np.uint8)


def require(fits: bool, reason: str) -> None:
    """Refuse an answer that does not fit."""
    if not fits:
        raise LasgError(reason)


class Answer(NamedTuple):
    """An answer that may be used."""

    kind: str
    evaluations: int = 0
    left: float = math.nan
    estimate: float = 0.0
    message: bytes = b""
    base: int = NEVER
    """The upload that the message builds on."""
    report: Sequence[float] = ()
    """What it says in every round, where the server decides for all."""
    buffers: Sequence[Tensor] | None = None
    """All of the worker's buffers, where the server keeps them."""


class Checker:
    """Turns a parcel into an answer, or says why not."""

    def __init__(self, listener: Listener, stages: Stages, *, norm_bound: float, buffers: Buffers | None) -> None:
        """Take who will hear the messages."""
        self.listener, self.steps_of = listener, None if stages.one_gradient else stages.work.steps_of
        self.chained = is_chained(stages.belief, stages.codec)
        self.norm_bound, self.buffers, self.reports = norm_bound, buffers, stages.rule.report is not None

    def check(self, parcel: Parcel, run: str, k: int, m: int, key: str, held: int, *, must_upload: bool) -> Answer:
        """Return an answer of worker m in a round; refuse every other. `held` is its last upload."""
        head, arrays = parcel
        kind = head.get("kind", "")
        require(kind in KINDS, "it is no answer")
        where = (head.get("run"), head.get("round"), head.get("key"))
        require(where == (run, k, key), f"it is not of {key} in round {k}")
        wanted = {"contribution"} if kind == "upload" else set()
        besides = {"buffers"} if wanted and self.buffers is not None else set()
        require(set(arrays) - besides == wanted, "it has other arrays than an answer of its kind")
        if kind in ("lost", "stale"):
            return Answer(kind)
        evaluations, left = head.get("evaluations", -1), head.get("left", math.nan)
        steps = 1 if self.steps_of is None else len(self.steps_of(k))
        counted = is_integer(evaluations) and 0 <= evaluations <= 2 * steps
        require(counted, "it does not say how many gradients it computed")
        require(isinstance(left, float), "its left side is no number")
        require(kind != "silent" or not must_upload, "it had to upload, and is silent")
        require(kind != "upload" or must_upload or not self.reports, "it uploads in a round in which nobody does")
        report = self._report(head.get("report", ())) if self.reports and kind != "broken" else ()
        if kind != "upload":
            return Answer(kind, evaluations, left, report=report)
        estimate, base = head.get("estimate", 0.0), head.get("base", NEVER)
        require(isinstance(estimate, float) and 0 <= estimate < math.inf, "its estimate is no number >= 0")
        known = is_integer(base) and base in {NEVER, held if self.chained else NEVER}
        require(known, "it builds on an upload that the server does not hold")
        message = self._contribution(arrays["contribution"], k, m, base)
        buffers = None
        if self.buffers is not None:  # those that did not come are as at the start
            buffers = self.buffers.unpack(head.get("buffers", []), arrays.get("buffers", NOTHING))
        return Answer(kind, evaluations, left, estimate, message, base, report, buffers)

    def _report(self, report: Any) -> Sequence[float]:
        """Return what a worker reports, if it is that: the first number a square, the second perhaps not known."""
        is_one = isinstance(report, Sequence) and len(report) == REPORTED and all(isinstance(x, float) for x in report)
        require(is_one and report[0] >= 0, "its report is not two numbers, the first >= 0")
        return [float(number) for number in report]

    def _contribution(self, array: Any, k: int, m: int, base: int) -> bytes:
        """Return the message of a contribution, if it is one."""
        like = self.listener.like
        length = self.listener.codec.length(like.shape[-1], int(like.itemsize))
        is_bytes = isinstance(array, np.ndarray) and array.dtype == np.uint8 and array.ndim == 1
        require(is_bytes, "its contribution is not bytes")
        require(length in (None, len(array)), f"its contribution has {len(array)} bytes, not {length}")
        message: bytes = array.tobytes()
        try:
            decoded = self.listener.read(message, m, k=k, in_full=base == NEVER)
        except (LasgError, ValueError, IndexError, OverflowError) as error:
            raise LasgError(f"its contribution cannot be decoded: {error}") from None
        require(all_finite(decoded), "its contribution is not finite")
        believed = decoded
        if self.listener.belief == "difference" and base != NEVER:  # what counts is what it adds up to
            believed = self.listener.rows[m] + float64(decoded)
        with np.errstate(over="ignore"):
            size = float(norms(believed[None])[0])
        fits = size < math.inf and size <= self.norm_bound
        require(fits, f"the norm of its contribution is {size:g}, above {self.norm_bound:g}")
        return message


def is_integer(number: Any) -> bool:
    """Tell whether something that came is an integer."""
    return isinstance(number, int) and not isinstance(number, bool)
