"""A node of a federation: one worker, its data, and what it remembers between rounds.

A node may be silent only if it remembers the upload that the server holds of it. A node that lost its memory, or whose
last upload was not taken, uploads; an upload is a contribution itself and replaces the one before, so it depends on
nothing that either side might have lost. With it go the buffers that training has changed (BatchNorm's statistics). A
node that lost its memory takes them back as it last uploaded them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lasg.core.arrays import Array, FloatArray, IntArray, cast, checksum, host
from lasg.core.clipping import Clipped
from lasg.core.codecs import Codec
from lasg.core.optimizers import Schedule
from lasg.core.rules import Rule
from lasg.core.server import Opened
from lasg.core.workers import Oracle, Workers
from lasg.errors import LasgError
from lasg.packing import pack, unpack
from lasg.transports.model_deltas import Follower, Held, Step

if TYPE_CHECKING:
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


def settings(
    rule: Rule, codec: Codec, D: int, local_steps: int, seed: int, like: Array, buffers: Buffers | None = None
) -> dict[str, Any]:
    """Return what the server and its nodes must agree on."""
    return {
        "rule": rule.name,
        "codec": repr(codec),
        "D": D,
        "local steps": local_steps,
        "seed": seed,
        "parameters": int(like.shape[-1]),
        "dtype": str(host(like).dtype),
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
        rule: Rule,
        codec: Codec,
        schedule: Schedule,
        D: int,
        seed: int = 0,
        local_steps: int = 1,
        clip: float | None = None,
        buffers: Buffers | None = None,
    ) -> None:
        """Take the worker's own problem, an oracle of one worker whose weight the server decides.

        `like` is any vector of the model's length, dtype and device. `buffers` are the oracle's, if training changes
        any; they are then part of the oracle's state.
        """
        self.key, self.samples, self.like, self.clip = key, samples, like, clip
        self.oracle, self.rule, self.codec, self.schedule = oracle, rule, codec, schedule
        self.D, self.seed, self.H = D, seed, local_steps
        self.buffers = buffers
        self.settings = settings(rule, codec, D, local_steps, seed, like, buffers)
        self.bytes_up = self.bytes_down = 0
        """What it has sent and received, as far as it remembers."""
        self._forget("", 0, 1)

    def _forget(self, run: str, worker: int, workers: int) -> None:
        """Begin anew, as a worker of a run."""
        self.run, self.worker, self.count = run, worker, workers
        self.life, self.k, self.last, self.epoch = "", -1, -1, -1
        self.follower = Follower(self.codec, self.like, workers, self.schedule)
        if self.buffers is not None:
            self.buffers.reset()
        self.weight = _Weighted(self.oracle)
        self.workers = Workers(
            self.weight if self.clip is None else Clipped(self.weight, self.clip),
            self.rule,
            self.codec,
            theta=self.like,
            ids=np.array([worker]),
            seed=self.seed,
            D=self.D,
            local_steps=self.H,
            gives="messages",
        )

    def answer(self, asked: Parcel) -> Parcel:
        """Do what the server asks."""
        found = self._answered(asked)
        self.bytes_down += asked.size
        self.bytes_up += found.size
        return found

    def _answered(self, asked: Parcel) -> Parcel:
        kind = asked.head.get("kind")
        if kind == "hello":
            theirs = {"buffers": "none", **json.loads(asked.head["settings"])}
            mine = {"buffers": theirs["buffers"], **self.settings}  # who changes no buffer sends none
            differing = [name for name in theirs if theirs[name] != mine.get(name)]
            differs = "; ".join(f"its {name} is {mine.get(name)}, not {theirs[name]}" for name in differing)
            return Parcel({"kind": "here", "key": self.key, "samples": self.samples, "differs": differs}, {})
        if kind != "work":
            raise LasgError(f"the server asked for {kind!r}, which this version of lasg does not know")
        return self._work(asked.head, asked.arrays)

    def _work(self, head: dict[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Parcel:
        """Compute a round, and upload or be silent."""
        k = int(head["round"])
        which = (str(head["run"]), int(head["worker"]), int(head["workers"]))
        if which != (self.run, self.worker, self.count):
            self._forget(*which)
        said: dict[str, Any] = {"run": self.run, "round": k, "key": self.key}
        if head["life"] != self.life:
            # A server that went on from a checkpoint may be in an earlier round than this node was.
            self.life, self.k = str(head["life"]), -1
        if k < self.k:
            return Parcel({**said, "kind": "stale"}, {})
        if not self._reach(k, head, arrays) or not self._take_back(head, arrays):
            return Parcel({**said, "kind": "lost"}, {})
        self.k = k
        self.weight.share = float(head["weight"])
        theta = self.follower.theta
        if self.rule.periodic and k // self.D != self.epoch:
            self.workers.snapshot, self.epoch = theta, k // self.D
        if self.last < 0 and self.workers.iterates is not None:
            self.workers.iterates.keep(theta, np.array([True]))  # it remembers no other model
        due = bool(head["due"]) or int(head["based"]) != self.last
        asked = np.array([True]) if self.rule.where == "server" else None
        opened = Opened(
            k,
            theta,
            float(head["eta"]),
            float(head["threshold"]),
            asked,
            np.array([due]),
            left=None,
            points=int(head.get("points", self.rule.points(k, self.D))),
        )
        reply = self.workers.respond(opened)
        said["evaluations"] = reply.gradients
        if reply.left is not None:
            said["left"] = float(reply.left[0])
        if reply.broken is not None and reply.broken[0]:
            return Parcel({**said, "kind": "broken"}, {})
        if not reply.uploads:
            return Parcel({**said, "kind": "silent"}, {})
        self.last = k
        if reply.estimates is not None:
            said["estimate"] = float(reply.estimates[0])
        sent = {"contribution": np.frombuffer(reply.messages[0], np.uint8)}
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
        follower = self.follower
        if "model" in arrays:
            follower.set(k, cast(arrays["model"].copy(), self.like))
        elif follower.at != int(head["basis"]):
            return False
        else:
            follower.follow(unfolded(head, arrays))
        if follower.at == k and checksum(follower.theta) == int(head["checksum"]):
            return True
        follower.at = None
        return False

    def memory(self) -> bytes:
        """Return all that is remembered."""
        held = {str(unit): [k, np.frombuffer(message, np.uint8)] for unit, (k, message) in self.follower.held.items()}
        state = {
            "who": [self.run, self.worker, self.count],
            "life": self.life,
            "rounds": [self.k, self.last, self.epoch, self.follower.at],
            "bytes": [self.bytes_up, self.bytes_down],
            "model": self.follower.theta,
            "held": held,
            "workers": self.workers.state(),
            "oracle": getattr(self.oracle, "state", dict)(),
        }
        return pack(state)

    def recall(self, data: bytes) -> None:
        """Take back what was remembered."""
        state = unpack(data, "this node's memory")
        self._forget(*state["who"])
        self.life = state["life"]
        self.bytes_up, self.bytes_down = state["bytes"]
        self.k, self.last, self.epoch, self.follower.at = state["rounds"]
        self.follower.theta = None if state["model"] is None else cast(host(state["model"]), self.like)
        self.follower.held = {int(unit): (k, message.tobytes()) for unit, (k, message) in state["held"].items()}
        self.workers.restore(state["workers"])
        if state["oracle"]:
            self.oracle.restore(state["oracle"])  # type: ignore[attr-defined]


def folded(steps: list[Step]) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Return steps as they travel."""
    came = [(step.k, unit, k, message) for step in steps for unit, (k, message) in step.came.items()]
    head = {
        "steps": [step.k for step in steps],
        "in_step": [step for step, _, _, _ in came],
        "units": [unit for _, unit, _, _ in came],
        "rounds": [k for _, _, k, _ in came],
        "lengths": [len(message) for _, _, _, message in came],
    }
    return head, {"steps": np.frombuffer(b"".join(message for _, _, _, message in came), np.uint8)}


def unfolded(head: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> list[Step]:
    """Undo `folded`."""
    found: dict[int, Held] = {int(k): {} for k in head["steps"]}
    data, start = arrays["steps"].tobytes(), 0
    for step, unit, k, length in zip(head["in_step"], head["units"], head["rounds"], head["lengths"], strict=True):
        found[int(step)][int(unit)] = (int(k), data[start : start + int(length)])
        start += int(length)
    return [Step(k, came) for k, came in found.items()]


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
