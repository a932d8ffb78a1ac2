"""A small problem with numbers of its own for every worker and round, in NumPy or torch, that counts its calls."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from lasg.core.arrays import stacked
from lasg.core.codecs import Codec, parse
from lasg.core.optimizers import ClosedFormSGD, Constant, Optimizer, Schedule
from lasg.core.rules import RULES, Rule
from lasg.core.server import Laziness, Opened, Server
from lasg.core.workers import Reply, Workers

M, P = 5, 7
KINDS = ("numpy", "torch")
CODECS = ("dense", "qsgd2", "qsgd4", "qsgd8", "qsgd16", "qsgd2:3", "qsgd4:3", "qsgd8:3", "qsgd16:3")
LAZY = tuple(name for name in RULES if name != "always")
SMOOTHNESS = np.array([0.9, 0.5, 0.7, 1.1, 0.3])

_rng = np.random.default_rng(11)
TABLE = 101
WEIGHTS = np.array([0.1, 0.3, 0.15, 0.25, 0.2])
CURVATURE = _rng.uniform(0.5, 2.0, size=(TABLE, M, P))
CENTRE = _rng.normal(size=(1, M, P)) + 0.5 * _rng.normal(size=(TABLE, M, P))


def as_kind(x: Any, kind: str, dtype: str = "float64") -> Any:
    array = np.asarray(x, dtype)
    return array.copy() if kind == "numpy" else torch.tensor(array)


def numpy_of(x: Any) -> npt.NDArray[Any]:
    return x if isinstance(x, np.ndarray) else np.asarray(x.detach().numpy())


class Call(NamedTuple):
    """One call of the oracle."""

    iteration: int
    ids: list[int]
    points: list[npt.NDArray[Any]]


class Toy:
    """Worker m's contribution on its sample of iteration t: w_m a_{m,t} (theta - b_{m,t}), entry by entry."""

    def __init__(self, kind: str = "numpy", dtype: str = "float64", ids: Sequence[int] = range(M)) -> None:
        self.ids = np.array(ids)
        self.weights: npt.NDArray[np.float64] = WEIGHTS[self.ids]
        self.kind, self.dtype = kind, dtype
        self.a = as_kind(WEIGHTS[:, None] * CURVATURE, kind, dtype)
        self.b = as_kind(CENTRE, kind, dtype)
        self.calls: list[Call] = []

    def gradients(self, iteration: int, points: Sequence[Any], rows: Any) -> list[Any]:
        ids = self.ids if rows is None else self.ids[rows]
        points = [stacked(point) for point in points]
        self.calls.append(Call(iteration, ids.tolist(), [numpy_of(point).copy() for point in points]))
        a, b = self.a[iteration % TABLE][ids], self.b[iteration % TABLE][ids]
        return [a * (point - b) for point in points]


class Run:
    """A server and the workers of one process (or of several, given as groups of ids)."""

    def __init__(
        self,
        rule: str | Rule,
        codec: str | Codec = "dense",
        *,
        kind: str = "numpy",
        dtype: str = "float64",
        D: int = 6,
        c: float = 0.5,
        window: int = 10,
        start: Any = "ask-twice",
        H: int = 1,
        schedule: Schedule | None = None,
        optimizer: Optimizer | None = None,
        groups: Sequence[Sequence[int]] = (range(M),),
        seed: int = 5,
    ) -> None:
        self.rule = RULES[rule] if isinstance(rule, str) else rule
        self.codec = parse(codec) if isinstance(codec, str) else codec
        if optimizer is None:
            optimizer = ClosedFormSGD(as_kind(np.zeros(P), kind, dtype), schedule or Constant(0.1))
        everyone = [m for group in groups for m in group]
        self.ids = np.array(everyone)
        laziness = Laziness(workers=len(everyone), D=D, c=c, window=window, start=start)
        self.server = Server(optimizer, self.rule, laziness, SMOOTHNESS[self.ids])
        self.oracles = [Toy(kind, dtype, group) for group in groups]
        self.processes = [
            Workers(
                oracle,
                self.rule,
                self.codec,
                theta=optimizer.theta,
                ids=oracle.ids,
                seed=seed,
                D=D,
                local_steps=H,
            )
            for oracle in self.oracles
        ]

    @property
    def oracle(self) -> Toy:
        return self.oracles[0]

    @property
    def workers(self) -> Workers:
        return self.processes[0]

    @property
    def theta(self) -> npt.NDArray[Any]:
        return numpy_of(self.server.theta)

    def step(self) -> tuple[Opened, Reply]:
        opened = self.server.open()
        replies, first = [], 0
        for process in self.processes:
            mine = slice(first, first + len(process.ids))
            first = mine.stop
            asked = None if opened.asked is None else opened.asked[mine]
            due = opened.due if isinstance(opened.due, bool) else opened.due[mine]
            replies.append(process.respond(opened._replace(asked=asked, due=due)))
        sums = [reply.innovation for reply in replies if reply.innovation is not None]
        estimates = [reply.estimates for reply in replies if reply.estimates is not None]
        reply = replies[0]._replace(
            uploaded=np.concatenate([reply.uploaded for reply in replies]),
            innovation=sum(sums[1:], sums[0]) if sums else None,
            uploads=sum(reply.uploads for reply in replies),
            bits=sum(reply.bits for reply in replies),
            gradients=sum(reply.gradients for reply in replies),
            left=replies[0].left if len(replies) == 1 else None,
            estimates=np.concatenate(estimates) if estimates else None,
        )
        self.server.close(reply.uploaded, reply.innovation, reply.estimates)
        return opened, reply

    def play(self, rounds: int) -> npt.NDArray[Any]:
        """Return who uploaded: (rounds, M)."""
        return np.array([self.step()[1].uploaded for _ in range(rounds)])

    def state(self) -> Any:
        """What a checkpoint file would hold: a copy."""
        return copy.deepcopy(
            {"server": self.server.state(), "workers": [process.state() for process in self.processes]}
        )

    def restore(self, state: Any) -> None:
        self.server.restore(state["server"])
        for process, mine in zip(self.processes, state["workers"], strict=True):
            process.restore(mine)
