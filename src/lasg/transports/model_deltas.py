"""What moved the model, told to nodes that have an older one: where that is shorter than the model itself.

The server's aggregate is a function of what it holds: one message per worker, or, where those are as long as the model
or build on one another, their sum. A node that has the model of a round, and what the server held then, needs only
what came since: it repeats the steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lasg.core.algorithms import Stages
from lasg.core.arrays import Array, host, zeros
from lasg.core.belief import Listener, is_chained
from lasg.core.codecs import Dense
from lasg.core.messages import News
from lasg.core.optimizers import ClosedFormSGD, Schedule

Held = dict[int, tuple[int, bytes]]
"""Messages by worker, with the round that each came in; an empty one is a contribution that was dropped."""
SUM = 0
"""Under which number the sum is held."""


def tells_sums(stages: Stages, theta: Array) -> bool:
    """Tell whether the sum of all contributions is told, and not each worker's message."""
    length = stages.codec.length(theta.shape[-1], int(theta.itemsize))
    own = stages.belief == "replace" and not is_chained(stages.belief, stages.codec)
    return not own or length is None or length >= theta.shape[-1] * theta.itemsize


class Step(NamedTuple):
    """One round that a node has missed: what came to be held in it."""

    k: int
    came: Held


class Told(NamedTuple):
    """What a node has, if it answers: the model of a round, and the rounds of the messages that it holds."""

    at: int
    has: dict[int, int]
    whole: bool
    """Whether it was told everything that one without any memory needs."""


class DeltaLog:
    """The server's side: what was held in the last rounds, as far back as it is shorter than the model."""

    def __init__(self, stages: Stages, theta: Array) -> None:
        self.limit = int(theta.shape[-1] * theta.itemsize)
        self.sums = tells_sums(stages, theta)
        self.spare: dict[int, int] = {}
        """Bytes that each node has saved, or would have if it held all messages: some steps may cost as much."""
        self.restore([])

    def note(self, k: int, came: Mapping[int, bytes], dropped: Sequence[int], news: News | None) -> None:
        """Take what came to be held in a round; the news are the aggregate itself."""
        units = dict.fromkeys(dropped, b"") | dict(came)
        if self.sums:
            spoke = bool(came) or bool(dropped)
            said = Dense().encode(news.vector[None])[0] if news is not None and spoke else b""
            units = {} if news is None else {SUM: said}
        self.log[k] = {unit: (k, message) for unit, message in units.items()}
        while len(self.log) > 1 and sum(map(_size, self.log.values())) > self.limit:
            self.before |= self.log.pop(min(self.log))

    def held(self, k: int) -> Held | None:
        """Return what was held after a round, if it is known."""
        if k not in self.log:
            return None
        held = dict(self.before)
        for j in range(min(self.log), k + 1):
            held |= self.log[j]
        return held

    def steps_for(self, m: int, told: Told, k: int) -> list[Step] | None:
        """Return the steps that bring a worker's node to the model of round k, None where the model is shorter."""
        spare = self.spare.get(m, 0)
        steps = self.path(told.at, told.has, k, spare)
        saved = self._lost(told.at, k) if steps is None else self.limit - _length(steps)
        self.spare[m] = spare + saved
        return steps

    def path(self, at: int, has: Mapping[int, int], k: int, spare: int = 0) -> list[Step] | None:
        """Return the steps from the model of round `at` to that of round k, None where the model is shorter.

        `has` are the rounds of the messages that the node holds. They may be longer than the model by `spare` bytes.
        """
        if at == k:
            return []
        first = self.held(at)
        if first is None:
            return None
        missing = {unit: (j, message) for unit, (j, message) in first.items() if has.get(unit) != j}
        steps = [Step(at, missing), *(Step(j, self.log[j]) for j in range(at + 1, k))]
        return steps if _length(steps) <= self.limit + spare else None

    def _lost(self, at: int, k: int) -> int:
        """Return by how many bytes the steps were shorter than the model, if the node held what was before them."""
        if at not in self.log:
            return 0
        return max(0, self.limit - sum(_size(self.log[j]) for j in range(at + 1, k)))

    def state(self) -> list[Any]:
        """Return what is held now."""
        held = (self.held(max(self.log)) or {}) if self.log else self.before
        return [[unit, k, np.frombuffer(message, np.uint8)] for unit, (k, message) in held.items()]

    def restore(self, state: Sequence[Any]) -> None:
        """Hold what a checkpoint says; of the rounds before it nothing is known."""
        self.before: Held = {unit: (k, host(message).tobytes()) for unit, k, message in state}
        """What was held before the rounds of the log."""
        self.log: dict[int, Held] = {}
        self.spare.clear()


class Follower:
    """A node's side: a model, and what the server held when it had that one."""

    def __init__(self, stages: Stages, like: Array, workers: int, schedule: Schedule) -> None:
        self.stages, self.like, self.workers, self.schedule = stages, like, workers, schedule
        self.sums = tells_sums(stages, like)
        self.at: int | None = None
        self.theta: Array = None
        self.held: Held = {}

    def set(self, k: int, theta: Array) -> None:
        """Take a model as it is."""
        self.at, self.theta = k, theta

    def follow(self, steps: Sequence[Step]) -> None:
        """Repeat the server's steps."""
        assert self.at is not None
        for k, came in steps:
            self.held |= came
            optimizer = ClosedFormSGD(self.theta, self.schedule)
            self.theta, self.at = optimizer.step(k, self._aggregate()), k + 1

    def _aggregate(self) -> Array:
        """Return the aggregate of what is held."""
        nothing = zeros(self.like.shape, self.like)
        if self.sums:
            message = self.held.get(SUM, (0, b""))[1]
            return Dense().decode([message], self.like)[0] if message else nothing
        who = [unit for unit in sorted(self.held) if self.held[unit][1]]
        listener = Listener("replace", self.stages.codec, self.workers, self.like, whole=True, forgetful=True)
        news = listener.take([self.held[unit][1] for unit in who], np.array(who, np.int64))
        return nothing if news is None else news.vector


def encode_steps(steps: list[Step]) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
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


def decode_steps(head: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> list[Step]:
    """Undo `encode_steps`."""
    steps: dict[int, Held] = {int(k): {} for k in head["steps"]}
    data, start = arrays["steps"].tobytes(), 0
    for step, unit, k, length in zip(head["in_step"], head["units"], head["rounds"], head["lengths"], strict=True):
        steps[int(step)][int(unit)] = (int(k), data[start : start + int(length)])
        start += int(length)
    return [Step(k, came) for k, came in steps.items()]


def _length(steps: Sequence[Step]) -> int:
    """Return the bytes of all messages in the steps."""
    return sum(_size(step.came) for step in steps)


def _size(held: Held) -> int:
    return sum(len(message) for _, message in held.values())
