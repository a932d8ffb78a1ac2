"""What moved the model, told to nodes that have an older one: where that is shorter than the model itself.

The server's aggregate is a function of what it holds: one message a worker, or, where those are as long as the model,
their sum. A node that has the model of a round, and what the server held then, needs only what came since: it repeats
the steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from lasg.core.arrays import Array, cast, float64, zeros
from lasg.core.codecs import Codec, Dense
from lasg.core.optimizers import ClosedFormSGD, Schedule

Held = dict[int, tuple[int, bytes]]
"""Messages by worker, with the round that each came in; an empty one is a contribution that was dropped."""
SUM = 0
"""Under which number the sum is held."""


def sums(codec: Codec, theta: Array) -> bool:
    """Tell whether the sum of all contributions is told, and not each worker's message."""
    length = getattr(codec, "length", None)
    return isinstance(codec, Dense) or length is None or length(theta.shape[-1]) >= theta.shape[-1] * theta.itemsize


def aggregate(rows: Array) -> Array:
    """Return the sum of all contributions `(M, p)`, in their dtype: the same bits on whichever machine."""
    return cast(float64(rows).sum(0), rows)


class Step(NamedTuple):
    """One round that a node has missed: what was held anew in it."""

    k: int
    came: Held


class Relay:
    """The server's side: what was held in the last rounds, as far back as it is shorter than the model."""

    def __init__(self, theta: Array) -> None:
        self.limit = int(theta.shape[-1] * theta.itemsize)
        self.before: Held = {}
        """What was held before the rounds of the log."""
        self.log: dict[int, Held] = {}

    def note(self, k: int, came: Mapping[int, bytes]) -> None:
        """Take what was held anew in a round."""
        self.log[k] = {unit: (k, message) for unit, message in came.items()}
        while len(self.log) > 1 and sum(map(_size, self.log.values())) > self.limit:
            self.before |= self.log.pop(min(self.log))

    def held(self, k: int) -> Held | None:
        """Return what was held after a round, if it is known."""
        if k not in self.log:
            return None
        found = dict(self.before)
        for j in range(min(self.log), k + 1):
            found |= self.log[j]
        return found

    @property
    def latest(self) -> Held:
        """What is held now."""
        return (self.held(max(self.log)) or {}) if self.log else dict(self.before)

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
        return steps if length(steps) <= self.limit + spare else None

    def lost(self, at: int, k: int) -> int:
        """Return by how many bytes the steps were shorter than the model, if the node held what was before them."""
        if at not in self.log:
            return 0
        return max(0, self.limit - sum(_size(self.log[j]) for j in range(at + 1, k)))


class Follower:
    """A node's side: a model, and what the server held when it had that one."""

    def __init__(self, codec: Codec, like: Array, workers: int, schedule: Schedule) -> None:
        self.codec, self.like, self.workers, self.schedule = codec, like, workers, schedule
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
        if sums(self.codec, self.like):
            message = self.held.get(SUM, (0, b""))[1]
            return Dense().decode([message], self.like)[0] if message else zeros(self.like.shape, self.like)
        rows = zeros((self.workers, self.like.shape[-1]), self.like)
        who = [unit for unit in sorted(self.held) if self.held[unit][1]]
        if who:
            rows[np.array(who)] = self.codec.decode([self.held[unit][1] for unit in who], self.like)
        return aggregate(rows)


def length(steps: Sequence[Step]) -> int:
    """Return the bytes of all messages in the steps."""
    return sum(_size(step.came) for step in steps)


def _size(held: Held) -> int:
    return sum(len(message) for _, message in held.values())
