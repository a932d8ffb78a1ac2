"""What moved the model, sent to nodes that have an older one: where that is shorter than the model itself.

The server's aggregate is a function of what it holds: one message per worker, or, where those are as long as the model
or build on one another, their sum. Under `residual` it holds what came in the round, and nothing else. A node that has
the model of a round, the state of the server's optimizer, and what the server held then, needs only what came since: it
repeats the steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lasg.core.algorithms import Stages
from lasg.core.arrays import Array, FloatArray, host, zeros
from lasg.core.belief import Listener, is_chained
from lasg.core.codecs import Dense
from lasg.core.messages import News
from lasg.core.optimizers import Optimizer

Held = dict[int, tuple[int, bytes]]
"""Messages by worker, with the round that each came in; an empty one is a contribution that was dropped."""
Steps = dict[int, Held]
"""What came to be held in each of some rounds."""
SUM = 0
"""Under which number the sum is held."""


def tells_sums(stages: Stages, theta: Array) -> bool:
    """Say whether the sum of all contributions is sent, and not each worker's message."""
    length = stages.codec.length(theta.shape[-1], int(theta.itemsize))
    if length is not None and length >= theta.shape[-1] * theta.itemsize:
        return True
    if stages.belief == "residual":
        return bool(stages.codec.init_decoder(1, theta))  # which no node has
    return length is None or is_chained(stages.belief, stages.codec)


class NodeModel(NamedTuple):
    """What a node has, if it answers: the model of a round, and the rounds of the messages that it holds."""

    at: int
    """`NEVER`: it has a model, and not the state of the server's optimizer, so it cannot go on from there."""
    has: dict[int, int]
    whole: bool
    """Whether it was sent everything that one without any memory needs."""


class DeltaLog:
    """The server's side: what was held in the last rounds, as far back as it is shorter than the model."""

    def __init__(self, stages: Stages, theta: Array) -> None:
        self.limit = int(theta.shape[-1] * theta.itemsize)
        self.sums, self.used_once = tells_sums(stages, theta), stages.belief == "residual"
        self.restore([])

    def note(self, k: int, came: Mapping[int, bytes], dropped: Sequence[int], news: News | None) -> None:
        """Take what came to be held in a round; the news are the aggregate itself."""
        units = dict.fromkeys(dropped, b"") | dict(came)
        if self.sums and news is not None:
            units = {SUM: Dense().encode(news.vector[None])[0] if units else b""}
        self.log[k] = {unit: (k, message) for unit, message in units.items()}
        while len(self.log) > 1 and _size(self.log) > self.limit:
            gone = self.log.pop(min(self.log))
            self.before |= {} if self.used_once else gone

    def held(self, until: float = math.inf) -> Held:
        """Return what was held after a round of the log, by default the last."""
        if self.used_once:
            return {}
        held = dict(self.before)
        for k, came in self.log.items():
            if k <= until:
                held |= came
        return held

    def steps_for(self, m: int, node: NodeModel, k: int) -> Steps | None:
        """Return the steps that bring a worker's node to the model of round k, None where the model is shorter.

        They may be longer than it by what the node has saved so far, or would have saved if it held all messages.
        """
        spare = self.spare.get(m, 0)
        if node.at not in self.log:
            self.spare[m] = spare + max(0, self.limit - self._last_size()) if spare < 0 else spare
            return None
        missing = {unit: held for unit, held in self.held(node.at).items() if node.has.get(unit) != held[0]}
        missing = self.log[node.at] if self.used_once else missing
        later = {j: self.log[j] for j in range(node.at + 1, k)}
        steps = {node.at: missing, **later}
        fits = _size(steps) <= self.limit + spare
        self.spare[m] = spare + (self.limit - _size(steps) if fits else max(0, self.limit - _size(later)))
        return steps if fits else None

    def helps(self, m: int) -> bool:
        """Tell whether a worker's node that gets the model should get the state of the server's optimizer with it.

        That may be several times as long as the model, so a round's messages must be much shorter than that.
        """
        return 2 * self._last_size() <= self.limit and self.spare.get(m, 0) >= 0

    def note_lost(self, m: int) -> None:
        """Take note that a worker's node could not repeat the steps: it is sent everything once more.

        Where its arithmetic has other last digits that is so in every round, and the model alone is then shorter.
        """
        self.spare[m] = self.spare.get(m, 0) - 2 * self.limit

    def _last_size(self) -> int:
        """Return the bytes of what came in the last round."""
        return _size({0: self.log[max(self.log)]}) if self.log else 0

    def state(self) -> list[Any]:
        """Return what is held now."""
        return [[unit, k, np.frombuffer(message, np.uint8)] for unit, (k, message) in self.held().items()]

    def restore(self, state: Sequence[Any]) -> None:
        """Hold what a checkpoint says; of the rounds before it nothing is known."""
        self.before: Held = {unit: (k, host(message).tobytes()) for unit, k, message in state}
        """What was held before the rounds of the log."""
        self.log: Steps = {}
        self.spare: dict[int, int] = {}
        """Bytes by which each node's steps may be longer than the model."""


def follow(
    optimizer: Optimizer,
    held: Held,
    steps: Steps,
    stages: Stages,
    workers: int,
    seed: int,
    weights: FloatArray | None = None,
) -> None:
    """Repeat the server's steps at a node, with its optimizer, and from what the server held then, which is updated.

    The workers drew their noise from `seed`. `weights` are n_m / N of all workers, where what one of them adds to the
    sum is bounded.
    """
    for k, came in steps.items():
        held |= came
        if stages.rule.where == "all" and not any(message for _, message in came.values()):
            continue  # the round was void
        optimizer.step(k, _aggregate(held, optimizer.theta, stages, workers, seed, weights))
        if stages.belief == "residual":
            held.clear()


def _aggregate(held: Held, like: Array, stages: Stages, workers: int, seed: int, weights: FloatArray | None) -> Array:
    """Return the aggregate of what is held."""
    said = {unit: message for unit, (_, message) in sorted(held.items()) if message}
    rounds = np.array([held[unit][0] for unit in said])
    if not said:
        return zeros(like.shape, like)
    if tells_sums(stages, like):
        return Dense().decode([said[SUM]], like)[0]
    bound: dict[str, Any] = {"robust": stages.robust, "weights": weights, "seed": seed}
    listener = Listener(stages.belief, stages.codec, workers, like, whole=True, forgetful=True, **bound)
    news = listener.take(list(said.values()), np.array(list(said)), k=rounds)
    assert news is not None
    return news.vector


def encode_steps(steps: Steps) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Return steps as they travel."""
    came = [(step, unit, k, message) for step, held in steps.items() for unit, (k, message) in held.items()]
    head = {
        "steps": list(steps),
        "in_step": [step for step, _, _, _ in came],
        "units": [unit for _, unit, _, _ in came],
        "rounds": [k for _, _, k, _ in came],
        "lengths": [len(message) for _, _, _, message in came],
    }
    return head, {"steps": np.frombuffer(b"".join(message for _, _, _, message in came), np.uint8)}


def decode_steps(head: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Steps:
    """Undo `encode_steps`."""
    steps: Steps = {int(k): {} for k in head["steps"]}
    data, start = arrays["steps"].tobytes(), 0
    for step, unit, k, length in zip(head["in_step"], head["units"], head["rounds"], head["lengths"], strict=True):
        steps[int(step)][int(unit)] = (int(k), data[start : start + int(length)])
        start += int(length)
    return steps


def _size(steps: Steps) -> int:
    """Return the bytes of all messages in steps."""
    return sum(len(message) for held in steps.values() for _, message in held.values())
