"""How a cell is run: the one file here that knows what lasg is made of. It gives plain arrays back."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import lasg
from lasg.core.arrays import host
from lasg.core.training import Hosted, Round, Training
from lasg.problems.buffers import Buffers
from lasg.runs import factories
from lasg.transports.federation import Federation
from lasg.transports.membership import Admission
from lasg.transports.nodes import Node
from lasg.transports.ranks import Ranks
from tests.golden.cells import LAZY, RANKS, Cell
from tests.golden.machine import alike
from tests.transports import ranks
from tests.transports.wire import Wire

Array = npt.NDArray[Any]
Trace = dict[str, Array]
"""uploads (packed), thresholds, left, ledger, theta, and what the engine has besides: aggregate, sent."""
MADE = ("module", "normed", "failing")
"""Problems that no spec can name."""
SHARES = (0.2, 0.4, 0.7)
"""Where the shards of a made problem end: of four workers, three have other numbers of samples than the first."""


# -- problems -----------------------------------------------------------------------------------------------------


class _Module(lasg.ModuleProblem):
    """A network that says how smooth it is: any numbers do."""

    def smoothness(self, reading: str = "paper") -> npt.NDArray[np.float64]:
        return np.linspace(0.5, 2.0, self.workers)


class _Failing(lasg.Regression):
    """Worker 2 has no finite gradient in some iterations, and in iteration 7 nobody has one."""

    def gradients(self, iteration: int, points: Any, rows: Any) -> list[Any]:
        found = super().gradients(iteration, points, rows)
        who = np.arange(self.workers) if rows is None else rows
        bad = (who == 2) & (iteration % 5 == 3) | (iteration == 7)
        return [np.where(bad[:, None], np.nan, grad) for grad in found]


def _network(normed: bool) -> nn.Module:
    """Return a network of a few hundred parameters, whose start is computed and not drawn."""
    middle = [nn.BatchNorm1d(12), nn.Tanh(), nn.Dropout(0.2)] if normed else [nn.Tanh()]
    module = nn.Sequential(nn.Linear(16, 12), *middle, nn.Linear(12, 10))
    for part in module:
        if isinstance(part, nn.Linear):
            numbers = np.modf(np.arange(1, part.weight.numel() + 1) * 0.6180339887498949)[0] - 0.5
            part.weight.data = torch.tensor(numbers.reshape(part.weight.shape), dtype=torch.float32)
            part.bias.data.zero_()
    return module


@functools.cache
def _pixels() -> tuple[Array, Array]:
    """Return digits of 4 x 4 pixels, sorted by class."""
    images, labels = load_digits(return_X_y=True)
    small = images.reshape(-1, 4, 2, 4, 2).mean((2, 4)).reshape(len(images), 16) / 16 - 0.3
    order = np.argsort(labels, kind="stable")
    return small[order], labels[order]


def _shards(samples: int) -> list[Array]:
    return np.split(np.arange(samples), [int(share * samples) for share in SHARES])


def _module(cell: Cell, worker: int | None = None) -> _Module:
    """Return the problem of all workers, or of one as a node has it."""
    features, labels = _pixels()
    shards, settings = _shards(len(labels)), cell.settings
    return _Module(
        _network(cell.problem == "normed"),
        cross_entropy,
        (features, labels),
        shards if worker is None else [shards[worker]],
        batch=settings["batch"],
        seed=settings["seed"],
        lam=settings.get("lam", 0.0),
        dtype=cell.dtype,  # type: ignore[arg-type]
        ids=None if worker is None else [worker],
    )


def _failing(cell: Cell) -> _Failing:
    features, labels = load_breast_cancer(return_X_y=True)
    features = (features - features.mean(0)) / features.std(0)
    settings = cell.settings
    return _Failing(
        features,
        labels,
        _shards(len(labels)),
        classes=2,
        batch=settings["batch"],
        seed=settings["seed"],
        lam=1e-4,
        dtype=cell.dtype,
    )


def _spec(cell: Cell) -> lasg.Spec:
    own = cell.problem in MADE
    where = {"data": "own", "partition": "own"} if own else {"data": cell.problem}
    return lasg.Spec(task="golden", algorithm=cell.algorithm, dtype=cell.dtype, **where, **cell.settings)  # type: ignore[arg-type]


def _problem(cell: Cell, spec: lasg.Spec) -> Any:
    if cell.problem == "failing":
        return _failing(cell)
    return _module(cell) if cell.problem in MADE else lasg.problem(spec)


# -- engines ------------------------------------------------------------------------------------------------------


def _trace(step: Callable[[], Round], rounds: int, ledger: Callable[[], Sequence[int]]) -> Trace:
    """Do all rounds, and keep what each of them showed."""
    uploads, thresholds, left, counts = [], [], [], []
    for _ in range(rounds):
        done = step()
        uploads.append(np.packbits(done.uploaded))
        thresholds.append(done.threshold)
        left.append(np.full(len(done.uploaded), np.nan) if done.left is None else np.array(done.left, np.float64))
        counts.append(ledger())
    return {
        "uploads": np.array(uploads),
        "thresholds": np.array(thresholds, np.float64),
        "left": np.array(left),
        "ledger": np.array(counts, np.int64),
    }


def simulate(cell: Cell) -> Trace:
    """Run a cell with all workers in one process."""
    with alike():
        spec = _spec(cell)
        run = lasg.training(spec, _problem(cell, spec))
        found = _trace(run.step, cell.rounds, run.ledger.row)
        return {**found, "theta": host(run.theta).copy(), "aggregate": host(run.server.aggregate).copy()}


def on_ranks(cells: Sequence[Cell]) -> list[Trace]:
    """Run cells one after the other on one pair of ranks; both must find the same but for what is each one's own."""
    first, second = ranks.on_ranks(RANKS, _on_a_rank, list(cells))
    found = []
    for cell, one, other in zip(cells, first, second, strict=True):
        own = {"sent": np.stack([one["sent"], other["sent"]])}
        if cell.engine == LAZY:  # there no rank is told the others' left sides
            own["left"] = np.where(np.isnan(one["left"]), other["left"], one["left"])
        for key in one.keys() - own.keys():
            assert one[key].tobytes() == other[key].tobytes(), f"{cell.name}: the ranks have other {key}"
        found.append(one | own)
    return found


def _on_a_rank(cells: Sequence[Cell]) -> list[Trace]:
    with alike():
        return [_loop(cell) if cell.engine == LAZY else _distribute(cell) for cell in cells]


def _distribute(cell: Cell) -> Trace:
    spec = _spec(cell)
    told = bool(spec.watched) and spec.composition.rule.flag_bits > 0
    transport = Ranks(exchange=cell.exchange, hub_rank=cell.hub, tell_left=told)
    run = factories.training(spec, _problem(cell, spec), transport)
    found = _trace(run.step, cell.rounds, run.ledger.row)
    return {**found, "theta": host(run.theta).copy(), "sent": transport.links.sent.copy()}


def _loop(cell: Cell) -> Trace:
    """Train in a loop of one's own: each rank has other classes."""
    rank, settings = torch.distributed.get_rank(), cell.settings
    rule, codec = cell.algorithm.split("+")
    module = _network(normed=False).to(getattr(torch, cell.dtype))
    options: dict[str, Any] = {name: settings.get(name) for name in ("c", "rho", "clip")}
    inner = torch.optim.SGD(module.parameters(), lr=settings["eta"], momentum=settings.get("momentum", 0))
    optimizer = lasg.LazyOptimizer(
        inner, rule, codec, D=settings["D"], seed=settings["seed"], exchange=cell.exchange, **options
    )
    features, labels = (torch.tensor(half) for half in _pixels())
    mine = torch.arange(rank * 800, rank * 800 + 800)
    rows = iter(mine[(torch.arange(24) + 24 * k) * 7 % len(mine)] for k in range(cell.rounds))

    def step() -> Round:
        some = next(rows)
        x, y = features[some].to(getattr(torch, cell.dtype)), labels[some]
        optimizer.step(lambda: cross_entropy(module(x), y))
        assert optimizer.last is not None
        return optimizer.last

    found = _trace(step, cell.rounds, optimizer.ledger.row)
    theta = torch.cat([value.detach().reshape(-1) for value in module.parameters()])
    return {**found, "theta": theta.numpy(), "sent": optimizer.sent.copy()}


def federate(cell: Cell) -> Trace:
    """Run a cell with a server and nodes, all in this process."""
    with alike():
        spec = _spec(cell)
        whole = _problem(cell, spec)
        stages = spec.stages
        keys = [f"site-{m}" for m in range(spec.workers)]
        sizes = np.rint(whole.weights * whole.samples).astype(int).tolist()
        nodes = {}
        for m, key in enumerate(keys):
            own = _module(cell, m) if cell.problem in ("module", "normed") else Hosted(whole, np.array([m]))
            nodes[100 + m] = Node(
                key,
                own,
                samples=sizes[m],
                like=whole.start(),
                optimizer=lambda theta: factories.optimizer(spec, theta),
                D=spec.D,
                clip=spec.clip,
                buffers=getattr(own, "buffers", None),
                stages=stages,
                seed=spec.seed,
            )
        wire = Wire(nodes)
        told = stages.rule.where == "server" and stages.rule.estimate is None
        federation = Federation(
            wire,
            keys,
            away_after=spec.D,
            send_deltas=cell.relay,
            admission=Admission(samples=tuple(sizes)),  # one of digits has 22 times the others' data
            buffers=Buffers(_network(normed=True), spec.workers) if cell.problem == "normed" else None,
            clock=wire.clock,
            sleep=wire.sleep,
        )
        run = Training(
            None,
            factories.optimizer(spec, whole.start()),
            stages,
            spec.laziness,
            federation,
            seed=spec.seed,
            smoothness=whole.smoothness(spec.smoothness) if told else None,
        )
        federation.gather(10)
        found = _trace(run.step, cell.rounds, run.ledger.row)
        assert not federation.members.refused, federation.members.refused
        sent = np.array([federation.members.bytes_up, federation.members.bytes_down], np.int64)
        return {**found, "theta": host(run.theta).copy(), "sent": sent}
