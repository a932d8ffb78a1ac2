"""The runs of lasg 0.1 that are kept: what they are. Both versions can import this, and run it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from torch import nn
from torch.nn.functional import cross_entropy

import lasg

ARCHIVE = Path(__file__).with_name("fixtures-0.1.zip")
ROUNDS, STOPPED = 60, 41
"""Of every run, and after how many of them 0.1 was stopped."""
UNFINISHED, ENDED, MACHINE = "unfinished", "ended", "arithmetic.txt"
"""What 0.1 left, how it went on itself, and how the machine computes on which it did."""

# -- specs ------------------------------------------------------------------------------------------------------------

SHARED: dict[str, Any] = {
    "task": "old",
    "data": "breast-cancer",
    "partition": "dirichlet",
    "alpha": 0.5,
    "workers": 4,
    "batch": 0.1,
    "eta": 1.7,
    "D": 15,
    "c": 0.3,
    "bits": 4,
    "seed": 7,
    "iterations": ROUNDS,
    "evaluate": 5,
}
RHO: dict[str, Any] = {"c": None, "rho": 0.5, "guard": True}
MOMENTUM: dict[str, Any] = {"optimizer": "SGD", "optimizer_options": {"momentum": 0.9}}
FINISHED: dict[str, dict[str, Any]] = {
    "sgd": {"algorithm": "sgd"},
    "lasg-wk2": {"algorithm": "lasg-wk2", "dtype": "float64"},
}
SIMULATED: dict[str, dict[str, Any]] = {
    "lasg-wk2": {"algorithm": "lasg-wk2"},
    "lasg-wk1": {"algorithm": "lasg-wk1", "dtype": "float64"},
    "laqsg-wk1": {"algorithm": "laqsg-wk1"},
    "laqsg-pse": {"algorithm": "laqsg-pse"},
    "lasg-ps": {"algorithm": "lasg-ps", "c": 18.0, "dtype": "float64"},
    "local-sgd": {"algorithm": "local-sgd", "H": 3, "iterations": 3 * ROUNDS},
    "momentum": {**RHO, **MOMENTUM, "algorithm": "wk2+qsgd8:512", "batch": 0.5, "eta": 0.02},
    "adam": {**RHO, "optimizer": "Adam", "algorithm": "lasg-pse", "batch": 0.5, "eta": 0.01},
    "given-up-before": {**RHO, "optimizer": "Adam", "algorithm": "lasg-pse", "eta": 0.03},
    "given-up-after": {**RHO, **MOMENTUM, "algorithm": "wk2+qsgd8:512", "eta": 0.05},
}
"""The last two have a guard that gives laziness up, before 0.1 was stopped or after."""
ON_RANKS: dict[str, dict[str, Any]] = {
    "summed": {"algorithm": "lasg-wk2"},
    "totals": {"algorithm": "sgd"},
    "packed": {"algorithm": "qsgd"},
    "asked": {"algorithm": "laqsg-pse"},
    "hub": {"algorithm": "lasg-wk2", "exchange": "hub"},
    "hub-packed": {"algorithm": "laqsg-wk2", "exchange": "hub", "relay": 1},
    "hub-relayed": {"algorithm": "laqsg-wk2", "exchange": "hub", "relay": 1, "ranks": 3, "workers": 9, "bits": 8},
}
"""By the form in which uploads travel, or the way that they take."""


def spec(settings: dict[str, Any]) -> lasg.Spec:
    """Return the spec of a run."""
    return lasg.Spec(**{name: value for name, value in {**SHARED, **settings}.items() if value is not None})


def spec_on_ranks(name: str) -> tuple[lasg.Spec, int, dict[str, Any]]:
    """Return the spec of a run on ranks, how many there are, and how they exchange."""
    more = dict(ON_RANKS[name])
    ranks, how = more.pop("ranks", 2), {"exchange": more.pop("exchange", "auto"), "relay": more.pop("relay", 0)}
    return spec(more), ranks, how


# -- training loops of one's own --------------------------------------------------------------------------------------


@functools.cache
def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Return standardised samples and their labels."""
    features, labels = load_breast_cancer(return_X_y=True)
    features = (features - features.mean(0)) / features.std(0)
    return torch.tensor(features, dtype=torch.float64), torch.tensor(labels, dtype=torch.int64)


def network(*middle: nn.Module) -> nn.Module:
    """Return a small network, whose start is computed and not drawn."""
    module = nn.Sequential(nn.Linear(30, 4), *middle, nn.Tanh(), nn.Linear(4, 2)).double()
    for part in module:
        if isinstance(part, nn.Linear):
            numbers = np.modf(np.arange(1, part.weight.numel() + 1) * 0.6180339887498949)[0] - 0.5
            part.weight.data = torch.tensor(numbers.reshape(part.weight.shape))
            part.bias.data.zero_()
    return module


SGD, HEAVY, ADAM = ("SGD", {"lr": 0.2}), ("SGD", {"lr": 0.01, "momentum": 0.9}), ("Adam", {"lr": 0.01})
LOOPS: dict[str, dict[str, Any]] = {
    "alone": {"ranks": 1, "optimizer": ADAM, "rule": "wk2", "rho": 0.5},
    "default": {"ranks": 2, "optimizer": ADAM},
    "lazy": {"ranks": 2, "optimizer": HEAVY, "rule": "wk2", "rho": 0.5, "float32": True},
    "summed": {"ranks": 2, "optimizer": SGD, "rule": "wk1", "codec": "dense", "c": 0.03, "float32": True},
    "asked": {"ranks": 2, "optimizer": SGD, "rule": "pse", "codec": "dense", "c": 0.3},
    "hub": {"ranks": 2, "optimizer": SGD, "rule": "wk2", "c": 0.03, "exchange": "hub", "relay": 1},
    "requantised": {"ranks": 3, "optimizer": SGD},
}


def loop(name: str, rank: int, start: Any = None, rounds: int = ROUNDS) -> tuple[Any, dict[str, Any]]:
    """Train with a LazyOptimizer on this rank, from a state dict if there is one; return its last, and what came."""
    case = dict(LOOPS[name])
    ranks, (kind, options) = case.pop("ranks"), case.pop("optimizer")
    dtype = torch.float32 if case.pop("float32", False) else torch.float64
    (x, y), module = data(), network().to(dtype)
    wrapped = getattr(torch.optim, kind)(module.parameters(), **options)
    optimizer = lasg.LazyOptimizer(wrapped, D=15, **case)
    if start is not None:
        optimizer.load_state_dict(start)
    uploads = []
    for k in range(0 if start is None else STOPPED, rounds):
        mine = (torch.arange(100) * ranks + rank + 37 * k) % len(x)
        optimizer.step(lambda rows=mine: cross_entropy(module(x[rows].to(dtype)), y[rows]))  # type: ignore[misc]
        assert optimizer.last is not None
        uploads.append(optimizer.last.uploaded)
    theta = torch.cat([value.detach().flatten() for value in module.parameters()])
    came = {"theta": theta.numpy(), "ledger": np.array(optimizer.ledger.row()), "uploads": np.array(uploads)}
    return optimizer.state_dict(), came


# -- federations ------------------------------------------------------------------------------------------------------

NODES = 3
FEDERATION: dict[str, Any] = {"workers": NODES, "rounds": ROUNDS, "eta": 0.2, "D": 15, "wait": 10.0}
FEDERATIONS: dict[str, dict[str, Any]] = {
    "always": {"rule": "always", "codec": "qsgd8:64", "local-steps": 2},
    "lazy": {"rule": "wk2", "codec": "qsgd8:64"},
    "sums": {"rule": "wk1", "codec": "dense", "c": 0.03},
    "asked": {"rule": "pse", "codec": "dense", "c": 0.3},
}


def served() -> nn.Module:
    """Return a federation's network: one whose buffers travel."""
    return network(nn.BatchNorm1d(4))


def node_problem(_: Any, worker: int) -> lasg.ModuleProblem:
    """Return a node's own samples."""
    x, y = data()
    part = np.split(np.arange(len(y)), [150, 350])[worker]
    return lasg.ModuleProblem(
        served(), cross_entropy, (x.numpy(), y.numpy()), [part], batch=0.1, dtype="float64", ids=[worker]
    )


def measured(model: nn.Module) -> tuple[float, float]:
    """Return loss and accuracy."""
    x, y = data()
    with torch.no_grad():
        output = model(x)
    return float(cross_entropy(output, y)), float((output.argmax(1) == y).double().mean())


def federate(
    name: str,
    out: Path,
    read: Callable[[dict[str, Any]], Any],
    measure: Any = measured,
    memories: list[bytes] | None = None,
    **more: Any,
) -> list[bytes]:
    """Train over nodes in this process, which may remember something; return what they remember in the end."""
    from flwr.app import ConfigRecord

    from lasg.flower import apps, client_app
    from tests.flower.grid import Inline

    config = {**FEDERATION, **FEDERATIONS[name], "out": str(out), **more}
    grid = Inline(client_app(node_problem), NODES, config)
    contexts = list(grid.contexts.values())
    for context, memory in zip(contexts, memories or [], strict=False):
        context.state[apps.MEMORY] = ConfigRecord({"memory": memory})
    try:
        apps.train(grid, read(config), served(), measure)
    except KeyboardInterrupt:
        if measure is measured:
            raise
    return [context.state[apps.MEMORY]["memory"] for context in contexts]  # type: ignore[misc]
