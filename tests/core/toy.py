"""A small problem with numbers of its own for every worker and round, in NumPy or torch, that counts its calls."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from lasg.core.algorithms import Stages
from lasg.core.arrays import stacked
from lasg.core.belief import Belief, Listener
from lasg.core.codec_names import parse
from lasg.core.codecs import Codec
from lasg.core.estimators import Estimator
from lasg.core.messages import News, Request, Uploads
from lasg.core.optimizers import ClosedFormSGD, Constant, Optimizer, Schedule
from lasg.core.rules import RULES, Rule
from lasg.core.server import Laziness, Server
from lasg.core.workers import Workers

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


def for_workers(request: Request, ids: Any) -> Request:
    """The request as the workers of one process get it."""
    return request._replace(computes=request.computes[ids], must_upload=request.must_upload[ids])


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
        belief: Belief = "replace",
        estimator: Estimator | None = None,
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
        stages = Stages(rule=self.rule, codec=self.codec, belief=belief, estimator=estimator, local_steps=H)
        self.server = Server(optimizer, stages, laziness, SMOOTHNESS[self.ids])
        self.oracles = [Toy(kind, dtype, group) for group in groups]
        self.listeners = [Listener(belief, self.codec, len(group), optimizer.theta) for group in groups]
        self.processes = [
            Workers(
                oracle,
                stages,
                theta=optimizer.theta,
                ids=oracle.ids,
                seed=seed,
                D=D,
                listener=listener,
            )
            for oracle, listener in zip(self.oracles, self.listeners, strict=True)
        ]

    @property
    def oracle(self) -> Toy:
        return self.oracles[0]

    @property
    def workers(self) -> Workers:
        return self.processes[0]

    @property
    def contributed(self) -> Any:
        """What the server takes the workers of the first process to have said last."""
        return self.listeners[0].rows

    @property
    def theta(self) -> npt.NDArray[Any]:
        return numpy_of(self.server.theta)

    def step(self) -> tuple[Request, Uploads]:
        request = self.server.open()
        answers, first = [], 0
        for process in self.processes:
            mine = np.arange(first, first + len(process.ids))
            first += len(mine)
            answers.append(process.answer(for_workers(request, mine)))
        news = [answer.news for answer in answers if answer.news is not None]
        estimates = [answer.estimates for answer in answers if answer.estimates is not None]
        vectors = [each.vector for each in news]
        uploads = answers[0]._replace(
            uploaded=np.concatenate([answer.uploaded for answer in answers]),
            news=News(sum(vectors[1:], vectors[0]), news[0].whole) if news else None,
            uploads=sum(answer.uploads for answer in answers),
            bits=sum(answer.bits for answer in answers),
            gradients=sum(answer.gradients for answer in answers),
            left=answers[0].left if len(answers) == 1 else None,
            estimates=np.concatenate(estimates) if estimates else None,
        )
        self.server.close(uploads, uploads.news)
        return request, uploads

    def play(self, rounds: int) -> npt.NDArray[Any]:
        """Return who uploaded: (rounds, M)."""
        return np.array([self.step()[1].uploaded for _ in range(rounds)])

    def state(self) -> Any:
        """What a checkpoint file would hold: a copy."""
        return copy.deepcopy(
            {
                "server": self.server.state(),
                "workers": [process.state() for process in self.processes],
                "listeners": [listener.state() for listener in self.listeners],
            }
        )

    def restore(self, state: Any) -> None:
        self.server.restore(state["server"])
        for process, mine in zip(self.processes, state["workers"], strict=True):
            process.restore(mine)
        for listener, heard in zip(self.listeners, state["listeners"], strict=True):
            listener.restore(heard)
